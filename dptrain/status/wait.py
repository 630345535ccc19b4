"""Waiting for runs to end: their records every half second, the scheduler every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dptrain.errors import WaitTimeout
from dptrain.records.paths import RunPaths
from dptrain.status.model import RunStatus
from dptrain.status.state import Scheduler, run_status

POLL_S = 0.5
SCHEDULER_S = 10.0
"""No faster: every waiting command of every user asks the same controller."""

Update = Callable[[list[RunStatus]], None]


def wait_for(
    runs: Sequence[RunPaths],
    *,
    timeout_s: float | None = None,
    on_update: Update | None = None,
    scheduler: Scheduler | None = None,
) -> list[RunStatus]:
    """Return the last status of every run once all have ended.

    :param on_update: called with all statuses after every look.
    :raises WaitTimeout: after `timeout_s`; the runs go on.
    """
    scheduler = scheduler or Scheduler(SCHEDULER_S)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    ended: dict[str, RunStatus] = {}
    while True:
        for status in run_status([paths for paths in runs if paths.run_id not in ended], scheduler):
            ended[status.run] = status
        statuses = [ended[paths.run_id] for paths in runs]
        if on_update is not None:
            on_update(statuses)
        ended = {run: status for run, status in ended.items() if status.ended}
        if len(ended) == len(runs):
            return statuses
        left_s = POLL_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise WaitTimeout(_still_running(statuses, timeout_s or 0.0))
        time.sleep(min(POLL_S, left_s))


def _still_running(statuses: Sequence[RunStatus], timeout_s: float) -> str:
    going = [status for status in statuses if not status.ended]
    lines = [f"{status.run} is still {status.state} (step {status.step} of {status.steps})" for status in going]
    return f"waited {timeout_s:.0f} s; " + "; ".join(lines) + "; it goes on"
