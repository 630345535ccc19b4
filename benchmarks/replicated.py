"""Step time and peak memory of N local ranks in layout `replicated`, against the denoiser calls alone.

Every row is a real `dptrain infer` or `dptrain train` in its own process, read back from its run directory. In the same pass the
compute bound is measured twice: what the busiest rank's denoiser calls cost with nothing else (same tile grid, same batches, same
threads, same precision, no physics, no communication), once in a single process and once in N processes at the same time. The second
is the bound where N ranks share few cores; what is above it is physics, full-image copies, communication and waiting.

    python benchmarks/replicated.py [--ranks 1 2 4] [--tasks infer train] [--size 512] [--train-size 256] [--steps 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from runs import machine, run_dptrain
from torch.utils.checkpoint import checkpoint

from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.tiled import InnerDenoiser
from dptrain.geometry.tiles import tile_grid
from dptrain.spec.load import load_spec
from dptrain.spec.schema import Spec

# Random weights of the shipped network's shape: the cost of a call does not depend on their values.
SPEC = """\
name: bench
problem:
  image_size: [{size}, {size}]
  physics: {{name: multiframe_superres, frames: 4, factor: 2, blur_sigma: [1.0, 2.0], noise_std: 0.05}}
  data: {{source: {source}}}
denoiser: {{name: drunet, weights: random, nc: [16, 32, 64, 64], nb: 2}}
algorithm: {{name: pgd, iterations: {iterations}}}
tiling: {{patch: {patch}, halo: 16, max_batch_size: 4, checkpoint: always}}
"""
TRAIN = "train: {{steps: {steps}, images: 2, held_out: 0, save_every_steps: 1000}}\n"
UNROLLED = 3
"""Iterations of the unrolled network in the training rows."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured run."""

    task: str
    ranks: int
    threads: int
    tiles_max: int
    step_s: float
    alone_s: float
    bound_s: float
    sections: dict[str, float]
    bytes_sent_per_step: float
    peak_tracked_bytes: int
    peak_process_bytes: int


def main() -> None:
    """Measure every row, print the table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tasks", nargs="+", choices=["infer", "train"], default=["infer", "train"])
    parser.add_argument("--size", type=int, default=512, help="edge of the image in pixels")
    parser.add_argument("--train-size", type=int, default=256, help="the same for the training rows")
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument(
        "--steps", type=int, default=10, help="iterations, or optimiser steps; the first is not counted"
    )
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # what the ranks get, also for the bounds
    print(machine(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="dptrain-bench-") as folder:
        for task in options.tasks:
            spec = write_spec(Path(folder), task, options)
            for ranks in options.ranks:
                rows.append(measure(task, ranks, spec, Path(folder)))
                print(f"measured: {task} on {ranks}, {rows[-1].step_s:.3f} s per step", file=sys.stderr, flush=True)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


def write_spec(folder: Path, task: str, options: argparse.Namespace) -> Path:
    """The spec of one task; the number of ranks is set on the command line."""
    training = task == "train"
    text = SPEC.format(
        size=options.train_size if training else options.size,
        patch=options.patch,
        source="synthetic" if training else "photo",
        iterations=UNROLLED if training else options.steps,
    )
    path = folder / f"{task}.yaml"
    path.write_text(text + (TRAIN.format(steps=options.steps) if training else ""), encoding="utf-8")
    return path


def measure(task: str, ranks: int, spec_path: Path, folder: Path) -> Row:
    """One run and its bounds, one after the other, so that they see the same machine."""
    done = run_dptrain(task, ranks, spec_path, folder / f"{task}-{ranks}", ["resources.layout=replicated"])
    result = done.result
    spec = load_spec(done.paths.spec).spec
    grid = tile_grid(spec.problem.image_size, spec.tiling)
    threads = done.events("start")[0][0]["threads"]
    finals = [final for (final,) in done.events("final")]
    busiest = max(len(final["tiles"]) for final in finals)
    assert sorted(t for final in finals for t in final["tiles"]) == list(range(len(grid)))
    alone_s = bound(task, spec, busiest, threads, processes=1)
    return Row(
        task=task,
        ranks=ranks,
        threads=threads,
        tiles_max=busiest,
        step_s=done.step_s,
        alone_s=alone_s,
        bound_s=bound(task, spec, busiest, threads, processes=ranks) if ranks > 1 else alone_s,
        sections=result["sections"],
        bytes_sent_per_step=sum(final["bytes_sent"] / final["steps"] for final in finals),
        peak_tracked_bytes=max(result["peak_memory_bytes"]),
        peak_process_bytes=done.resident_peak_bytes,
    )


def bound(task: str, spec: Spec, tiles: int, threads: int, processes: int) -> float:
    """Median seconds of one step's denoiser calls of `tiles` tiles, the slowest of `processes` equal ones at a time."""
    context = mp.get_context("spawn")
    gate, answers = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=denoise_only, args=(task, spec, tiles, threads, gate, answers)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    slowest = max(answers.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    return float(slowest)


def denoise_only(task: str, spec: Spec, tiles: int, threads: int, gate: Any, answers: Any) -> None:
    """One process of `bound`: one step to warm up, five that count."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = InnerDenoiser(build_denoiser(spec, torch.device("cpu"), torch.float32))
    grid = tile_grid(spec.problem.image_size, spec.tiling)
    size = int(spec.tiling.max_batch_size)
    counts = [min(size, tiles - first) for first in range(0, tiles, size)]
    windows = [torch.rand(n, spec.problem.channels, *grid.window_shape) for n in counts]
    step = train_step if task == "train" else infer_step
    seconds = []
    for _ in range(6):
        gate.wait(timeout=600)
        start = time.perf_counter()
        step(network, windows)
        seconds.append(time.perf_counter() - start)
    answers.put(statistics.median(seconds[1:]))


def infer_step(network: torch.nn.Module, windows: list[torch.Tensor]) -> None:
    """The calls of one iteration."""
    with torch.no_grad():
        for window in windows:
            network(window, 0.05)


def train_step(network: torch.nn.Module, windows: list[torch.Tensor]) -> None:
    """The calls of one optimiser step: forward, recomputed forward and backward of every batch, K times."""
    for _ in range(UNROLLED):
        for window in windows:
            x = window.clone().requires_grad_()
            out = checkpoint(network, x, 0.05, use_reentrant=False)
            out.sum().backward()


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = "task|ranks|threads|tiles of the busiest|step s|bound s, alone|bound s, N at once|step / bound|efficiency"
    head += "|sent MB per step|peak MB, tracked|peak MB, process"
    lines = [f"| {' | '.join(head.split('|'))} |", "|" + " --- |" * len(head.split("|"))]
    for row in rows:
        one = next((r for r in rows if r.task == row.task and r.ranks == 1), None)
        efficiency = f"{one.step_s / row.step_s / row.ranks:.0%}" if one else "-"
        cells = [row.task, row.ranks, row.threads, row.tiles_max]
        cells += [f"{row.step_s:.3f}", f"{row.alone_s:.3f}", f"{row.bound_s:.3f}", f"{row.step_s / row.bound_s:.2f}"]
        cells += [efficiency, f"{row.bytes_sent_per_step / 1e6:.1f}"]
        cells += [f"{row.peak_tracked_bytes / 1e6:.0f}", f"{row.peak_process_bytes / 1e6:.0f}"]
        lines.append(f"| {' | '.join(str(c) for c in cells)} |")
    sections = [f"{r.task} on {r.ranks}: " + ", ".join(f"{k} {v:.3f}" for k, v in r.sections.items()) for r in rows]
    return "\n".join([*lines, "", "Median seconds per section:", "", *(f"* {s}" for s in sections)])


if __name__ == "__main__":
    main()
