"""`run_status`: one truthful line per run, from its records and one call of the scheduler. Writes nothing, but the job of a run whose
command was killed before it could note it.

Where a job is forgotten and the run's own records do not say how it ended, accounting is asked, once for all such runs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from dptrain.records.intent import Intent
from dptrain.records.paths import RunPaths
from dptrain.records.reading import problem_of
from dptrain.records.saves import long_save
from dptrain.scheduler.accounting import keep, kept, query_accounting
from dptrain.scheduler.query import JobInfo, QueueAnswer, query_jobs
from dptrain.status.causes import first_cause, only_follower
from dptrain.status.collect import AttemptRecord, RankRecord, RunRecords, read_run, seconds_of, text_of
from dptrain.status.decide import Decision, all_done, decide
from dptrain.status.ending import Missing
from dptrain.status.model import RankStatus, RunStatus, first_word
from dptrain.status.versions import mismatches

NEWEST_STEPS = 50
"""Step time is the median of so many steps: early ones include warming up."""
TEARDOWN_S = 660.0
"""A job whose ranks are all done is asked about until their newest record is so old: the ranks' own limit for their end, and the
minute that srun leaves them. A rank that hangs and still lives writes heartbeats."""
ACCOUNTED_S = 7 * 86400.0
"""What accounting does not know of a run this old it will never know."""
CONFIRMED_S = 10.0
"""sbatch answers within seconds: a submission that took longer is looked for."""
SOONEST_S = 1.0
"""The scheduler is not asked more often than this, whatever has just ended."""


class Scheduler:
    """The scheduler's last answer, asked for again when it is older than `interval_s`: one call for all runs."""

    def __init__(self, interval_s: float = 10.0, *, confirms: bool = True) -> None:
        """
        :param confirms: have unconfirmed jobs noted; not for who judges of them, or writes nothing.
        """
        self.interval_s = interval_s
        self.calls = 0
        self._asked_s = float("-inf")
        self._ids: frozenset[str] = frozenset()
        self._answer = QueueAnswer()
        self._accounted: dict[str, JobInfo | None] = {}
        self._account_again_s = float("-inf")
        self._confirm_again_s = float("-inf") if confirms else float("inf")

    def jobs(self, job_ids: Sequence[str], within_s: float = math.inf) -> QueueAnswer:
        """What the scheduler knows of these jobs; without any, nothing is asked.

        :param within_s: an older answer is of no use.
        """
        wanted = frozenset(job_ids)
        if not wanted:
            return QueueAnswer()
        fresh = time.monotonic() - self._asked_s < min(self.interval_s, max(SOONEST_S, within_s))
        if not (fresh and wanted <= self._ids):
            self._answer = query_jobs(sorted(wanted))
            self.calls += 1
            self._asked_s, self._ids = time.monotonic(), wanted
        return self._answer

    def forgotten(self, runs: Mapping[str, Intent]) -> dict[str, JobInfo]:
        """What accounting says of jobs that the controller has forgotten: asked for once, since it does not change any more.

        Where nobody answers, it is asked again, as rarely as the controller is.

        :param runs: by job id.
        """
        new = {job_id: intent for job_id, intent in runs.items() if job_id not in self._accounted}
        if new and time.monotonic() >= self._account_again_s:
            self._accounted |= kept({job_id: intent.run for job_id, intent in new.items()})
            self._account({job_id: intent for job_id, intent in new.items() if job_id not in self._accounted})
        return {job_id: known for job_id in runs if (known := self._accounted.get(job_id)) is not None}

    def _account(self, runs: Mapping[str, Intent]) -> None:
        if not runs:
            return
        answer = query_accounting(runs)
        self.calls += 1
        if answer is None:
            self._account_again_s = time.monotonic() + self.interval_s
            return
        self._accounted |= {job_id: answer.get(job_id) for job_id in runs}
        old_s = time.time() - ACCOUNTED_S
        keep({i: run.run for i, run in runs.items() if i in answer or run.created_s < old_s}, answer)

    def confirm(self, runs: Sequence[RunPaths]) -> bool:
        """Have the jobs of unconfirmed submissions noted where SLURM knows them; whether anybody was asked."""
        if not runs or time.monotonic() < self._confirm_again_s:
            return False
        from dptrain.launch.adopt import confirm

        confirm(runs)
        self.calls += 1
        self._confirm_again_s = time.monotonic() + self.interval_s
        return True

    @property
    def age_s(self) -> float:
        """Age of the answer."""
        return max(0.0, time.monotonic() - self._asked_s) if math.isfinite(self._asked_s) else 0.0


def run_status(runs: Sequence[RunPaths], scheduler: Scheduler | None = None) -> list[RunStatus]:
    """The status of every run, in the order given.

    :param scheduler: keeps the scheduler's answer between calls; default: ask now.
    """
    scheduler = scheduler or Scheduler()
    read = [(paths, _read(paths)) for paths in runs]
    if scheduler.confirm(lost := [paths for paths, r in read if isinstance(r, RunRecords) and _is_lost(paths, r)]):
        read = [(paths, _read(paths) if paths in lost else r) for paths, r in read]
    now = time.time()
    asked = [r for _, r in read if isinstance(r, RunRecords) and _must_ask(r, now)]
    done_s = [_done_for_s(r, now) for r in asked]
    # Not while others still work: of a long sweep some member has always just ended.
    within_s = min(done_s) / 2 if done_s and max(done_s) < math.inf else math.inf
    answer = scheduler.jobs([r.intent.job_id for r in asked if r.intent.job_id is not None], within_s)
    now = time.time()
    untold = {i: r.intent for r in asked if (i := _untold(r, answer, now))}
    accounted = scheduler.forgotten(untold)
    return [
        _status(paths, r, accounted.get(r.intent.job_id or "", _info(r.intent, answer)), scheduler.age_s, now)
        if isinstance(r, RunRecords)
        else _unreadable(paths, r)
        for paths, r in read
    ]


def _is_lost(paths: RunPaths, records: RunRecords) -> bool:
    """Whether the run's submission should have been confirmed by now."""
    if not records.intent.unconfirmed:
        return False
    with suppress(OSError):
        return time.time() - paths.intent.stat().st_mtime > CONFIRMED_S
    return False


def _untold(records: RunRecords, answer: Mapping[str, JobInfo], now: float) -> str | None:
    """The job of a run of which nothing is known but that the controller has forgotten it."""
    if _info(records.intent, answer) != "forgotten":
        return None
    failure = decide(records, "forgotten", now).failure
    return records.intent.job_id if failure is not None and failure.kind in ("unknown", "never-started") else None


def _read(paths: RunPaths) -> RunRecords | str:
    try:
        return read_run(paths)
    except (OSError, ValueError) as error:
        return problem_of(error, paths.dir)


def _must_ask(records: RunRecords, now: float) -> bool:
    """Whether the scheduler may know more: not of a run whose ranks were done so long ago that the job is gone too."""
    intent = records.intent
    if intent.launcher != "slurm" or intent.submission in ("refused", "dry-run"):
        return False
    return not TEARDOWN_S <= _done_for_s(records, now) < math.inf


def _done_for_s(records: RunRecords, now: float) -> float:
    """For how long all ranks have been done; infinite where they are not.

    A wait asks after half of that: at once, and then ever more rarely whether the job has gone as well.
    """
    latest = records.latest
    if latest is None or latest.newest_s is None or not all_done(records, latest):
        return math.inf
    return max(0.0, now - latest.newest_s)


def _info(intent: Intent, answer: Mapping[str, JobInfo]) -> JobInfo | Missing:
    if intent.job_id is None or (isinstance(answer, QueueAnswer) and not answer.answered):
        return "unanswered"
    return answer.get(intent.job_id, "forgotten")


def _status(paths: RunPaths, records: RunRecords, info: JobInfo | Missing, asked_s: float, now: float) -> RunStatus:
    decision = decide(records, info, now, asked_s)
    intent, latest = records.intent, records.latest
    shown = _attempt_with_steps(records)
    step = min((rank.step for rank in shown.ranks), default=0) if shown else 0
    steps = max([intent.steps, *(rank.steps or 0 for rank in (shown.ranks if shown else ()))])
    step_time_s = _step_time(shown)
    running = first_word(decision.state) in ("running", "starting", "stalled")
    ranks = latest.ranks if latest else ()
    restarts = info.restarts if isinstance(info, JobInfo) else 0
    attempt = max(records.newest_number, restarts + intent.first_attempt)
    return RunStatus(
        run=paths.run_id,
        state=decision.state,
        failure=decision.failure,
        reason=decision.reason,
        over=decision.over,
        step=step,
        steps=steps,
        attempt=attempt,
        world_size=intent.world_size,
        job_id=intent.job_id,
        source=decision.source,
        age_s=round(_age(records, decision, asked_s, now), 1),
        step_time_s=step_time_s,
        setup_s=_setup_time(shown),
        eta_s=round((steps - step) * step_time_s, 1) if running and step_time_s is not None and steps >= step else None,
        peak_memory_bytes=_peak(records),
        psnr_db=next((r.psnr_db for r in (shown.ranks if shown else ()) if r.psnr_db is not None), None),
        loss=next((r.loss for r in (shown.ranks if shown else ()) if r.loss is not None), None),
        run_dir=str(paths.dir),
        task=intent.task,
        launcher=intent.launcher,
        created_s=intent.created_s,
        history=tuple(
            _how_it_ended(a, records) for a in records.attempts if a.number < attempt and a.newest_s is not None
        ),
        warnings=tuple(_warnings(records)),
        ranks=_rank_statuses(intent.world_size, {r.rank: r for r in ranks}, decision, now),
        faults=intent.faults,
        path=_path(shown.ranks if shown else ()),
    )


def _path(ranks: Sequence[RankRecord]) -> tuple[float, ...]:
    """The PSNR of the first rank that reports one, else the loss."""
    paths = (*(rank.psnr_path_db for rank in ranks), *(rank.loss_path for rank in ranks))
    return next((path for path in paths if path), ())


def _unreadable(paths: RunPaths, why: str) -> RunStatus:
    return RunStatus(
        run=paths.run_id,
        state="unknown",
        failure=None,
        reason=why,
        over=False,
        step=0,
        steps=0,
        attempt=1,
        world_size=0,
        job_id=None,
        source="none",
        age_s=0.0,
        step_time_s=None,
        eta_s=None,
        peak_memory_bytes=None,
        psnr_db=None,
        loss=None,
        run_dir=str(paths.dir),
        task="",
        launcher="",
        created_s=0.0,
        history=(),
        warnings=(),
        ranks=(),
    )


def _attempt_with_steps(records: RunRecords) -> AttemptRecord | None:
    """The newest attempt that has made a step: a restarted run keeps showing how far it was."""
    return next((a for a in reversed(records.attempts) if any(r.step for r in a.ranks)), records.latest)


def _peak(records: RunRecords) -> int | None:
    """Of all attempts since the run was last asked for: the newest may have made no step yet, or none at all."""
    ranks = [r for a in records.attempts if a.number >= records.intent.asked_attempt for r in a.ranks]
    return max((r.peak_memory_bytes for r in ranks if r.peak_memory_bytes is not None), default=None)


def _step_time(attempt: AttemptRecord | None) -> float | None:
    medians = [
        statistics.median(r.step_times_s[-NEWEST_STEPS:]) for r in (attempt.ranks if attempt else ()) if r.step_times_s
    ]
    return round(max(medians), 6) if medians else None


def _age(records: RunRecords, decision: Decision, asked_s: float, now: float) -> float:
    if decision.source in ("scheduler", "accounting"):
        return asked_s
    newest_s = records.latest.newest_s if records.latest else None
    return max(0.0, now - (newest_s if newest_s is not None else records.intent.created_s))


def _setup_time(attempt: AttemptRecord | None) -> float | None:
    """Seconds from the launch to the end of the slowest rank's set-up."""
    if attempt is None:
        return None
    began_s = seconds_of(attempt.launched or {}, "t") or attempt.started_s
    ready_s = max((rank.ready_s for rank in attempt.ranks if rank.ready_s is not None), default=None)
    return None if began_s is None or ready_s is None else max(0.0, ready_s - began_s)


def _how_it_ended(attempt: AttemptRecord, records: RunRecords) -> str:
    """One line about an earlier attempt. Of one that the scheduler cut short, what its ranks say is only what followed."""
    step = max((rank.step for rank in attempt.ranks), default=0)
    requeue = next((rank.requeue for rank in attempt.ranks if rank.requeue), None)
    how = requeue or _cut_short(attempt, records)
    if how is None:
        # What srun says in the log that was read is about the newest job.
        cause = first_cause(replace(records, srun=(), log_tail=""), attempt) or only_follower(attempt)
        if cause is not None:
            how, step = cause.failure.kind, step if cause.failure.step is None else cause.failure.step
        elif any(rank.failure is not None for rank in attempt.ranks):
            how = "cancelled"
        else:
            how = "done" if attempt.ranks and all(rank.final for rank in attempt.ranks) else "no last record"
    return f"attempt {attempt.number}: {how} at step {step}"


def _cut_short(attempt: AttemptRecord, records: RunRecords) -> str | None:
    """Why the scheduler ended the attempt; None where it did not, or where nobody knows."""
    later = [a.started_s for a in records.attempts if a.number > attempt.number and a.started_s is not None]
    # The log's times are of whole seconds.
    begin, end = (attempt.started_s or 0.0) - 1, min(later, default=float("inf"))
    return next((why for when, why in records.cut_short if begin <= when <= end), None)


def _warnings(records: RunRecords) -> Iterator[str]:
    """What will become a problem."""
    saves = [rank.save_s for attempt in records.attempts for rank in attempt.ranks if rank.save_s is not None]
    if saves and records.signal_lead_s is not None and (text := long_save(max(saves), records.signal_lead_s)):
        yield text
    yield from mismatches(records.latest.ranks if records.latest else ())


def _rank_statuses(
    world_size: int, ranks: Mapping[int, RankRecord], decision: Decision, now: float
) -> tuple[RankStatus, ...]:
    numbers = sorted({*range(world_size), *ranks})
    return tuple(
        _rank_status(ranks[n], decision, now) if n in ranks else RankStatus(rank=n, state="never-reported")
        for n in numbers
    )


def _rank_status(rank: RankRecord, decision: Decision, now: float) -> RankStatus:
    ended = decision.over or first_word(decision.state) == "requeued"
    state = ("gone" if ended else "running") if rank.started else "never-reported"
    if rank.failure is not None:
        kind = text_of(rank.failure, "class") or "unknown"
        state = "cancelled" if kind == "cancelled" else f"failed: {kind}"
        state += " (secondary)" if rank.failure.get("secondary") else ""
    elif rank.final:
        state = "done"
    elif decision.failure is not None and decision.failure.rank == rank.rank and decision.state != "stalled":
        state = f"failed: {decision.failure.kind}"
    return RankStatus(
        rank=rank.rank,
        state=state,
        host=rank.host,
        pid=rank.pid,
        phase=rank.phase,
        step=rank.step,
        last_seen_s=None if rank.last_seen_s is None else round(max(0.0, now - rank.last_seen_s), 1),
        peak_memory_bytes=rank.peak_memory_bytes,
        bytes_sent=rank.bytes_sent,
        device=rank.device,
        versions=rank.versions,
        message=next(iter((text_of(rank.failure or {}, "message") or "").strip().splitlines()), None),
    )
