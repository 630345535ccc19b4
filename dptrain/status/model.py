"""What status says about a run. `to_json` is read by other programs: fields are added freely, never renamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dptrain.records.index import called

ENDED = ("completed", "incomplete", "failed", "timed-out", "preempted", "cancelled", "never-submitted")
"""First words of the states that no waiting changes."""
BAD = ("incomplete", "failed", "timed-out", "preempted", "cancelled", "never-submitted", "stalled")
"""First words of the states that make a command exit with 1."""


IMPOSSIBLE_MARK = "impossible: "
"""Begins the reason of a queued run that can never start as it was asked for."""


def first_word(state: str) -> str:
    """`failed` of `failed: killed`."""
    return state.split(":")[0].split(" ")[0]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failing rank and what it said."""

    kind: str
    """Class of the failure, `class` in JSON: out-of-memory, exception, killed, node-failure, never-started, setup, stalled,
    diverged, disk-full, world-mismatch, incomplete, unknown."""
    rank: int | None = None
    host: str | None = None
    step: int | None = None
    signal: str | None = None
    message: str = ""
    traceback: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "class": self.kind,
            "rank": self.rank,
            "host": self.host,
            "step": self.step,
            "signal": self.signal,
            "message": self.message,
            "traceback": self.traceback,
        }


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """One rank of the newest attempt; everything but `rank` and `state` is null for one that never reported."""

    rank: int
    state: str
    """never-reported, running, done, gone, cancelled, failed: <class>; `(secondary)`: because another one failed."""
    host: str | None = None
    pid: int | None = None
    phase: str | None = None
    step: int | None = None
    last_seen_s: float | None = None
    """Seconds since its newest record."""
    peak_memory_bytes: int | None = None
    bytes_sent: int | None = None
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """`interpreter`, its path, and by name the versions of it and of the libraries."""
    message: str | None = None
    """First line of what it said of its failure."""

    def to_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "state": self.state,
            "host": self.host,
            "pid": self.pid,
            "phase": self.phase,
            "step": self.step,
            "last_seen_s": self.last_seen_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "bytes_sent": self.bytes_sent,
            "device": self.device,
            "versions": dict(self.versions),
            "message": self.message,
        }


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run: what it is doing or how it ended, who says so, and how old that is."""

    run: str
    state: str
    failure: Failure | None
    reason: str | None
    """The scheduler's or the submission's own words, where there are any."""
    over: bool
    """Nothing of the run is left running."""
    step: int
    steps: int
    attempt: int
    world_size: int
    job_id: str | None
    source: str
    """records, launcher, scheduler, accounting, intent, or none."""
    age_s: float
    """Age of the newest information."""
    step_time_s: float | None
    """Median of the newest steps."""
    eta_s: float | None
    peak_memory_bytes: int | None
    """Maximum over the ranks, in all attempts since the run was last asked for."""
    psnr_db: float | None
    """Last one reported."""
    loss: float | None
    run_dir: str
    task: str
    launcher: str
    created_s: float
    history: tuple[str, ...]
    """How each earlier attempt ended."""
    warnings: tuple[str, ...]
    """What will become a problem if nothing is changed."""
    ranks: tuple[RankStatus, ...]
    faults: str | None = None
    """What the run was made to suffer on purpose."""
    setup_s: float | None = None
    """Seconds from the launch to the first step; not in the JSON entry."""
    path: tuple[float, ...] = ()
    """PSNR, or else loss, over the newest steps; not in the JSON entry."""

    @property
    def called(self) -> str:
        """The run as commands take it."""
        return called(Path(self.run_dir))

    @property
    def ended(self) -> bool:
        """The state is final and nothing is left running."""
        return self.over and first_word(self.state) in ENDED

    @property
    def impossible(self) -> bool:
        """It is queued, and will stay so until somebody changes the job or the cluster."""
        queued = first_word(self.state) in ("queued", "requeued")
        return queued and (self.reason or "").startswith(IMPOSSIBLE_MARK)

    @property
    def bad(self) -> bool:
        """The run did not, or will not, do what it was asked for."""
        return first_word(self.state) in BAD

    def to_json(self, ranks: bool = False) -> dict[str, Any]:
        """The JSON entry; `ranks` adds one entry per rank."""
        value: dict[str, Any] = {
            "run": self.run,
            "state": self.state,
            "failure": self.failure.to_json() if self.failure else None,
            "reason": self.reason,
            "over": self.over,
            "step": self.step,
            "steps": self.steps,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "job_id": self.job_id,
            "source": self.source,
            "age_s": self.age_s,
            "step_time_s": self.step_time_s,
            "eta_s": self.eta_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "psnr_db": self.psnr_db,
            "loss": self.loss,
            "run_dir": self.run_dir,
            "task": self.task,
            "launcher": self.launcher,
            "created_s": self.created_s,
            "history": list(self.history),
            "faults": self.faults,
            "warnings": list(self.warnings),
        }
        if ranks:
            value["ranks"] = [rank.to_json() for rank in self.ranks]
        return value
