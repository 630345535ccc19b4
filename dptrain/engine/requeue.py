"""Leaving in order to be started again: what is counted, who asks, how every rank goes.

A warning well before the time limit is a preemption, one near it a time-out; each has its own budget, counted over the requeue
events of the attempts since a user last asked for the run. Locally the exit code asks the launcher. On SLURM rank 0 asks
`scontrol requeue`, or, where the site forbids that (`restart: resubmit` in the profile), submits a job that depends on this one's
end. Such a chain grows by one job when it is needed: unlike jobs submitted in advance it takes no places in the queue, leaves
none to be cancelled, is as long as the budgets allow, and the intent names one job at any time. It needs sbatch on compute nodes.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from contextlib import suppress
from typing import NoReturn

from dptrain.engine.communication import meet, told_by_first
from dptrain.engine.session import NotRestarted, Session
from dptrain.engine.watch import EXIT_REQUEUE
from dptrain.errors import StateUnknown, SubmissionRejected
from dptrain.records.events import read_events
from dptrain.records.index import called
from dptrain.records.intent import update_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.commands import NoAnswer, run_command
from dptrain.scheduler.submit import submit_script

LEAVE_S = 60.0
"""After a requeue was asked for, the scheduler ends the ranks; one that is still there after so long leaves by itself."""
ASK_PAUSES_S = (0.0, 3.0)
"""Pauses before each request to be requeued: a controller that is busy refuses, or does not answer in time."""


def restarts(paths: RunPaths, since: int) -> dict[str, int]:
    """Requeues from attempt `since` on, by reason: preempted, timed-out."""
    counts = {"preempted": 0, "timed-out": 0}
    for number in (n for n in paths.attempts() if n >= since):
        for event in read_events(paths.attempt(number).rank_events(0)):
            if event["kind"] == "requeue":
                counts[event["reason"]] += 1
    return counts


def leave_for_requeue(session: Session, step: int) -> NoReturn:
    """After a save of `step`: ask for a restart and leave. Every rank calls it, and none leaves before rank 0 has saved.

    :raises NotRestarted: no restart of this kind is left, or the scheduler refuses.
    """
    # Rank 0's word for all: clocks differ, and a rank that looked later would count the request itself.
    reason, spent = told_by_first(_judge(session) if session.first else ("", None))
    if spent is not None:
        raise NotRestarted(reason, f"{reason} after step {step}; given up: {spent}")
    session.requests.leaving = True
    print(f"{reason}: step {step} is saved, asking to be started again", flush=True)
    if session.env.launcher == "slurm" and session.paths.restart.exists():
        _leave_to_next_job(session, reason, step)
    session.events.last_words("requeue", step=step, reason=reason)
    if session.env.launcher == "slurm":
        refusal = _refusal(session)
        if refusal is not None:
            raise NotRestarted(
                reason,
                f"{reason} after step {step}, which is saved; SLURM does not start the job again: {refusal}\n"
                "    write: `restart: resubmit` in the cluster profile, where jobs may not be requeued, and then\n"
                f"    dptrain resume {called(session.paths.dir)}",
            )
        time.sleep(LEAVE_S)
    sys.stdout.flush()
    os._exit(EXIT_REQUEUE)


def _refusal(session: Session) -> str | None:
    """Rank 0 asks for the job to be requeued: on every rank the words of SLURM where it does not do it."""
    mine = _ask_again(session.env.job_id) if session.first else None
    with suppress(RuntimeError):  # SLURM has begun to end the ranks, rank 0 first
        return told_by_first(mine)
    return None


def _ask_again(job_id: str) -> str | None:
    said = ""
    for pause_s in ASK_PAUSES_S:
        time.sleep(pause_s)
        try:
            answer = run_command(["scontrol", "requeue", job_id])
        except NoAnswer as error:
            said = str(error)
        else:
            if answer.exit_code == 0:
                return None
            said = answer.words
    return said


def _judge(session: Session) -> tuple[str, str | None]:
    """(preempted or timed-out, why there is no restart of this kind left)."""
    run = session.spec.run
    elapsed_s = time.time() - session.started_s
    # The warning comes signal_lead_s before the limit; SLURM may send it up to a minute earlier.
    timed_out = elapsed_s >= session.spec.resources.time_min * 60 - run.signal_lead_s - 60
    reason = "timed-out" if timed_out and session.env.launcher == "slurm" else "preempted"
    limit = run.max_timeouts if reason == "timed-out" else run.max_preempts
    if restarts(session.paths, session.intent.asked_attempt)[reason] < limit:
        return reason, None
    name = "max_timeouts" if reason == "timed-out" else "max_preempts"
    return reason, f"run.{name} is {limit} and as many restarts were used"


def _leave_to_next_job(session: Session, reason: str, step: int) -> NoReturn:
    """Submit the job that goes on after this one, on rank 0, and end this one well, all ranks together."""
    if session.first:
        try:
            job_id = _submit_next(session.paths, session.env.job_id)
        except (SubmissionRejected, StateUnknown) as error:
            raise NotRestarted(
                reason,
                f"{reason} after step {step}, which is saved; the next job was not submitted: {error}\n"
                f"    write: dptrain resume {called(session.paths.dir)}",
            ) from None
        update_intent(session.paths, job_id=job_id, first_attempt=session.env.attempt + 1)
        print(f"job {job_id} goes on when this one has ended", flush=True)
    # The first rank to leave has the others ended: not while rank 0 submits.
    meet()
    session.events.last_words("requeue", step=step, reason=reason)
    sys.stdout.flush()
    os._exit(0)


def _submit_next(paths: RunPaths, job_id: str) -> str:
    """The id of a job that starts when `job_id` has ended, however it ends."""
    comment = f"dptrain:{paths.run_id}:{uuid.uuid4().hex[:12]}"
    options = [f"--dependency=afterany:{job_id}"]
    following = submit_script(paths.restart, chdir=paths.dir.absolute(), comment=comment, options=options)
    shutil.copyfile(paths.restart_call, paths.submitted_call(following))
    return following
