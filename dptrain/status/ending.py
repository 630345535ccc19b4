"""How far the job is, from what started it: the launcher's records locally, the scheduler's word on SLURM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dptrain.scheduler.query import JobInfo
from dptrain.scheduler.states import Meaning, PendingReason
from dptrain.status.collect import RunRecords, int_of
from dptrain.status.model import IMPOSSIBLE_MARK

Missing = Literal["forgotten", "unanswered"]
"""No JobInfo: the scheduler answered and does not know the job (any more), or did not answer."""

Stage = Literal[
    "queued",
    "running",
    "over",
    "odd",
    "unanswered",
]
"""`odd`: a word that is in no table, which counts neither as failed nor as done."""

End = Literal[
    "success",
    "failed",
    "cancelled",
    "timed-out",
    "preempted",
    "node-failure",
    "out-of-memory",
    "forgotten",
    "supervisor-gone",
]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The launcher's or scheduler's view of the newest attempt."""

    stage: Stage
    source: str
    """launcher, scheduler, accounting, or none."""
    end: End | None = None
    """How it ended; only with stage `over`."""
    word: str = ""
    """The raw word, for messages."""
    reason: str | None = None
    """Why it is pending, or why it failed, in the scheduler's words."""
    ended_s: float | None = None
    """When the scheduler saw it end, seconds since the epoch."""
    attempt: int | None = None
    """Number of the attempt this is about, where the source counts them."""


_STAGES: dict[Meaning, Stage] = {
    "queued": "queued",
    "running": "running",
    "suspended": "running",
    "ending": "running",
    "unknown": "odd",
}
_ENDS: dict[Meaning, End] = {
    "completed": "success",
    "failed": "failed",
    "cancelled": "cancelled",
    "timed-out": "timed-out",
    "preempted": "preempted",
    "node-failure": "node-failure",
    "out-of-memory": "out-of-memory",
}


def job_of(records: RunRecords, info: JobInfo | Missing) -> Job:
    """One view for both launchers."""
    return _local(records) if records.intent.launcher == "local" else _slurm(info, records.intent.first_attempt)


def _slurm(info: JobInfo | Missing, first_attempt: int) -> Job:
    if info == "unanswered":
        return Job(stage="unanswered", source="none")
    if info == "forgotten":
        return Job(stage="over", end="forgotten", source="scheduler", word="no longer known")
    assert isinstance(info, JobInfo)
    attempt = info.restarts + first_attempt
    if info.state in _ENDS:
        reason = _failure_reason(info)
        word = info.raw_state + (f": {reason}" if reason else "")
        return Job(
            stage="over",
            end=_ENDS[info.state],
            source=info.source,
            word=word,
            reason=reason,
            ended_s=info.ended_s,
            attempt=attempt,
        )
    stage = _STAGES[info.state]
    reason = _pending_reason(info) if stage == "queued" else None
    if info.state == "suspended" or stage == "odd":
        reason = f"the scheduler says {info.raw_state}"
    return Job(stage=stage, source=info.source, word=info.raw_state, reason=reason, attempt=attempt)


def _pending_reason(info: JobInfo) -> str | None:
    reason = info.reason
    if not reason.word:
        return None
    marks = {"impossible": IMPOSSIBLE_MARK, "blocked": "blocked: ", "waiting": ""}
    return marks[reason.kind] + _in_words(reason)


def _failure_reason(info: JobInfo) -> str | None:
    """SLURM's own word on a job that failed, such as BadConstraints; None where it says no more than the state does."""
    if info.state not in ("failed", "node-failure") or info.reason.word in ("", "NonZeroExitCode"):
        return None
    return _in_words(info.reason)


def _in_words(reason: PendingReason) -> str:
    return reason.word + (f" ({reason.explanation})" if reason.explanation else "")


def _local(records: RunRecords) -> Job:
    latest = records.latest
    if latest is not None and latest.over and latest.ended is not None:
        code = int_of(latest.ended, "exitcode", -256)
        return Job(stage="over", end="success" if code == 0 else "failed", source="launcher", word=f"exit code {code}")
    if records.supervisor == "alive":
        return Job(stage="running", source="launcher")
    if records.supervisor == "gone":
        return Job(stage="over", end="supervisor-gone", source="launcher", word="gone")
    return Job(stage="unanswered", source="none")
