"""A step of the layout sharded and the same denoiser calls alone, in turn in one process per rank.

Alone means the same windows, batches, mode and threads, and nothing else: no physics, no exchange, no cutting and stitching of
tiles, no optimiser. Both are preceded by a barrier, so that ranks that share cores compete in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dptrain.engine.build import Built, build
from dptrain.engine.context import RankContext, RankEnvironment
from dptrain.engine.problems import build_data
from dptrain.engine.sharded import ShardedPlugAndPlay
from dptrain.engine.trainer import make_batch, training_loss
from dptrain.geometry.tiles import tile_grid
from dptrain.spec.load import load_spec
from dptrain.spec.schema import Spec

TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One step and the calls that it contains, seconds of the slower rank."""

    step_s: float
    alone_s: float


def step_and_calls(task: str, ranks: int, spec: Path, folder: Path, *, threads: int, pairs: int) -> list[Pair]:
    """Measure `pairs` of them, after one that warms up."""
    context = mp.get_context("spawn")
    answers = context.Queue()
    workers = [
        context.Process(target=_rank, args=(rank, ranks, task, spec, folder, threads, pairs, answers))
        for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    per_rank = [answers.get(timeout=TIMEOUT_S) for _ in workers]
    for worker in workers:
        worker.join()
    slowest = [[max(times) for times in zip(*pair, strict=True)] for pair in zip(*per_rank, strict=True)]
    return [Pair(step_s=step_s, alone_s=alone_s) for step_s, alone_s in slowest]


def _rank(
    rank: int, ranks: int, task: str, spec_path: Path, folder: Path, threads: int, pairs: int, answers: Any
) -> None:
    torch.set_num_threads(threads)
    env = RankEnvironment(
        rank=rank,
        world_size=ranks,
        local_rank=rank,
        local_world_size=ranks,
        job_id="benchmark",
        attempt=1,
        launcher="local",
    )
    env.export()
    store = dist.FileStore(str(folder / f"store-{task}-{ranks}"), ranks)
    limit = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    ctx = RankContext(env, seed=0)
    ctx.__enter__()
    spec = load_spec(spec_path, ("resources.layout=sharded", f"resources.gpus={ranks}")).spec
    step, alone = _training(spec, ctx) if task == "train" else _inference(spec, ctx)
    times = []
    for _ in range(1 + pairs):
        times.append((_seconds(step), _seconds(alone)))
    answers.put(times[1:])
    dist.barrier()
    dist.destroy_process_group()


def _seconds(function: Callable[[], None]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _inference(spec: Spec, ctx: RankContext) -> tuple[Callable[[], None], Callable[[], None]]:
    """(one iteration, its calls)."""
    built, algorithm = _built(spec, ctx)
    sample = build_data(spec, built.physics, role="infer")[0]
    measured = algorithm.measured(sample.measurements)
    state = algorithm.initial(measured)
    windows = _windows(algorithm, spec)
    level = torch.tensor(0.05)

    def step() -> None:
        with torch.no_grad():
            algorithm.iterate(state, 0, measured)

    def alone() -> None:
        with torch.no_grad():
            for window in windows:
                algorithm.denoiser.processor(window, level)

    return step, alone


def _training(spec: Spec, ctx: RankContext) -> tuple[Callable[[], None], Callable[[], None]]:
    """(one optimiser step, its calls: forward, forward again and backward of every batch, K times)."""
    assert spec.train is not None and spec.tiling.checkpoint == "always"
    built, algorithm = _built(spec, ctx, spec.train.trainable)
    sample = build_data(spec, built.physics, role="train")[0]
    batch = make_batch([sample], algorithm, blind=False)
    optimizer = torch.optim.Adam([p for p in algorithm.parameters() if p.requires_grad])
    windows = _windows(algorithm, spec)
    level = torch.tensor(0.05)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        training_loss(built, batch, "mse").backward()  # type: ignore[no-untyped-call]
        algorithm.sync_gradients()
        optimizer.step()

    def alone() -> None:
        algorithm.zero_grad(set_to_none=True)
        for _ in range(algorithm.iterations):
            with torch.no_grad():
                for window in windows:
                    algorithm.denoiser.processor(window, level)
        for _ in range(algorithm.iterations):
            for window in windows:
                out = algorithm.denoiser.processor(window.detach().requires_grad_(), level)
                out.backward(window)

    return step, alone


def _built(spec: Spec, ctx: RankContext, trainable: tuple[str, ...] = ()) -> tuple[Built, ShardedPlugAndPlay]:
    batch = int(spec.tiling.max_batch_size)
    built = build(spec, ctx, max_batch_size=batch, checkpoint=str(spec.tiling.checkpoint), trainable=trainable)
    assert isinstance(built.algorithm, ShardedPlugAndPlay)
    return built, built.algorithm


def _windows(algorithm: ShardedPlugAndPlay, spec: Spec) -> list[torch.Tensor]:
    """Batches of the shapes that this rank's denoiser sees."""
    window = tile_grid(spec.problem.image_size, spec.tiling).window_shape
    counts = [len(batch.tiles) + batch.fill for batch in algorithm.denoiser.batches]
    return [torch.rand(count, spec.problem.channels, *window) for count in counts]
