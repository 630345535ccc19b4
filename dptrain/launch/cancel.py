"""Ends runs: notes who asked, asks whoever started the ranks, and says what is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence

from dptrain.errors import DptrainError, StateUnknown, UsageError
from dptrain.launch.adopt import SUBMITTING_S, adopt
from dptrain.launch.local import rank_pids, supervisor_alive
from dptrain.launch.slurm import note_job
from dptrain.records.events import append_event
from dptrain.records.intent import Intent, read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.reading import problem_of
from dptrain.scheduler.commands import NoAnswer, run_command
from dptrain.scheduler.query import find_by_comment, query_jobs

MOST_IDS = 100
"""Jobs of one call of scancel."""
LOCAL_WAIT_S = 25.0
"""The supervisor gives the ranks 10 s between SIGTERM and SIGKILL."""


def cancel(paths: RunPaths) -> str:
    """End one run; see `cancel_all`.

    :raises UsageError: for a run that was never submitted, or a local run of another host.
    :raises StateUnknown: where the scheduler does not answer, or the run's files cannot be read.
    """
    (answer,) = cancel_all([paths])
    if isinstance(answer, DptrainError):
        raise answer
    return answer


def cancel_all(runs: Sequence[RunPaths]) -> list[str | DptrainError]:
    """End any number of runs; for each one message that says what was done, or the error that says why it was not.

    SLURM is asked once which of the jobs still run, and once for every hundred of them to end them.
    """
    answers: dict[RunPaths, str | DptrainError] = {}
    jobs: dict[RunPaths, Intent] = {}
    for paths in runs:
        try:
            intent = read_intent(paths)
            if intent.unconfirmed:
                intent = _found(paths, intent)
            if intent.job_id is None:
                raise UsageError(f"{intent.run} has no job ({intent.submission}): there is nothing to cancel")
            if intent.launcher == "slurm":
                jobs[paths] = intent
            else:
                answers[paths] = _cancel_local(paths, intent)
        except (OSError, ValueError) as error:
            answers[paths] = _unreadable(paths, error)
        except DptrainError as error:
            answers[paths] = error
    answers |= _cancel_slurm(jobs)
    return [answers[paths] for paths in runs]


def _found(paths: RunPaths, intent: Intent) -> Intent:
    """With the job of a submission that nobody has confirmed; without one where it is noted now that there is none.

    :raises StateUnknown: where none is found of one so young that it may still be on its way.
    """
    if time.time() - paths.intent.stat().st_mtime > SUBMITTING_S:
        adopt([paths])
        return read_intent(paths)
    mark = intent.comment or ""
    try:
        job_id = find_by_comment(mark) if mark else None
    except NoAnswer as error:
        raise StateUnknown(
            f"{intent.run}: its submission was not confirmed, and squeue does not answer: {error}"
        ) from None
    if job_id is None:
        raise StateUnknown(
            f"{intent.run}: its submission was not confirmed, and no job of it is found; it may be on its way\n"
            "    look: squeue --me --Format=JobID,Comment:80"
        )
    note_job(paths, job_id)
    return read_intent(paths)


def _unreadable(paths: RunPaths, error: Exception) -> StateUnknown:
    return StateUnknown(
        f"{paths.run_id} was not cancelled: {problem_of(error, paths.dir)}\n"
        f"    the job, if it still runs, is known to `squeue --me`, or by its folder: pgrep -af {paths.run_id}"
    )


def _note(paths: RunPaths, intent: Intent) -> None:
    # Not before the job's own: what lies there is about an earlier job of the run.
    attempt = paths.attempt(max([intent.first_attempt, *paths.attempts()]))
    attempt.dir.mkdir(parents=True, exist_ok=True)
    append_event(attempt.launcher_events, "cancel", by="dptrain cancel")


def _cancel_slurm(intents: Mapping[RunPaths, Intent]) -> dict[RunPaths, str | DptrainError]:
    answers: dict[RunPaths, str | DptrainError] = {}
    # scancel says nothing of a job that has ended, and nobody may note a cancellation of one.
    jobs = query_jobs(str(intent.job_id) for intent in intents.values())
    going: dict[RunPaths, Intent] = {}
    for paths, intent in intents.items():
        job_id = str(intent.job_id)
        if jobs.answered and (job_id not in jobs or jobs[job_id].finished):
            answers[paths] = f"{intent.run}: job {job_id} had already ended"
            continue
        try:
            _note(paths, intent)
        except OSError as error:
            answers[paths] = _unreadable(paths, error)
            continue
        going[paths] = intent
    every = list(going.items())
    for part in (every[i : i + MOST_IDS] for i in range(0, len(every), MOST_IDS)):
        problem = _scancel([str(intent.job_id) for _, intent in part])
        for paths, intent in part:
            job = f"job {intent.job_id}"
            done = f"{intent.run}: asked SLURM to cancel {job}"
            answers[paths] = done if problem is None else StateUnknown(f"{intent.run}: {job} may still run: {problem}")
    return answers


def _scancel(job_ids: Sequence[str]) -> str | None:
    """None where SLURM took it, else why not."""
    try:
        answer = run_command(["scancel", *job_ids])
    except NoAnswer as error:
        return str(error)
    return None if answer.exit_code == 0 else answer.words


def _cancel_local(paths: RunPaths, intent: Intent) -> str:
    state = supervisor_alive(paths)
    if state == "unknown":
        raise UsageError(f"{intent.run} runs on {intent.host}: cancel it there")
    if state == "gone":
        left = rank_pids(paths)
        return f"{intent.run} had already ended" + (f"; still there: {_processes(left)}" if left else "")
    _note(paths, intent)
    os.kill(int(str(intent.job_id)), signal.SIGTERM)
    deadline = time.monotonic() + LOCAL_WAIT_S
    while time.monotonic() < deadline and (supervisor_alive(paths) == "alive" or rank_pids(paths)):
        time.sleep(0.1)
    left = rank_pids(paths)
    if supervisor_alive(paths) == "alive":
        left.insert(0, int(str(intent.job_id)))
    done = "had done all its steps" if paths.result.is_file() else "cancelled"
    return f"{intent.run}: {done}" + (f"; still there after {LOCAL_WAIT_S:.0f} s: {_processes(left)}" if left else "")


def _processes(pids: list[int]) -> str:
    return "processes " + ", ".join(map(str, pids))
