"""Runs written by the real record writers, for tests of what status makes of them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dptrain.records.events import EventLog, read_events
from dptrain.records.intent import Intent, write_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.query import JobInfo, QueueAnswer
from dptrain.scheduler.states import meaning_of, pending_reason
from dptrain.status.state import Scheduler

FAILURE = {"signal": None, "traceback": "Traceback (most recent call last):\n...", "secondary": False}


class WrittenRun:
    """A run directory as launch and the ranks would leave it."""

    def __init__(self, root: Path, name: str = "demo-1", world_size: int = 2, steps: int = 3, **intent: Any) -> None:
        self.paths = RunPaths(root / name)
        self.paths.create()
        self.world_size, self.steps = world_size, steps
        self.intent = Intent(
            **{
                "run": name,
                "task": "infer",
                "launcher": "slurm",
                "cluster": "site",
                "world_size": world_size,
                "steps": steps,
                "created_s": time.time(),
                "submission": "submitted",
                "job_id": "12",
                **intent,
            }
        )
        write_intent(self.paths, self.intent)
        self.paths.spec.write_text("name: demo\nrun: {stall_timeout_s: 40, setup_timeout_s: 60}\n")

    def change(self, **changes: Any) -> None:
        self.intent = replace(self.intent, **changes)
        write_intent(self.paths, self.intent)

    def log(self, rank: int, attempt: int = 1) -> EventLog:
        paths = self.paths.attempt(attempt)
        paths.dir.mkdir(exist_ok=True)
        return EventLog(paths.rank_events(rank))

    def event(self, rank: int, kind: str, attempt: int = 1, /, **fields: Any) -> None:
        log = self.log(rank, attempt)
        log.write(kind, **fields)
        log.close()

    def start(self, rank: int, attempt: int = 1, host: str | None = None) -> None:
        self.event(
            rank, "start", attempt, rank=rank, world_size=self.world_size, host=host or f"n{rank + 1}", pid=100 + rank
        )
        self.event(rank, "phase", attempt, phase="setup")
        self.event(rank, "steps", attempt, steps=self.steps)

    def step(self, rank: int, step: int, attempt: int = 1, **fields: Any) -> None:
        values = {"seconds": 0.5, "psnr_db": 20.0 + step, "loss": None, "peak_memory_bytes": 1000 * (rank + 1)}
        self.event(rank, "step", attempt, step=step, bytes_sent=64, **{**values, **fields})

    def final(self, rank: int, attempt: int = 1, step: int | None = None) -> None:
        self.event(rank, "final", attempt, step=self.steps if step is None else step, steps=self.steps)

    def fail(self, rank: int, kind: str = "exception", attempt: int = 1, **fields: Any) -> None:
        self.event(
            rank, "failure", attempt, **{"class": kind, "step": 1, "message": "ValueError: no", **FAILURE, **fields}
        )

    def launcher(self, kind: str, attempt: int = 1, **fields: Any) -> None:
        log = EventLog(self.paths.attempt(attempt).launcher_events)
        log.write(kind, **fields)
        log.close()

    def batch_log(self, text: str) -> None:
        (self.paths.batch_log / "batch-12.log").write_text(text)

    def age(self, seconds: float, *ranks: int, attempt: int = 1) -> None:
        """Let ranks, all if none is named, have written so much earlier."""
        for rank in ranks or range(self.world_size):
            path = self.paths.attempt(attempt).rank_events(rank)
            path.write_text("".join(json.dumps({**e, "t": e["t"] - seconds}) + "\n" for e in read_events(path)))

    def finish(self) -> None:
        for rank in range(self.world_size):
            self.start(rank)
            for step in range(1, self.steps + 1):
                self.step(rank, step)
            self.final(rank)


def job(state: str, reason: str = "", restarts: int = 0, job_id: str = "12", ended_s: float | None = None) -> JobInfo:
    """What the scheduler would say.

    :param ended_s: when it ended; None: the scheduler does not say.
    """
    return JobInfo(
        job_id=job_id,
        state=meaning_of(state),
        raw_state=state,
        reason=pending_reason(reason),
        nodes=None,
        exit_code=None,
        exit_signal=None,
        restarts=restarts,
        start_time=None,
        time_left=None,
        comment="",
        ended_s=ended_s,
    )


class Said(Scheduler):
    """A scheduler that says one thing of the job, forgets it, or does not answer."""

    def __init__(self, info: object) -> None:
        super().__init__()
        self._info = info

    def jobs(self, job_ids: Sequence[str], within_s: float = math.inf) -> QueueAnswer:
        if isinstance(self._info, JobInfo):
            return QueueAnswer([self._info])
        return QueueAnswer(no_answer="down" if self._info == "unanswered" else None)
