"""Waiting for runs to end: their records every half second, the scheduler every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dptrain.errors import RunFailed, WaitTimeout
from dptrain.records.paths import RunPaths
from dptrain.status.model import IMPOSSIBLE_MARK, RunStatus
from dptrain.status.state import Scheduler, run_status

POLL_S = 0.5
SCHEDULER_S = 10.0
"""No faster: every waiting command of every user asks the same controller."""

IMPOSSIBLE_S = 60.0
"""A job that SLURM has called impossible for so long is not waited for: a setting just changed would have been seen by then."""

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
    :raises RunFailed: where the folder of a run is gone.
    :raises RunFailed: where all that is left has been impossible for `IMPOSSIBLE_S`; the jobs stay queued.
    """
    scheduler = scheduler or Scheduler(SCHEDULER_S)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    ended: dict[str, RunStatus] = {}
    possible_s = time.monotonic()
    while True:
        for status in run_status([paths for paths in runs if paths.run_id not in ended], scheduler):
            ended[status.run] = status
        if lost := [paths for paths in runs if ended[paths.run_id].state == "unknown" and not _there(paths)]:
            raise RunFailed("; ".join(f"{paths.run_id}: its folder {paths.dir} is gone" for paths in lost))
        statuses = [ended[paths.run_id] for paths in runs]
        if on_update is not None:
            on_update(statuses)
        ended = {run: status for run, status in ended.items() if status.ended}
        if len(ended) == len(runs):
            return statuses
        left = [status for status in statuses if not status.ended]
        if not all(status.impossible for status in left):
            possible_s = time.monotonic()
        elif time.monotonic() - possible_s >= IMPOSSIBLE_S:
            raise RunFailed(_never_starting(left))
        left_s = POLL_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise WaitTimeout(_still_running(statuses, timeout_s or 0.0))
        time.sleep(min(POLL_S, left_s))


def _there(paths: RunPaths) -> bool:
    """Whether the run still has its intent: while its folder is being removed, a rank may still put a file there."""
    return paths.intent.exists()


def _never_starting(left: Sequence[RunStatus]) -> str:
    lines = [
        f"{s.run}: job {s.job_id} cannot start as it was asked for: {(s.reason or '').removeprefix(IMPOSSIBLE_MARK)}"
        for s in left
    ]
    runs = " ".join(status.called for status in left)
    return "\n".join([*lines, f"    it is left in the queue; write: dptrain cancel {runs}"])


def _still_running(statuses: Sequence[RunStatus], timeout_s: float) -> str:
    going = [status for status in statuses if not status.ended]
    lines = [f"{status.run} is still {status.state} (step {status.step} of {status.steps})" for status in going]
    return f"waited {timeout_s:.0f} s; " + "; ".join(lines) + "; it goes on"
