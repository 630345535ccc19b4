"""The layouts `replicated` and `sharded` side by side: step time, memory and bytes sent of N local ranks, and the goals set for them.

Two cases. *Overhead-bound*: a tiny denoiser on a large image, where what is not the denoiser decides. Every number is of real
`dptrain train` runs, the layouts in turn (A B A B), medians over the rounds with their range. Memory of a rank is the resident peak
of its process, set-up and output included, above that of a process that has only imported what a rank imports; and the tracked
peak, the sum of tensor storages alive at once.
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
"""The same of the peak above the import baseline."""
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
    """Resident peak of the largest rank above the import baseline."""
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
            print(f"Overhead-bound, {options.size} x {options.size}:\n\n{table(rows)}\n\n{goals(rows)}\n", flush=True)
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
    baseline = import_baseline_bytes()
    print(f"import baseline: {baseline / 1e6:.0f} MB resident\n", flush=True)
    rows = []
    for ranks in options.ranks:
        rounds: list[list[Row]] = []
        for number in range(options.rounds):
            names = [(layout, folder / f"{layout}-{ranks}-{number}") for layout in LAYOUTS]
            rounds.append([measure(layout, ranks, spec, runs, baseline) for layout, runs in names])
            seconds = ", ".join(f"{row.layout} {row.step_s[0]:.3f} s per step" for row in rounds[-1])
            print(f"measured: {ranks} ranks, {seconds}", file=sys.stderr, flush=True)
        rows += [joined(same) for same in zip(*rounds, strict=True)]
    return rows


def measure(layout: str, ranks: int, spec: Path, runs: Path, baseline: int) -> Row:
    """One run."""
    done = run_dptrain("train", ranks, spec, runs, [f"resources.layout={layout}"])
    finals = [final for (final,) in done.events("final")]
    storages = [final["largest_storage_bytes"] for final in finals if "largest_storage_bytes" in final]
    return Row(
        ranks=ranks,
        layout=layout,
        threads=done.events("start")[0][0]["threads"],
        step_s=[done.step_s],
        process_bytes=[done.resident_peak_bytes - baseline],
        tracked_bytes=max(done.result["peak_memory_bytes"]),
        largest_storage_bytes=max(storages, default=None),
        sent_bytes_per_step=sum(final["bytes_sent"] / final["steps"] for final in finals),
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


def table(rows: list[Row]) -> str:
    """The layouts side by side, one line per number of ranks."""
    head = "ranks|threads|step s, replicated|step s, sharded|faster"
    head += "|peak MB above import, replicated|sharded|less|tracked MB, replicated|sharded|less"
    head += "|largest tensor MB, replicated|sharded|sent MB per step, replicated|sharded"
    lines = markdown(head.split("|"))
    for whole, boxes in pairs_of(rows):
        cells = [str(whole.ranks), str(whole.threads), with_range(whole.step_s, 1), with_range(boxes.step_s, 1)]
        cells += [
            f"{faster(whole, boxes):.2f}",
            with_range(whole.process_bytes, 1e6),
            with_range(boxes.process_bytes, 1e6),
        ]
        cells += [
            f"{less_memory(whole, boxes):.2f}",
            f"{whole.tracked_bytes / 1e6:.0f}",
            f"{boxes.tracked_bytes / 1e6:.0f}",
        ]
        cells += [f"{whole.tracked_bytes / boxes.tracked_bytes:.2f}"]
        cells += [
            "-" if row.largest_storage_bytes is None else f"{row.largest_storage_bytes / 1e6:.1f}"
            for row in (whole, boxes)
        ]
        cells += [f"{row.sent_bytes_per_step / 1e6:.1f}" for row in (whole, boxes)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compute_table(rows: list[ComputeRow]) -> str:
    """One line per task and number of ranks, with the goal."""
    lines = markdown(["task", "ranks", "threads", "step s", "calls alone s", "step / calls", f"at most {ABOVE_ALONE}"])
    for row in rows:
        times = [
            with_range([pair.step_s for pair in row.pairs], 1),
            with_range([pair.alone_s for pair in row.pairs], 1),
        ]
        ratio = with_range([pair.step_s / pair.alone_s for pair in row.pairs], 1)
        goal = "reached" if row.ratio <= ABOVE_ALONE else "MISSED"
        lines.append(f"| {' | '.join([row.task, str(row.ranks), str(row.threads), *times, ratio, goal])} |")
    return "\n".join(lines)


def goals(rows: list[Row]) -> str:
    """Each goal with the value reached."""
    lines = []
    for whole, boxes in pairs_of(rows):
        reached: list[tuple[str, dict[int, float], Callable[[Row, Row], float]]] = [
            ("times faster", FASTER, faster),
            ("times less peak memory above the import baseline", LESS_MEMORY, less_memory),
        ]
        for words, goal, ratio in reached:
            if whole.ranks in goal:
                value, least = ratio(whole, boxes), goal[whole.ranks]
                verdict = "reached" if value >= least else "MISSED"
                lines.append(f"* {verdict}: ranks {whole.ranks}, {value:.2f} {words} (goal: at least {least})")
    return "\n".join(lines)


def pairs_of(rows: list[Row]) -> list[tuple[Row, Row]]:
    """(replicated, sharded) of each number of ranks."""
    return [(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]


def faster(whole: Row, boxes: Row) -> float:
    return statistics.median(whole.step_s) / statistics.median(boxes.step_s)


def less_memory(whole: Row, boxes: Row) -> float:
    return statistics.median(whole.process_bytes) / statistics.median(boxes.process_bytes)


def with_range(values: Sequence[float], unit: float) -> str:
    """Median and range."""
    middle, *ends = (value / unit for value in (statistics.median(values), min(values), max(values)))
    digits = 0 if unit > 1 else 3
    return f"{middle:.{digits}f} ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"


def markdown(head: list[str]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]


if __name__ == "__main__":
    main()
