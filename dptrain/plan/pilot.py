"""The time of a step from one call of the denoiser, timed on the present device in a process of its own.

The busiest rank's calls, all iterations of an optimiser step together, take their time one after the other. Left out are the data
step, messages, waiting for other ranks and the optimiser; several local ranks also share a machine that the pilot has to itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from dptrain.errors import DptrainError
from dptrain.plan.cards import has_gpus
from dptrain.plan.forecast import Request
from dptrain.plan.timing import StepTime
from dptrain.records.calibration import CPU
from dptrain.records.process import program
from dptrain.spec.cluster import ClusterProfile

PROGRAM = "dptrain.engine.pilot"
ELSEWHERE = "a processor's time says nothing of GPUs: run the pilot in an allocation of cluster"
LIMIT_S = 600.0
"""A call of a large network on one core takes minutes; more than this is not waited for."""


class NotTimed(DptrainError):
    """The pilot failed."""


def time_step(request: Request, profile: ClusterProfile, most_tiles: int) -> StepTime:
    """Predict the time of a step.

    :param request: the step as decided.
    :param most_tiles: of the busiest rank.
    :raises NotTimed: missing weights, too little memory, user code that fails here, no answer in time.
    """
    calls = -(-most_tiles // request.max_batch_size)
    mode = request.checkpoint
    if mode == "auto":
        mode = "always" if calls > 1 else "never"
    asked = {**request.to_json(), "tiles": -(-most_tiles // calls), "checkpoint": mode}
    answer = _ask(asked, threads(profile, request.spec.resources.gpus))
    iterations = request.spec.algorithm.iterations if request.task == "train" else 1
    of = f"{calls} calls" if iterations == 1 else f"{calls} calls in each of {iterations} iterations"
    foreign = answer["device"] == CPU and has_gpus(profile)
    return StepTime(
        seconds=answer["seconds"] * calls * iterations,
        elsewhere=f"{ELSEWHERE} {profile.name}" if foreign else None,
        source=(
            f"pilot on this machine ({_device(answer)}): {of}, {answer['seconds']:.3g} s each for {asked['tiles']} tiles; "
            "without making the batch, data step, messages, waiting and optimiser"
        ),
    )


def _device(answer: dict[str, Any]) -> str:
    count = answer["threads"]
    return f"cpu, {count} thread{'s' * (count != 1)}" if answer["device"] == CPU else str(answer["device"])


def threads(profile: ClusterProfile, ranks: int) -> int:
    """Threads that a rank will have, as far as this machine has them."""
    cores = len(os.sched_getaffinity(0))
    if profile.launcher == "slurm":
        return min(cores, profile.cpus_per_task)
    return int(os.environ.get("OMP_NUM_THREADS") or max(1, cores // ranks))


def _ask(asked: dict[str, Any], count: int) -> dict[str, Any]:
    env = {**os.environ, "OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count)}
    command = program(PROGRAM)
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, check=False, env=env, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise NotTimed(f"the pilot took more than {LIMIT_S:.0f} s") from None
    if done.returncode < 0:
        raise NotTimed(f"the pilot was ended by signal {-done.returncode}; 9 is what too little memory looks like")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"{PROGRAM} ended with exit code {done.returncode}"]
        raise NotTimed(said[-1])
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
