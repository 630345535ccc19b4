"""Runs whose command was killed while it submitted them: their jobs are looked for, so that none is submitted twice."""

from __future__ import annotations

from collections.abc import Sequence

from dptrain.errors import StateUnknown
from dptrain.launch.slurm import note_job
from dptrain.records.intent import Intent, read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.commands import NoAnswer
from dptrain.scheduler.query import find_by_comments

LOST = "the command that made the run ended before it was submitted"


def unconfirmed(intent: Intent) -> bool:
    """Whether it is not known if the run has a job."""
    return intent.launcher == "slurm" and intent.submission == "submitting" and intent.job_id is None


def adopt(runs: Sequence[RunPaths]) -> list[RunPaths]:
    """Find the jobs of runs whose submission was not confirmed; those that have none are noted as never submitted.

    Only for a caller that knows that nobody is submitting them now: one that holds the lock of their sweep, or of the run.

    :param runs: others than unconfirmed ones are left alone.
    :return: those that have a job, which their intents now name.
    :raises StateUnknown: where the controller does not answer.
    """
    intents = {paths: read_intent(paths) for paths in runs}
    lost = {paths: intent for paths, intent in intents.items() if unconfirmed(intent)}
    try:
        jobs = find_by_comments(intent.comment for intent in lost.values() if intent.comment is not None)
    except NoAnswer as error:
        names = ", ".join(paths.run_id for paths in lost)
        raise StateUnknown(f"{names}: a job may exist, and squeue does not answer: {error}") from None
    found = [paths for paths, intent in lost.items() if intent.comment in jobs]
    for paths, intent in lost.items():
        if paths in found:
            note_job(paths, jobs[str(intent.comment)])
        elif not paths.attempt(
            intent.first_attempt
        ).ranks():  # otherwise there was one, and the controller has forgotten it
            update_intent(paths, submission="refused", refusal=LOST)
    return found
