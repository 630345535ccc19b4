"""What a spec made from another tool's file cannot say: every key that was left out, and every value that was read with a choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dptrain.spec.tree import Found, Node, Where, printable, shown

REASONS: Mapping[str, str] = {
    "additional_metrics": "dptrain always measures PSNR and SSIM",
    "denoiser_lambda_relaxation": "dptrain takes the denoiser's answer unmixed",
    "grad_clip": "dptrain does not clip gradients",
    "html": "`dptrain report` makes the page",
    "n-repetitions": "every run is made once",
    "name_prefix": "runs are called after the file and their values",
    "norm_strategy": "dptrain does not rescale or clip iterates",
    "plot": "`dptrain report` makes the figures",
    "roofline": "dptrain does not time the network alone",
    "save_output_figures": "dptrain always writes its pictures",
    "timeout": "wall time is resources.time_min",
    "slurm_stderr_to_stdout": "dptrain keeps one log per rank, both streams together",
    "slurm_teardown": "dptrain runs nothing after the ranks",
}
"""Why a key of this name has no counterpart."""


def reason_of(key: str) -> str:
    """Why a key is left out."""
    if key.startswith("profiler_"):
        return "measurements of all measured steps go to files of dptrain's own in the run's folder"
    return REASONS.get(key, "dptrain has no such setting")


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One key of the file that is not, or not exactly, in the spec."""

    where: str
    """file:line:col"""
    key: str
    """As in the file, e.g. `solver.grad_clip`."""
    value: str
    reason: str
    mapped: bool = False
    """It is in the spec, with a choice that the reason names."""

    def __str__(self) -> str:
        left = "" if self.mapped else "not mapped: "
        return f"{self.where}: {left}{self.key}: {self.value}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {"where": self.where, "key": self.key, "value": self.value, "reason": self.reason}


@dataclass
class Notes:
    """Collects remarks and problems of one reading."""

    remarks: list[Remark] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)

    def unmapped(self, key: str, node: Node, reason: str | None = None) -> None:
        """A key, or one of its values, that the spec does not have."""
        self._add(key, node, reason or reason_of(key.rpartition(".")[2]), mapped=False)

    def choice(self, key: str, node: Node, reason: str) -> None:
        """A value that was mapped in a way worth knowing."""
        self._add(key, node, reason, mapped=True)

    def _add(self, key: str, node: Node, reason: str, *, mapped: bool) -> None:
        remark = Remark(
            where=printable(str(node.where)),
            key=printable(key),
            value=printable(shown(node)),
            reason=printable(reason),
            mapped=mapped,
        )
        said = (remark.key, remark.value, remark.reason)  # of equal values in a list the first stands for all
        if said not in [(r.key, r.value, r.reason) for r in self.remarks]:
            self.remarks.append(remark)

    def problem(self, where: Where, found: str, write: str) -> None:
        """Something for which there is no run."""
        self.found.append(Found(where=where, found=found, write=write))
