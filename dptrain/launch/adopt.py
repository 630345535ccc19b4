"""Runs whose command was killed while it submitted them: their jobs are looked for, so that none is submitted twice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from dptrain.errors import StateUnknown
from dptrain.launch.locks import run_is_held, sweep_holder
from dptrain.launch.slurm import note_job
from dptrain.records.intent import Intent, read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.commands import NoAnswer
from dptrain.scheduler.query import find_by_comments, query_jobs

SUBMITTING_S = 300.0
"""A submission takes at most so long: sbatch's limit, and the looks that follow it."""
LOST = "the command that made the run ended before it was submitted"


def confirm(runs: Sequence[RunPaths]) -> None:
    """Note the jobs of unconfirmed runs, as far as SLURM or their batch logs know any: their ranks wait a minute for that.

    For anyone, at any time: that there is no job is never noted here. Nothing where nobody answers or the files are someone else's.
    """
    with suppress(NoAnswer, OSError, ValueError):
        _noted({paths: read_intent(paths) for paths in runs})


def _noted(lost: Mapping[RunPaths, Intent]) -> dict[RunPaths, str]:
    """The ids of the jobs that were found of unconfirmed runs, and that their intents name from now on.

    :raises NoAnswer: where the controller does not answer.
    """
    jobs = find_by_comments(intent.comment for intent in lost.values() if intent.comment is not None)
    found = {paths: jobs.get(intent.comment or "") or _in_log(paths, intent) for paths, intent in lost.items()}
    return {paths: note_job(paths, job_id) for paths, job_id in found.items() if job_id is not None}


def _in_log(paths: RunPaths, intent: Intent) -> str | None:
    """The job that wrote a batch log since this submission, which the controller may have forgotten."""
    home = paths if intent.array is None else RunPaths(paths.dir.parent / intent.array)
    asked_s = paths.intent.stat().st_mtime
    logs = [log for log in home.batch_log.glob("batch-*.log") if log.is_file() and log.stat().st_mtime >= asked_s]
    ids = {log.stem.removeprefix("batch-").split("_")[0] for log in logs}
    return max((i for i in ids if i.isdecimal()), key=int, default=None)


def left_behind(paths: RunPaths, intent: Intent, sweep: str) -> bool:
    """Whether an unconfirmed run was left by a command that is gone: none that could be submitting it now is there.

    :param sweep: the sweep whose lock the caller holds.
    """
    if run_is_held(paths):  # by `resume`
        return False
    if intent.sweep is None:  # `train` and `infer` hold no lock
        return time.time() - intent.created_s > SUBMITTING_S
    return intent.sweep == sweep or sweep_holder(paths.dir.parent, intent.sweep) is None


def adopt(runs: Sequence[RunPaths]) -> list[RunPaths]:
    """Find the jobs of runs whose submission was not confirmed; those that have none are noted as never submitted.

    Only for a caller that knows that nobody is submitting them now: one that holds the lock of their sweep, or of the run.

    :param runs: others than unconfirmed ones are left alone.
    :return: those that have a job, which their intents now name.
    :raises StateUnknown: where the controller does not answer.
    """
    intents = {paths: read_intent(paths) for paths in runs}
    lost = {paths: intent for paths, intent in intents.items() if intent.unconfirmed}
    try:
        ids = _noted(lost)
    except NoAnswer as error:
        names = ", ".join(paths.run_id for paths in lost)
        raise StateUnknown(f"{names}: a job may exist, and squeue does not answer: {error}") from None
    known = query_jobs(ids.values())
    found = []
    for paths, intent in lost.items():
        started = bool(paths.attempt(intent.first_attempt).ranks())
        job = known.get(ids.get(paths, ""))
        # The controller forgets only what has ended. The ranks of a job that began without its call wait for it for a minute.
        over = job.finished if job is not None else known.answered
        in_vain = paths in ids and over and not started
        if paths in ids and not in_vain:
            found.append(paths)
        elif not started:  # otherwise there was a job, and the controller has forgotten it
            update_intent(paths, submission="refused", job_id=None, refusal=LOST)
    return found
