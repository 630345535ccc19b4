"""What submitit's pickle holds: this function and a run directory. Imported on every rank of a SLURM job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths


def run(run_dir: str) -> None:
    """Be one rank of the run.

    The attempt this job begins with is in the intent: it was written there before the job could start.

    Leaves at once afterwards: returning would make submitit write a result pickle per rank, which would outlive a requeue
    and speak for the next attempt.
    """
    # submitit's handler would answer the scheduler's warning by itself while the worker is still being imported (many seconds).
    # Blocked, it waits for the worker's own handler, which unblocks it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["DPTRAIN_FIRST_ATTEMPT"] = str(read_intent(RunPaths(Path(run_dir))).first_attempt)
    # Here and not at the top, so that submitting a run loads no torch.
    from dptrain.engine import worker

    worker.main(run_dir)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
