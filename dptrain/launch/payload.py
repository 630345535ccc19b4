"""What submitit's pickle holds: this function and a run directory, nothing else. Imported on every rank of a SLURM job."""

from __future__ import annotations

import os
import sys


def run(run_dir: str) -> None:
    """Be one rank of the run.

    Leaves at once afterwards: returning would make submitit write a result pickle per rank, which would outlive a requeue
    and speak for the next attempt.
    """
    # Here and not at the top, so that submitting a run loads no torch.
    from dptrain.engine import worker

    worker.main(run_dir)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
