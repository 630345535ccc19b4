"""What plan asks of the memory of a step, in a process of its own: requests as JSON on stdin, for each one line of stdout.

The engine's own step runs on fake tensors as the rank with the most to hold, for two short numbers of unrolled steps; peaks and
terms are linear in that number from 2 on (the first step has nothing to give a gradient to), and are extended to the asked one.

    {"requests": [{"spec": "name: ...", "task": "train", "max_batch_size": 1, "checkpoint": "always"}], "memory_limit_gib": 0.75,
     "cpu_limit_s": 300}
    {"request": 0, "peaks": {"forward": 1, ...}, "terms": {"forward": {"weights": 1, ...}, ...}, "per_step_bytes": 1, "bytes_sent": 1,
     "rank": 0}

An answer that cannot be given is {"error": "..."}. Limits: what this process may take beyond the memory of its libraries, and the
processor time of each request, so that a busy login node takes longer and fails nothing.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from dptrain.engine.build import DTYPES
from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.fake_ranks import fake_copy, fake_rank
from dptrain.engine.limits import OutOfTime, cpu_limit, is_out_of_memory, limit_memory
from dptrain.engine.problems import build_physics
from dptrain.engine.sharded_physics import ShardedPhysics
from dptrain.engine.step_memory import StepMemory, measure_steps
from dptrain.errors import DptrainError, UsageError
from dptrain.geometry.boxes import Box, cells, clip
from dptrain.geometry.dealing import deal_tiles
from dptrain.geometry.tiles import tile_grid
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import PROXIMAL, Denoiser, Spec, Task

FEW_STEPS = (2, 3)
"""Unrolled steps that are run instead of many."""
FEW_CALLS = 32
"""Batches of tiles to which a longer pass is cut in layout sharded: a call costs milliseconds also where something stands in for it."""
CPU = torch.device("cpu")
NO_MEMORY = "the forecast needs more memory than it may take beside its libraries"


def forecast(spec: Spec, task: Task, *, max_batch_size: int, checkpoint: str) -> dict[str, Any]:
    """Peaks and terms of the most loaded rank, in bytes.

    :param spec: with numbers for whatever plan decides.
    :param max_batch_size: tiles per denoiser call.
    :param checkpoint: mode of activation checkpointing.
    :raises UsageError: where the memory depends on the data.
    """
    if task == "train" and spec.resources.layout == "replicated" and spec.algorithm.name in PROXIMAL:
        raise UsageError(
            f"in layout replicated the solver of {spec.algorithm.name} keeps all its iterations for the backward pass, and how many "
            "it takes depends on the data; layout sharded keeps none"
        )
    given = None if _is_random(spec) else build_denoiser(spec, CPU, DTYPES[spec.resources.precision])
    rank = heaviest_rank(spec, task, max_batch_size, checkpoint)
    # The tiles of one batch are gone before the next one's are made, unless all keep their activations. In replicated all remain.
    cut = spec.resources.layout == "sharded" and not (checkpoint == "never" and task == "train")

    def at(steps: int) -> StepMemory:
        short = replace(spec, algorithm=replace(spec.algorithm, iterations=steps))
        return _measure(short, task, rank, given, max_batch_size, checkpoint, FEW_CALLS if cut else None)

    steps = spec.algorithm.iterations
    if steps == 1:
        return {**asdict(at(1)), "per_step_bytes": None, "rank": rank}
    few, more = (at(n) for n in FEW_STEPS)
    found = few.towards(more, Fraction(steps - FEW_STEPS[0], FEW_STEPS[1] - FEW_STEPS[0]))
    slope = more.peak_bytes - few.peak_bytes if task == "train" else None
    return {**asdict(found), "per_step_bytes": slope, "rank": rank}


def heaviest_rank(spec: Spec, task: Task, max_batch_size: int, checkpoint: str) -> int:
    """The rank of the first replica whose peak is the highest: the most tiles that keep their activations at a time, then the most
    pixels to hold. With `auto` that may be a rank of few tiles, which keeps what ranks of several batches recompute."""
    ranks, shape = spec.resources.ranks_per_replica, spec.problem.image_size
    grid, dtype = tile_grid(shape, spec.tiling), DTYPES[spec.resources.precision]
    if spec.resources.layout == "replicated" or ranks == 1:
        return 0
    with fake_rank(0, ranks) as ctx:
        physics = build_physics(spec, ctx.device, dtype)
        parts = ShardedPhysics(physics, (spec.problem.channels, *shape), ctx, ctx.device, dtype)
        owned, wanted = parts.owned, parts.fidelity.plan.wanted
    dealing = deal_tiles(grid, owned)
    tiles = [len(of_rank) for of_rank in dealing.tiles]

    windows: list[Box] = [tuple((axis.start, axis.stop) for axis in tile) for tile in grid.tiles()]
    # Of a window that is reflected both stay for the backward pass: what it was and what it became.
    reflected = [cells(clip(box, shape)) if clip(box, shape) != box else 0 for box in windows]

    def load(rank: int) -> tuple[int, int]:
        blocks = [box for block in dealing.blocks[rank] for box in (block.window, block.core)]
        pixels = sum(cells(box) for box in (owned[rank], *wanted[rank], *blocks))
        one_batch = tiles[rank] <= max_batch_size
        if task == "infer" or checkpoint not in ("never", "auto") or (checkpoint == "auto" and not one_batch):
            return min(tiles[rank], max_batch_size), pixels
        twice = sum(reflected[tile] for tile in dealing.tiles[rank])
        return tiles[rank] * spec.algorithm.iterations, pixels + twice * spec.algorithm.iterations

    return max(range(ranks), key=load)


def _is_random(spec: Spec) -> bool:
    return isinstance(spec.denoiser, Denoiser) and (
        spec.denoiser.weights == "random" or spec.denoiser.name == "identity"
    )


def _measure(
    spec: Spec,
    task: Task,
    rank: int,
    given: torch.nn.Module | None,
    max_batch_size: int,
    checkpoint: str,
    most_calls: int | None,
) -> StepMemory:
    # A compiled network cannot be traced this way; its graph keeps about what the plain one keeps.
    plain = replace(spec, resources=replace(spec.resources, compile=False))
    with fake_rank(rank, spec.resources.gpus, spec.resources.replicas) as ctx:
        network = build_denoiser(plain, CPU, DTYPES[spec.resources.precision]) if given is None else fake_copy(given)
        return measure_steps(
            plain,
            task,
            ctx,
            network,
            max_batch_size=max_batch_size,
            checkpoint=checkpoint,
            thin=True,
            most_calls=most_calls,
        )


def answer(request: Mapping[str, Any], limit_s: float = math.inf) -> dict[str, Any]:
    """The answer to one request; whatever goes wrong is its reason.

    :param limit_s: of processor time.
    """
    try:
        with cpu_limit(limit_s):
            return _answer(request)
    except OutOfTime as error:
        return {"error": str(error)}


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        spec = parse_spec(request["spec"], "the spec", Path.cwd()).spec
        decided = {key: request[key] for key in ("max_batch_size", "checkpoint")}
        return forecast(spec, request["task"], **decided)
    except DptrainError as error:
        return {"error": str(error)}
    except DataDependentOutputException as error:
        return {"error": f"what is done depends on numbers, and a forecast has shapes alone ({error})"}
    except Exception as error:  # user code and libraries under fake tensors: anything at all
        if is_out_of_memory(error):
            return {"error": NO_MEMORY}
        words = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {words[0]}" if words else type(error).__name__}


def main() -> None:
    """Answer the requests of stdin."""
    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    limit_memory(asked["memory_limit_gib"])
    warnings.simplefilter("ignore")
    for number, request in enumerate(asked["requests"]):
        # On a line of its own, whatever user code has printed.
        print("\n" + json.dumps({"request": number, **answer(request, asked["cpu_limit_s"])}), flush=True)


if __name__ == "__main__":
    main()
