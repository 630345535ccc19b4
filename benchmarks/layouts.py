"""The layouts `replicated` and `sharded` side by side: step time, memory and bytes sent of N local ranks, and the goals set for them.

Two cases. *Overhead-bound*: a tiny denoiser on a large image, where what is not the denoiser decides. Every number is of real
`dptrain train` runs, the layouts in turn (A B A B), medians over the rounds with their range. Memory of a rank is the resident peak
of its process, set-up and output included, above one of two baselines: a process that has only imported what a rank imports, or the
same run with an image of 64 x 64, which has also used the libraries, threads and buffers that do not depend on the image. Besides
the tracked peak, the sum of tensor storages alive at once.
*Compute-bound*: the default DRUNet. A step of the layout sharded and the same denoiser calls alone, in turn in one process per
rank (`alone.py`).

    python benchmarks/layouts.py [--ranks 1 2 4 8] [--rounds 3] [--steps 6] [--compute-ranks 1 2] [--cases overhead compute]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from alone import Pair, step_and_calls
from runs import import_baseline_bytes, machine, run_dptrain

from dptrain.engine.local_launcher import threads_per_rank

LAYOUTS = ("replicated", "sharded")
PROBLEM = """\
name: layouts
problem:
  image_size: [{size}, {size}]
  channels: 3
  physics: {{name: multiframe_superres, frames: 4, factor: 2, blur_sigma: [1.0, 2.0], noise_std: 0.05}}
  data: {{source: synthetic}}
"""
OVERHEAD = """\
denoiser: {{name: dncnn, weights: random, depth: 3, width: 8}}
algorithm: {{name: pgd, iterations: 5}}
tiling: {{patch: {patch}, halo: 16, max_batch_size: 1, checkpoint: always}}
train: {{steps: {steps}, images: 1, held_out: 0, save_every_steps: 1000}}
"""
# Random weights: the cost of a call does not depend on their values.
COMPUTE = """\
denoiser: {{name: drunet, weights: random}}
algorithm: {{name: pgd, iterations: 1}}
tiling: {{patch: {patch}, halo: 16, max_batch_size: 1, checkpoint: always}}
train: {{steps: 1, images: 1, held_out: 0}}
"""
FASTER = {4: 2.5, 1: 2.0}
"""Step time of the layout replicated by that of sharded, at least, by number of ranks."""
LESS_MEMORY = {4: 8.0, 1: 2.5}
"""The same of the peak above a baseline."""
ABOVE_ALONE = 1.03
"""Step time of the layout sharded by that of its denoiser calls, at most."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The runs of one layout on one number of ranks; lists have one entry per round."""

    ranks: int
    layout: str
    threads: int
    step_s: list[float]
    process_bytes: list[int]
    """Resident peak of the largest rank."""
    imported_bytes: int
    """The same of a process that only imports."""
    small_bytes: int
    """The same as `process_bytes` for an image of 64 x 64."""
    tracked_bytes: int
    """Of the rank with the largest."""
    largest_storage_bytes: int | None
    """The same for a single storage; None where runs do not report it."""
    sent_bytes_per_step: float
    """All ranks together."""


@dataclass(frozen=True, kw_only=True)
class ComputeRow:
    """Pairs of a step and its calls alone."""

    task: str
    ranks: int
    threads: int
    pairs: list[Pair]

    @property
    def ratio(self) -> float:
        """Median over the pairs: what slows the machine down slows both."""
        return statistics.median(pair.step_s / pair.alone_s for pair in self.pairs)


def main() -> None:
    """Measure, print the tables and the goals."""
    options = arguments()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # what the ranks get
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="dptrain-bench-") as folder:
        rows = overhead_bound(options, Path(folder)) if "overhead" in options.cases else []
        if rows:
            print(f"Overhead-bound, {options.size} x {options.size}:\n\n{tables(rows)}\n\n{goals(rows)}\n", flush=True)
        compute = compute_bound(options, Path(folder)) if "compute" in options.cases else []
        if compute:
            print(f"Compute-bound, {options.compute_size} x {options.compute_size}:\n\n{compute_table(compute)}")
    print(f"\nload at the end: {os.getloadavg()[0]:.1f}")
    if options.json:
        every = {"overhead": [asdict(row) for row in rows], "compute": [asdict(row) for row in compute]}
        options.json.write_text(json.dumps(every, indent=2) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=["overhead", "compute"], default=["overhead", "compute"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each layout on each number of ranks")
    parser.add_argument("--steps", type=int, default=6, help="optimiser steps of a run; the first is not counted")
    parser.add_argument("--size", type=int, default=1024, help="edge of the image in pixels")
    parser.add_argument("--patch", type=int, default=256, help="edge of a tile in pixels, in both cases")
    parser.add_argument("--compute-ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--compute-size", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5, help="steps, each with its calls alone")
    parser.add_argument("--json", type=Path, help="also write every number here")
    return parser.parse_args()


def overhead_bound(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Rows by number of ranks; the layouts in turn, so that both see the same machine."""
    spec = folder / "overhead.yaml"
    spec.write_text((PROBLEM + OVERHEAD).format(**vars(options)), encoding="utf-8")
    imported = import_baseline_bytes()
    print(f"imports alone: {imported / 1e6:.0f} MB resident\n", flush=True)
    rows = []
    for ranks in options.ranks:
        small = {layout: small_run_bytes(layout, ranks, spec, folder / f"small-{layout}-{ranks}") for layout in LAYOUTS}
        rounds: list[list[Row]] = []
        for number in range(options.rounds):
            names = [(layout, folder / f"{layout}-{ranks}-{number}") for layout in LAYOUTS]
            rounds.append([measure(layout, ranks, spec, runs, imported, small[layout]) for layout, runs in names])
            seconds = ", ".join(f"{row.layout} {row.step_s[0]:.3f} s per step" for row in rounds[-1])
            print(f"measured: {ranks} ranks, {seconds}", file=sys.stderr, flush=True)
        rows += [joined(same) for same in zip(*rounds, strict=True)]
    return rows


def small_run_bytes(layout: str, ranks: int, spec: Path, runs: Path) -> int:
    """Resident peak of the same run with an image that takes nothing."""
    small = [f"resources.layout={layout}", "problem.image_size=[64, 64]", "tiling.patch=32", "train.steps=2"]
    return run_dptrain("train", ranks, spec, runs, small).resident_peak_bytes


def measure(layout: str, ranks: int, spec: Path, runs: Path, imported: int, small: int) -> Row:
    """One run."""
    done = run_dptrain("train", ranks, spec, runs, [f"resources.layout={layout}"])
    result = done.result
    storages = [size for size in result["largest_storage_bytes"] if size is not None]
    return Row(
        ranks=ranks,
        layout=layout,
        threads=done.events("start")[0][0]["threads"],
        step_s=[done.step_s],
        process_bytes=[done.resident_peak_bytes],
        imported_bytes=imported,
        small_bytes=small,
        tracked_bytes=max(result["peak_memory_bytes"]),
        largest_storage_bytes=max(storages, default=None),
        sent_bytes_per_step=sum(result["bytes_sent"]) / result["steps"],
    )


def joined(rows: Sequence[Row]) -> Row:
    """Runs of the same kind as one row."""
    first = rows[0]
    times, peaks = [row.step_s[0] for row in rows], [row.process_bytes[0] for row in rows]
    return Row(**{**asdict(first), "step_s": times, "process_bytes": peaks})


def compute_bound(options: argparse.Namespace, folder: Path) -> list[ComputeRow]:
    """Both tasks on each number of ranks."""
    spec = folder / "compute.yaml"
    spec.write_text((PROBLEM + COMPUTE).format(size=options.compute_size, patch=options.patch), encoding="utf-8")
    rows = []
    for ranks in options.compute_ranks:
        for task in ("infer", "train"):
            threads = threads_per_rank(ranks)
            pairs = step_and_calls(task, ranks, spec, folder, threads=threads, pairs=options.pairs)
            rows.append(ComputeRow(task=task, ranks=ranks, threads=threads, pairs=pairs))
            print(f"measured: {task} on {ranks}, {rows[-1].ratio:.3f}", file=sys.stderr, flush=True)
    return rows


def tables(rows: list[Row]) -> str:
    """The layouts side by side, one line per number of ranks: time and traffic, then memory."""
    time = markdown("ranks|threads|step s, replicated|sharded|faster|sent MB per step, replicated|sharded")
    memory = markdown(
        "ranks|peak MB above imports, replicated|sharded|less|above a 64 x 64 run, replicated|sharded|less"
        "|tracked MB, replicated|sharded|less|largest tensor MB, replicated|sharded"
    )
    for pair in pairs_of(rows):
        seconds = [*(with_range(row.step_s) for row in pair), f"{faster(*pair):.2f}"]
        sent = [f"{row.sent_bytes_per_step / 1e6:.1f}" for row in pair]
        time.append(line([pair[0].ranks, pair[0].threads, *seconds, *sent]))
        above = [side_by_side(pair, above_imports), side_by_side(pair, above_small)]
        tracked = side_by_side(pair, lambda row: row.tracked_bytes)
        largest = ["-" if row.largest_storage_bytes is None else megabytes(row.largest_storage_bytes) for row in pair]
        memory.append(line([pair[0].ranks, *above[0], *above[1], *tracked, *largest]))
    return "\n".join([*time, "", *memory])


def compute_table(rows: list[ComputeRow]) -> str:
    """One line per task and number of ranks, with the goal."""
    lines = markdown(f"task|ranks|threads|step s|calls alone s|step / calls|at most {ABOVE_ALONE}")
    for row in rows:
        step, alone = [pair.step_s for pair in row.pairs], [pair.alone_s for pair in row.pairs]
        ratios = [a / b for a, b in zip(step, alone, strict=True)]
        goal = "reached" if row.ratio <= ABOVE_ALONE else "MISSED"
        cells = [with_range(step), with_range(alone), with_range(ratios), goal]
        lines.append(line([row.task, row.ranks, row.threads, *cells]))
    return "\n".join(lines)


def goals(rows: list[Row]) -> str:
    """Each goal with the value reached."""
    lines = []
    for whole, boxes in pairs_of(rows):
        reached = [
            ("times faster", FASTER, faster(whole, boxes)),
            ("times less peak memory above imports", LESS_MEMORY, above_imports(whole) / above_imports(boxes)),
            ("times less peak memory above a 64 x 64 run", LESS_MEMORY, above_small(whole) / above_small(boxes)),
        ]
        for words, goal, value in reached:
            if whole.ranks in goal:
                verdict = "reached" if value >= goal[whole.ranks] else "MISSED"
                lines.append(
                    f"* {verdict}: ranks {whole.ranks}, {value:.2f} {words} (goal: at least {goal[whole.ranks]})"
                )
    return "\n".join(lines)


def pairs_of(rows: list[Row]) -> list[tuple[Row, Row]]:
    """(replicated, sharded) of each number of ranks."""
    return [(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]


def faster(whole: Row, boxes: Row) -> float:
    """How often the step of the second goes into that of the first."""
    return statistics.median(whole.step_s) / statistics.median(boxes.step_s)


def above_imports(row: Row) -> float:
    """Bytes, median over the rounds."""
    return statistics.median(row.process_bytes) - row.imported_bytes


def above_small(row: Row) -> float:
    """Bytes, median over the rounds; at least one page, where the image does not show."""
    return max(4096.0, statistics.median(row.process_bytes) - row.small_bytes)


def side_by_side(pair: tuple[Row, Row], size: Callable[[Row], float]) -> list[str]:
    """Cells of both layouts and of their ratio."""
    whole, boxes = (size(row) for row in pair)
    return [megabytes(whole), megabytes(boxes), f"{whole / boxes:.2f}"]


def megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}"


def with_range(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def markdown(head: str) -> list[str]:
    """The first two lines of a table."""
    names = head.split("|")
    return [line(names), "|" + " --- |" * len(names)]


def line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


if __name__ == "__main__":
    main()
