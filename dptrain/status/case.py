"""What advice on a run looks at: its status, what it was asked for, what plan said of it, and what it has saved."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dptrain.errors import DptrainError
from dptrain.records.index import called
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.reading import open_file, parse_json
from dptrain.records.saves import save_steps
from dptrain.scheduler.sbatch import interpreter_of
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import load_spec
from dptrain.spec.profiles import load_profile
from dptrain.spec.schema import Spec
from dptrain.status.model import RunStatus


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to try."""

    text: str
    command: str | None = None
    """What to type; None: there is nothing that a command could do."""

    def to_json(self) -> dict[str, str | None]:
        return {"text": self.text, "command": self.command}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run. What cannot be read is None or empty: advice is given without it."""

    paths: RunPaths
    status: RunStatus

    @cached_property
    def name(self) -> str:
        """The run as commands take it."""
        return called(self.paths.dir)

    @cached_property
    def spec(self) -> Spec | None:
        """What was asked for."""
        try:
            return load_spec(self.paths.spec).spec
        except (OSError, DptrainError):
            return None

    @cached_property
    def plan(self) -> dict[str, Any]:
        """plan.json."""
        return self._json(self.paths.plan)

    @cached_property
    def profile(self) -> ClusterProfile | None:
        """The cluster profile, as it is now."""
        try:
            return load_profile(read_intent(self.paths).cluster)
        except (OSError, ValueError, DptrainError):
            return None

    @cached_property
    def save(self) -> int | None:
        """Step of the newest save."""
        return max(save_steps(self.paths), default=None)

    @property
    def interpreter(self) -> str:
        """The Python that the ranks were to run."""
        try:
            with open_file(self.paths.submission) as file:
                found = interpreter_of(file.read().decode(errors="replace"))
        except (OSError, ValueError):
            found = None
        return found or str(self._json(self.paths.environment).get("executable", "not known"))

    @property
    def on_gpu(self) -> bool | None:
        """Whether the rank that failed, or any, has a GPU; None: no rank has said."""
        failed = self.status.failure.rank if self.status.failure else None
        said = [r.device for r in self.status.ranks if r.device and (failed is None or r.rank == failed)]
        return None if not said else "cuda" in said

    def resume(self, *changes: str) -> str:
        """The command that lets the run go on with these changes."""
        return " ".join(["dptrain resume", self.name, *(f"--set {change}" for change in changes)])

    def again(self, *changes: str) -> str:
        """The command of another run with these changes, which would make another result of this one."""
        words = ["dptrain", self.status.task or "infer", shlex.quote(str(self.paths.spec))]
        words += [f"--cluster {shlex.quote(self.profile.name)}"] if self.profile is not None else []
        return " ".join([*words, *(f"--set {change}" for change in changes)])

    @property
    def goes_on(self) -> str:
        """From where a resumed run goes on."""
        return (
            "it begins at the beginning: there is no save" if self.save is None else f"it goes on from step {self.save}"
        )

    def _json(self, path: Any) -> dict[str, Any]:
        try:
            with open_file(path) as file:
                value = parse_json(file.read())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}
