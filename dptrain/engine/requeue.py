"""Leaving in order to be started again: what is counted, who asks, how every rank goes.

A warning well before the time limit is a preemption, one near it a time-out; each has its own budget, counted over the requeue
events of earlier attempts. On SLURM rank 0 asks `scontrol requeue`; locally the exit code asks the launcher.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import NoReturn

from dptrain.engine.session import BudgetSpent, Session
from dptrain.engine.watch import EXIT_REQUEUE
from dptrain.records.events import read_events
from dptrain.records.paths import RunPaths

LEAVE_S = 60.0
"""After a requeue was asked for, the scheduler ends the ranks; one that is still there after so long leaves by itself."""


def restarts(paths: RunPaths) -> dict[str, int]:
    """Requeues so far, by reason: preempted, timed-out."""
    counts = {"preempted": 0, "timed-out": 0}
    for number in paths.attempts():
        for event in read_events(paths.attempt(number).rank_events(0)):
            if event["kind"] == "requeue":
                counts[event["reason"]] += 1
    return counts


def leave_for_requeue(session: Session, step: int) -> NoReturn:
    """After a save of `step`: ask for a restart and leave. Every rank calls it.

    :raises BudgetSpent: no restart of this kind is left.
    """
    run = session.spec.run
    elapsed_s = time.time() - session.started_s
    # The warning comes signal_lead_s before the limit; SLURM may send it up to a minute earlier.
    timed_out = elapsed_s >= session.spec.resources.time_min * 60 - run.signal_lead_s - 60
    reason = "timed-out" if timed_out and session.env.launcher == "slurm" else "preempted"
    limit = run.max_timeouts if reason == "timed-out" else run.max_preempts
    if restarts(session.paths)[reason] >= limit:
        name = "max_timeouts" if reason == "timed-out" else "max_preempts"
        raise BudgetSpent(
            reason, f"{reason} after step {step}; given up: run.{name} is {limit} and as many restarts were used"
        )
    session.requests.leaving = True
    session.events.last_words("requeue", step=step, reason=reason)
    print(f"{reason}: step {step} is saved, asking to be started again", flush=True)
    if session.env.launcher == "slurm":
        if session.first:
            subprocess.run(["scontrol", "requeue", session.env.job_id], check=True, stdin=subprocess.DEVNULL)
        time.sleep(LEAVE_S)
    sys.stdout.flush()
    os._exit(EXIT_REQUEUE)
