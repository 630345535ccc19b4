"""Ends a run: notes who asked, asks whoever started the ranks, and says what is left."""

from __future__ import annotations

import os
import signal
import time

from dptrain.errors import StateUnknown, UsageError
from dptrain.launch.local import rank_pids, supervisor_alive
from dptrain.records.events import append_event
from dptrain.records.intent import Intent, read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.reading import problem_of
from dptrain.scheduler.commands import NoAnswer, run_command
from dptrain.scheduler.query import query_jobs

LOCAL_WAIT_S = 25.0
"""The supervisor gives the ranks 10 s between SIGTERM and SIGKILL."""


def cancel(paths: RunPaths) -> str:
    """End the run; one message that says what was done.

    :raises UsageError: for a run that was never submitted, or a local run of another host.
    :raises StateUnknown: where the scheduler does not answer, or the run's files cannot be read.
    """
    try:
        return _cancel(paths)
    except (OSError, ValueError) as error:
        raise StateUnknown(
            f"{paths.run_id} was not cancelled: {problem_of(error, paths.dir)}\n"
            f"    the job, if it still runs, is known to `squeue --me`, or by its folder: pgrep -af {paths.run_id}"
        ) from None


def _cancel(paths: RunPaths) -> str:
    intent = read_intent(paths)
    if intent.job_id is None:
        raise UsageError(f"{intent.run} was never submitted ({intent.submission}): there is nothing to cancel")
    return _cancel_slurm(paths, intent) if intent.launcher == "slurm" else _cancel_local(paths, intent)


def _note(paths: RunPaths, intent: Intent) -> None:
    # Not before the job's own: what lies there is about an earlier job of the run.
    attempt = paths.attempt(max([intent.first_attempt, *paths.attempts()]))
    attempt.dir.mkdir(parents=True, exist_ok=True)
    append_event(attempt.launcher_events, "cancel", by="dptrain cancel")


def _cancel_slurm(paths: RunPaths, intent: Intent) -> str:
    job_id = str(intent.job_id)
    # scancel says nothing of a job that has ended, and nobody may note a cancellation of one.
    jobs = query_jobs([job_id])
    if jobs.answered and (job_id not in jobs or jobs[job_id].finished):
        return f"{intent.run}: job {job_id} had already ended"
    _note(paths, intent)
    try:
        answer = run_command(["scancel", job_id])
    except NoAnswer as error:
        raise StateUnknown(f"{intent.run}: job {job_id} may still run: {error}") from None
    if answer.exit_code != 0:
        raise StateUnknown(f"{intent.run}: job {job_id} may still run: {answer.words}")
    return f"{intent.run}: asked SLURM to cancel job {job_id}"


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
    return f"{intent.run}: cancelled" + (
        f"; still there after {LOCAL_WAIT_S:.0f} s: {_processes(left)}" if left else ""
    )


def _processes(pids: list[int]) -> str:
    return "processes " + ", ".join(map(str, pids))
