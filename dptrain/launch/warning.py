"""Sends a run what a scheduler sends before it takes the nodes away: the warning on which it saves and asks to be started again."""

from __future__ import annotations

import os
import signal

from dptrain.errors import StateUnknown
from dptrain.launch.local import rank_pids
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.commands import NoAnswer, run_command


def warn(paths: RunPaths) -> None:
    """Warn a run that makes steps: through the scheduler, which reaches every rank, or one rank of a local run.

    :raises StateUnknown: where the scheduler does not do it, or no rank is there any more.
    """
    intent = read_intent(paths)
    if intent.launcher == "local":
        pids = rank_pids(paths)
        if not pids:
            raise StateUnknown(f"{paths.run_id}: no rank is there to be warned")
        os.kill(pids[-1], signal.SIGUSR2)
        return
    try:
        answer = run_command(["scancel", "--signal=USR2", str(intent.job_id)])
    except NoAnswer as error:
        raise StateUnknown(f"{paths.run_id}: job {intent.job_id} was not warned: {error}") from None
    if answer.exit_code != 0:
        raise StateUnknown(f"{paths.run_id}: job {intent.job_id} was not warned: {answer.words}")
