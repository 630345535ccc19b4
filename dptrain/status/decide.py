"""One truthful state from records and the scheduler's word: records of the ranks first, scheduler second.

`completed` needs the final record of every rank and all steps; nothing the scheduler says can replace them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dptrain.scheduler.query import JobInfo
from dptrain.status.causes import (
    Cause,
    first_cause,
    first_terminated,
    job_word_in_log,
    only_follower,
    sigterm_s,
    teardown_cause,
)
from dptrain.status.collect import AttemptRecord, RankRecord, RunRecords
from dptrain.status.ending import End, Job, Missing, job_of
from dptrain.status.model import Failure

SUBMITTING_S = 60.0
"""A local run without a supervisor for so long was left by the command that made it."""
SILENT_S = 30.0
"""Three missed heartbeats: a rank that is silent for less is not called stalled, whatever its limits."""


LATE_S = 30.0
"""What a node has written may appear so late elsewhere, where its file system is on a network."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The state, the first failure, and who says so."""

    state: str
    failure: Failure | None = None
    source: str = "records"
    reason: str | None = None
    over: bool = False


def decide(records: RunRecords, info: JobInfo | Missing, now: float, age_s: float = 0.0) -> Decision:
    """The state of one run.

    :param info: the scheduler's word; for a local run it is not looked at.
    :param now: seconds since the epoch.
    :param age_s: how old the scheduler's word is: a wait asks more rarely than it looks.
    """
    early = _before_submission(records, now)
    if early is not None:
        return early
    job = job_of(records, info)
    attempt = _attempt_of(records, job)
    # What is done stays so, whatever became of a job that was started once more.
    reported = records.latest if job.stage == "over" else attempt
    if reported is not None and all_done(records, reported):
        return _done(records, reported, job)
    if job.stage == "queued" and attempt is not None and _began_since(attempt, now - age_s):
        job = replace(job, stage="running", reason=None)
    if job.stage == "queued":
        return _queued(job, attempt, records.intent.asked_attempt)
    if attempt is None:
        attempt = AttemptRecord(number=max(job.attempt or 0, records.newest_number))
        if attempt.number > records.intent.first_attempt:
            records = records.of_later_attempt()
    if job.stage in ("running", "odd"):
        return _active(records, attempt, job, now)
    if job.stage == "unanswered":
        return _unanswered(records, attempt, job, now)
    return _ended(records, attempt, job, now)


def _before_submission(records: RunRecords, now: float) -> Decision | None:
    intent = records.intent
    if records.latest is not None and any(rank.started for rank in records.latest.ranks):
        return None
    if intent.submission == "dry-run":
        return Decision(state="never-submitted", source="intent", reason="dry run", over=True)
    if intent.submission == "refused":
        return Decision(state="never-submitted", source="intent", reason=intent.refusal or "refused", over=True)
    if intent.submission == "submitting" and records.latest is None:
        if intent.launcher == "local" and now - intent.created_s > SUBMITTING_S:
            reason = "the command that made the run ended before it started the ranks"
            return Decision(state="never-submitted", source="intent", reason=reason, over=True)
        return Decision(state="submitting", source="intent")
    return None


def _attempt_of(records: RunRecords, job: Job) -> AttemptRecord | None:
    """The attempt the job's word is about: none where it was started again and nobody has reported yet."""
    latest = records.latest
    # Who counts the starts may have forgotten the job.
    started_again = records.began_again or (latest is not None and (job.attempt or 0) > latest.number)
    return None if started_again else latest


def all_done(records: RunRecords, attempt: AttemptRecord) -> bool:
    """Whether every rank has a final record and made all steps."""
    done = {rank.rank for rank in attempt.ranks if rank.final and _all_steps(records, rank)}
    return all(rank in done for rank in range(records.intent.world_size)) and records.intent.world_size > 0


def _all_steps(records: RunRecords, rank: RankRecord) -> bool:
    return rank.step >= max(records.intent.steps, rank.steps or 0)


def _done(records: RunRecords, attempt: AttemptRecord, job: Job) -> Decision:
    over = job.stage in ("over", "unanswered")
    if attempt.cancelled_s is not None:
        # It came when all was done; what it ended had nothing left to do.
        return Decision(state="completed", reason="every rank had finished, although cancel was asked for", over=over)
    # Where SLURM says that all went well, the log is of something else.
    cause = first_cause(records, attempt) or (None if job.end == "success" else teardown_cause(records, attempt))
    if cause is not None:
        return _failed(cause, over=job.stage == "over")
    slurm = records.intent.launcher == "slurm"
    reason = f"its job has not ended yet: the {job.source} says {job.word}" if slurm and not over else None
    if job.stage == "over" and job.end in ("failed", "node-failure", "out-of-memory"):
        reason = f"every rank finished, but the {job.source} says {job.word}"
        if not slurm:
            failure = Failure(kind="unknown", message=reason)
            return Decision(state="failed: unknown", failure=failure, source=job.source, over=True)
        # Not a failure: SLURM forgets its word, and nothing else would tell of it then.
    return Decision(state="completed", reason=reason, over=over)


def _began_since(attempt: AttemptRecord, asked_s: float) -> bool:
    """Whether the attempt began after the scheduler was asked, and is not over."""
    began = [rank.started_s for rank in attempt.ranks if rank.started_s is not None]
    return bool(began) and min(began) > asked_s and not any(rank.requeue for rank in attempt.ranks)


def _queued(job: Job, attempt: AttemptRecord | None, asked: int) -> Decision:
    """
    :param asked: the attempt that a user asked for; a later one is the run's own doing.
    """
    again = (job.attempt or asked) > asked or (attempt is not None and any(rank.started for rank in attempt.ranks))
    return Decision(state="requeued" if again else "queued", source=job.source, reason=job.reason)


def _active(records: RunRecords, attempt: AttemptRecord, job: Job, now: float) -> Decision:
    cause = first_cause(records, attempt)
    if cause is not None and not _was_cancelled(records, attempt, job, cause):
        return _failed(cause, over=False)
    if any(rank.requeue for rank in attempt.ranks):
        return Decision(state="requeued", reason=next(r.requeue for r in attempt.ranks if r.requeue))
    started = {rank.rank for rank in attempt.ranks if rank.started}
    reason = "cancel was asked for" if attempt.cancelled_s is not None else job.reason
    if job.stage == "odd" and not started:
        return Decision(state="unknown", source=job.source, reason=job.reason)
    if len(started) < records.intent.world_size:
        return Decision(state="starting", source="records" if started else job.source, reason=reason)
    # In these stages the scheduler gives a reason only for what is suspended or odd: silence proves nothing then.
    silent = _silent_rank(records, attempt, now) if job.reason is None else None
    if silent is not None:
        failure = _silence(silent, now)
        return Decision(state="stalled", failure=failure, reason=failure.message)
    if reason is None and all(rank.phase == "setup" for rank in attempt.ranks):
        reason = "setting up"
    return Decision(state="running", reason=reason)


def _silent_rank(records: RunRecords, attempt: AttemptRecord, now: float) -> RankRecord | None:
    """The rank that has been silent longest, of those beyond their limit: its own watchdog cannot speak any more."""

    def limit_s(rank: RankRecord) -> float:
        return max(records.setup_timeout_s if rank.phase == "setup" else records.stall_timeout_s, SILENT_S)

    waiting = [r for r in attempt.ranks if not r.final and r.failure is None and r.last_seen_s is not None]
    silent = [r for r in waiting if now - (r.last_seen_s or now) > limit_s(r)]
    return min(silent, key=lambda r: r.last_seen_s or 0.0, default=None)


def _silence(rank: RankRecord, now: float) -> Failure:
    age_s = now - (rank.last_seen_s or now)
    message = f"rank {rank.rank} has written nothing for {age_s:.0f} s"
    return Failure(kind="stalled", rank=rank.rank, host=rank.host, step=rank.step, message=message)


def _unanswered(records: RunRecords, attempt: AttemptRecord, job: Job, now: float) -> Decision:
    """Nobody can be asked: the records alone, as far as they are fresh."""
    cause = first_cause(records, attempt)
    if _was_cancelled(records, attempt, job, cause):
        return Decision(state="cancelled")
    if cause is not None:
        return _failed(cause, over=False)
    newest_s = attempt.newest_s
    if newest_s is not None and now - newest_s <= SILENT_S:
        return _active(records, attempt, job, now)
    asked = (
        "the scheduler does not answer" if records.intent.launcher == "slurm" else "its host cannot be asked from here"
    )
    return Decision(state="unknown", source="none", reason=f"{asked}, and no rank has written lately")


def _ended(records: RunRecords, attempt: AttemptRecord, job: Job, now: float) -> Decision:
    cause = first_cause(records, attempt)
    # The scheduler's word on a lost node beats what the ranks say; the log's may be about an earlier attempt.
    lost = _job_end(records, job) == "node-failure"
    if lost and (job.end == "node-failure" or cause is None or not cause.has_clock):
        return _node_failure(records, attempt, job)
    if _was_cancelled(records, attempt, job, cause):
        source = job.source if job.end == "cancelled" else "records"
        return Decision(state="cancelled", source=source, reason=_who_was_ended(records, attempt, job), over=True)
    limit = _limit_state(records, job)
    if cause is not None and (limit is None or cause.has_clock):
        return _failed(_with_memory(cause, job), over=True)
    requeue = next((rank.requeue for rank in attempt.ranks if rank.requeue), None)
    if limit or requeue:
        reason = f"asked to be started again ({requeue}), and was not" if requeue else None
        return Decision(state=limit or requeue or "", source=job.source, reason=reason, over=True)
    return _missing(records, attempt, job, now)


def _was_cancelled(records: RunRecords, attempt: AttemptRecord, job: Job, cause: Cause | None) -> bool:
    ended = _job_end(records, job)
    if cause is not None and cause.has_clock:
        asked_s = attempt.cancelled_s if ended != "cancelled" else min_known(attempt.cancelled_s, sigterm_s(attempt))
        return asked_s is not None and asked_s <= cause.t
    if ended == "cancelled" or attempt.cancelled_s is not None:
        return True
    # SIGTERM also comes with the time limit, with a preemption, and to those who outlive a killed rank.
    return cause is None and _limit_state(records, job) is None and sigterm_s(attempt) is not None


def _who_was_ended(records: RunRecords, attempt: AttemptRecord, job: Job) -> str | None:
    """The rank that SIGTERM met first, where nobody is known to have cancelled the run."""
    rank = first_terminated(attempt)
    if rank is None or attempt.cancelled_s is not None or _job_end(records, job) == "cancelled":
        return None
    return f"rank {rank.rank} on {rank.host} was the first to get SIGTERM; no cancellation is on record"


def _job_end(records: RunRecords, job: Job) -> End | None:
    """How the job ended; from the batch log where the scheduler has forgotten it."""
    from_log: dict[str | None, End] = {
        "time-limit": "timed-out",
        "preempted": "preempted",
        "node-failure": "node-failure",
        "cancelled": "cancelled",
    }
    return from_log.get(job_word_in_log(records), job.end) if job.end == "forgotten" else job.end


def _limit_state(records: RunRecords, job: Job) -> str | None:
    ended = _job_end(records, job)
    return ended if ended in ("timed-out", "preempted") else None


def _node_failure(records: RunRecords, attempt: AttemptRecord, job: Job) -> Decision:
    said = [m for m in records.srun if m.kind == "node-failure"]
    host = next((m.host for m in said if m.host), None) or _silent_host(attempt)
    rank = min((r for r in attempt.ranks if host is not None and r.host == host), key=lambda r: r.rank, default=None)
    failure = Failure(
        kind="node-failure",
        rank=rank.rank if rank else None,
        host=host,
        step=rank.step if rank else None,
        message=said[0].text if said else f"the scheduler says {job.word}",
    )
    return Decision(state="failed: node-failure", failure=failure, source="scheduler", over=True)


def _silent_host(attempt: AttemptRecord) -> str | None:
    """The only host whose ranks have left without a last word."""
    hosts = {rank.host for rank in attempt.ranks if rank.failure is None and not rank.final}
    return hosts.pop() if len(hosts) == 1 else None


def _with_memory(cause: Cause, job: Job) -> Cause:
    """A rank killed by SIGKILL in a job that the scheduler calls out of memory was killed for its memory."""
    if job.end != "out-of-memory" or cause.failure.kind not in ("killed", "unknown"):
        return cause
    old = cause.failure
    failure = Failure(
        kind="out-of-memory",
        rank=old.rank,
        host=old.host,
        step=old.step,
        signal=old.signal,
        message=f"{old.message} ({job.word})",
    )
    return Cause(t=cause.t, failure=failure, source=cause.source)


def _missing(records: RunRecords, attempt: AttemptRecord, job: Job, now: float) -> Decision:
    """Nothing is known to have failed, and yet something is missing: say what."""
    follower = only_follower(attempt)
    if follower is not None:
        return _failed(follower, over=True)
    rank = _first_missing(records, attempt)
    if job.end == "success" and not (records.setup_failure and not rank.started):
        if job.ended_s is not None and abs(now - job.ended_s) < LATE_S:
            reason = f"the job has ended, waiting for its files: {_what_is_missing(records, rank)}"
            return Decision(state="running", source=job.source, reason=reason)
        failure = Failure(
            kind="incomplete", rank=rank.rank, host=rank.host, step=rank.step, message=_what_is_missing(records, rank)
        )
        return Decision(state="incomplete", failure=failure, source="records", over=True)
    if not rank.started:
        return Decision(
            state=f"failed: {_start_kind(records)}",
            failure=_never_started(records, rank, job),
            source=job.source,
            reason=job.reason,
            over=True,
        )
    if job.end == "supervisor-gone":
        message = "the process that started the ranks is gone without a word: killed, or the machine was restarted"
        failure = Failure(kind="killed", step=rank.step, message=f"{message}; {_what_is_missing(records, rank)}")
    else:
        kind = "out-of-memory" if job.end == "out-of-memory" else "unknown"
        message = f"the {job.source} says {job.word}; {_what_is_missing(records, rank)}"
        failure = Failure(kind=kind, rank=rank.rank, host=rank.host, step=rank.step, message=message)
    return Decision(state=f"failed: {failure.kind}", failure=failure, source=job.source, reason=job.reason, over=True)


def _first_missing(records: RunRecords, attempt: AttemptRecord) -> RankRecord:
    by_rank = {rank.rank: rank for rank in attempt.ranks}
    every = [by_rank.get(n, RankRecord(rank=n)) for n in range(max(records.intent.world_size, 1))]
    lacking = [rank for rank in every if not (rank.final and _all_steps(records, rank))]
    silent = [rank for rank in lacking if not rank.started]
    return (silent or lacking or every)[0]


def _what_is_missing(records: RunRecords, rank: RankRecord) -> str:
    if not rank.started:
        return f"rank {rank.rank} never reported"
    what = "stopped" if rank.final else "has no final record, and stopped"
    return f"rank {rank.rank} {what} at step {rank.step} of {max(records.intent.steps, rank.steps or 0)}"


def _start_kind(records: RunRecords) -> str:
    return "setup" if records.setup_failure else "never-started"


def _never_started(records: RunRecords, rank: RankRecord, job: Job) -> Failure:
    if records.setup_failure is not None:
        code, line = records.setup_failure
        how = "failed" if code else "ended the script before any rank"
        return Failure(kind="setup", message=f"a setup line of the cluster profile {how} with exit code {code}: {line}")
    empty = "" if job.reason else "; its log is empty"
    tail = f"; the last lines of its log:\n{records.log_tail}" if records.log_tail else empty
    message = f"rank {rank.rank} never reported, and the {job.source} says {job.word}{tail}"
    return Failure(kind="never-started", rank=rank.rank, message=message)


def _failed(cause: Cause, *, over: bool) -> Decision:
    kind = cause.failure.kind
    if kind in ("timed-out", "preempted"):  # the rank says that no restart is left
        return Decision(state=kind, failure=cause.failure, source=cause.source, reason=cause.failure.message, over=over)
    return Decision(state=f"failed: {kind}", failure=cause.failure, source=cause.source, over=over)


def min_known(*values: float | None) -> float | None:
    """The smallest of those that are known."""
    return min((v for v in values if v is not None), default=None)
