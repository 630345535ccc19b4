"""Which rank failed first, and why: failure records, the launcher's exits, and srun's words, brought into one order.

What follows a failure is not its cause: lost connections (`secondary`), ranks that the launcher ended, SIGTERM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dptrain.records.events import Event
from dptrain.status.collect import REQUEUE_CODE, AttemptRecord, RankRecord, RunRecords, int_of, seconds_of, text_of
from dptrain.status.model import Failure
from dptrain.status.srun import SrunMessage

CANCEL_CODES = (143, -15)
"""Exit codes of a rank that obeyed SIGTERM: by the shell's convention, and by Python's."""

SILENT_BEFORE_STALL_S = 15.0
"""A rank that lives writes a heartbeat every 10 s, also while it waits."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A failing rank and when it failed."""

    t: float
    """Seconds since the epoch; infinite where the source has no clock, so that it comes after those that have."""
    failure: Failure
    source: str

    @property
    def has_clock(self) -> bool:
        """Whether `t` is known, so that it can be compared with other times."""
        return self.t != float("inf")


def first_cause(records: RunRecords, attempt: AttemptRecord) -> Cause | None:
    """The earliest cause of the attempt, or None where nothing failed by itself."""
    own = [_from_record(rank) for rank in attempt.ranks if _is_cause(rank)]
    dead = [c for event in attempt.exits if (c := _from_exit(event, attempt, records)) is not None]
    if own or dead:
        return _behind_stall(min(own + dead, key=lambda cause: cause.t), attempt, records)
    return next((c for m in records.srun if (c := _from_srun(m, attempt, records)) is not None), None)


def teardown_cause(records: RunRecords, attempt: AttemptRecord) -> Cause | None:
    """Of a job whose ranks were all done: the first that srun saw end badly after that, where nobody ended the job."""
    if job_word_in_log(records) is not None:
        return None
    bare = replace(attempt, ranks=tuple(replace(rank, final=False) for rank in attempt.ranks))
    return next((c for m in records.srun if (c := _from_srun(m, bare, records)) is not None), None)


def only_follower(attempt: AttemptRecord) -> Cause | None:
    """What the others lost, where no rank admits to have failed first: one that left without a word, or else what they said."""
    followers = [
        _from_record(r) for r in attempt.ranks if r.failure is not None and r.failure.get("class") != "cancelled"
    ]
    said = min(followers, key=lambda cause: cause.t, default=None)
    left = [rank for rank in attempt.ranks if rank.started and not _explained(rank)]
    if said is None or not left:
        return said
    first = min(left, key=lambda rank: rank.last_seen_s or 0.0)
    message = f"rank {first.rank} left without a final record; rank {said.failure.rank} lost it: {said.failure.message}"
    failure = Failure(kind="unknown", rank=first.rank, host=first.host, step=first.step, message=message)
    return Cause(t=said.t, source="records", failure=failure)


def _behind_stall(cause: Cause, attempt: AttemptRecord, records: RunRecords) -> Cause:
    """A rank whose watchdog fires may only have waited for another: then that one is the cause, if it can be told."""
    if cause.failure.kind != "stalled" or cause.source != "records":
        return cause
    stalled = [r for r in attempt.ranks if r.failure is not None and r.failure.get("class") == "stalled"]
    # First who has fallen silent: a rank that waits for its device does not know that it waits for another rank.
    first = _silent(cause, stalled, attempt, records)
    if first is None:
        stuck = [r for r in stalled if r.failure is not None and r.failure.get("waiting") is False]
        return min((_from_record(rank) for rank in stuck), key=lambda cause: cause.t, default=cause)
    where = f" on {first.host}" if first.host else ""
    waited = f"rank {cause.failure.rank} waited for it: {cause.failure.message}"
    message = f"rank {first.rank}{where} went silent at step {first.step}; {waited}"
    failure = Failure(kind="stalled", rank=first.rank, host=first.host, step=first.step, message=message)
    return Cause(t=cause.t, source="records", failure=failure)


def _silent(
    cause: Cause, stalled: Sequence[RankRecord], attempt: AttemptRecord, records: RunRecords
) -> RankRecord | None:
    """The rank that could not even say that it stalled: frozen, or its host with it."""
    # One that was frozen may have been woken by the SIGTERM that ended it.
    others = [r for r in attempt.ranks if r.started and (not _explained(r) or _ended_by_signal(r))]
    if stalled and all(r.failure is not None and r.failure.get("waiting") is True for r in stalled):
        silent = others
    else:
        killed = {int_of(e, "rank") for e in attempt.exits if text_of(e, "signal") == "SIGKILL"}
        killed |= {n for m in records.srun if m.kind == "killed" and m.signal == "SIGKILL" for n in m.tasks}
        silent = [r for r in others if r.rank in killed or cause.t - (r.worked_s or cause.t) > SILENT_BEFORE_STALL_S]
    return min(silent, key=lambda rank: rank.worked_s or 0.0, default=None)


def _ended_by_signal(rank: RankRecord) -> bool:
    return rank.failure is not None and rank.failure.get("class") == "cancelled"


def first_terminated(attempt: AttemptRecord) -> RankRecord | None:
    """The first rank that left because of SIGTERM."""
    return min((r for r in attempt.ranks if _ended_by_signal(r)), key=_end_s, default=None)


def sigterm_s(attempt: AttemptRecord) -> float | None:
    """When that rank left."""
    rank = first_terminated(attempt)
    return None if rank is None else _end_s(rank)


def _end_s(rank: RankRecord) -> float:
    return seconds_of(rank.failure or {}, "t") or 0.0


def job_word_in_log(records: RunRecords) -> str | None:
    """time-limit, preempted, node-failure or cancelled, where the batch log says so of the job."""
    kinds = [m.kind for m in records.srun if m.kind in ("time-limit", "preempted", "node-failure", "cancelled")]
    return kinds[-1] if kinds else None


def _is_cause(rank: RankRecord) -> bool:
    return rank.failure is not None and not rank.failure.get("secondary") and rank.failure.get("class") != "cancelled"


def _from_record(rank: RankRecord) -> Cause:
    assert rank.failure is not None
    event = rank.failure
    return Cause(
        t=seconds_of(event, "t") or 0.0,
        source="records",
        failure=Failure(
            kind=text_of(event, "class") or "unknown",
            rank=rank.rank,
            host=rank.host,
            step=int_of(event, "step"),
            signal=text_of(event, "signal"),
            message=text_of(event, "message") or "",
            traceback=text_of(event, "traceback") or None,
        ),
    )


def _from_exit(event: Event, attempt: AttemptRecord, records: RunRecords) -> Cause | None:
    number, code = int_of(event, "rank"), int_of(event, "exitcode", -256)
    rank = _rank(attempt, number)
    ended_by_launcher = bool(event.get("ended_by_launcher"))
    if ended_by_launcher or code in CANCEL_CODES or (rank is not None and rank.failure is not None):
        return None
    if code in (0, REQUEUE_CODE) and _explained(rank):
        return None
    signal = text_of(event, "signal")
    host = text_of(event, "host") or (rank.host if rank else None)
    failure = _death(rank, number, host, signal, code, records.log_tail)
    return Cause(t=seconds_of(event, "t") or 0.0, source="launcher", failure=failure)


def _from_srun(message: SrunMessage, attempt: AttemptRecord, records: RunRecords) -> Cause | None:
    if message.kind == "launch" and not any(rank.started for rank in attempt.ranks):
        failure = Failure(kind="never-started", host=message.host, message=message.text)
        return Cause(t=float("inf"), source="scheduler", failure=failure)
    if message.kind not in ("killed", "exited", "out-of-memory") or message.signal == "SIGTERM":
        return None
    if message.exit_code in (0, REQUEUE_CODE, *CANCEL_CODES):
        return None
    number = next((n for n in message.tasks if not _explained(_rank(attempt, n))), None)
    if number is None:
        return None  # every rank it speaks of has said for itself how it ended
    rank = _rank(attempt, number)
    host = (rank.host if rank else None) or message.host
    if message.kind == "out-of-memory":
        step = rank.step if rank else None
        failure = Failure(
            kind="out-of-memory", rank=number, host=host, step=step, signal="SIGKILL", message=message.text
        )
    else:
        failure = _death(rank, number, host, message.signal, message.exit_code, records.log_tail, message.text)
    return Cause(t=float("inf"), source="scheduler", failure=failure)


def _death(
    rank: RankRecord | None,
    number: int | None,
    host: str | None,
    signal: str | None,
    code: int | None,
    log_tail: str,
    text: str | None = None,
) -> Failure:
    """A rank that ended without a word of its own."""
    if signal is not None:
        words = text or f"ended by {signal}"
        return Failure(
            kind="killed", rank=number, host=host, step=rank.step if rank else None, signal=signal, message=words
        )
    if rank is None or not rank.started:
        tail = f"\n{log_tail}" if log_tail else ""
        message = f"rank {number} ended with exit code {code} before it reported{tail}"
        return Failure(kind="never-started", rank=number, host=host, message=message)
    if code in (0, REQUEUE_CODE):
        what = "a final record" if code == 0 else "a request to be started again"
        message = f"rank {number} left with exit code {code} without {what}"
    else:
        message = f"rank {number} ended with exit code {code} without a failure record"
    return Failure(kind="unknown", rank=number, host=host, step=rank.step, message=message)


def _explained(rank: RankRecord | None) -> bool:
    return rank is not None and (rank.failure is not None or rank.final or rank.requeue is not None)


def _rank(attempt: AttemptRecord, number: int | None) -> RankRecord | None:
    return next((rank for rank in attempt.ranks if rank.rank == number), None)
