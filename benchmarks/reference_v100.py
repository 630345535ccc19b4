"""The forecast against published memory peaks of training in layout `replicated` on V100 cards of 32 GiB (`training_v100.csv`).

Each row is a DRUNet with random weights in five unrolled PGD steps on four frames of super-resolution, one image per step. Printed:
forecast and published peak, their signed difference, and whether the row is said to fit with the allowance. Then one factor is
fitted on every other row and the rest judged by it, and the other way round. The published runs used an earlier deepinv and the
allocator's own count, which has the workspaces of convolutions. Where the figures come from stands at the head of their file.

    python benchmarks/reference_v100.py [--file FILE] [--rows 0 1 2]
"""

from __future__ import annotations

import argparse
import csv
import statistics
from dataclasses import dataclass
from pathlib import Path

from dptrain.plan.cards import ALLOWANCE, Card
from dptrain.plan.forecast import Forecast, Request, forecast
from dptrain.spec.schema import (
    Algorithm,
    Checkpoint,
    Denoiser,
    MultiframeSuperres,
    Problem,
    Resources,
    Spec,
    Tiling,
    Train,
)

CARD = Card(capacity_gib=32)
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One published run."""

    label: str
    request: Request
    peak_mib: float | None
    """None: it did not fit."""


def read_rows(file: Path) -> list[Row]:
    """The rows of a file of published peaks."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [_row(values) for values in csv.DictReader(line for line in lines if not line.startswith("#"))]


def source(file: Path) -> str:
    """Where the figures come from, as the file says."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("#")) or f"# {file}"


def _row(values: dict[str, str]) -> Row:
    size, ranks, batch = int(values["image"]), int(values["gpus"]), int(values["max_batch_size"])
    modes: dict[str, Checkpoint] = {"always": "always", "never": "never", "auto": "auto"}
    mode = modes[values["checkpoint"]]
    spec = Spec(
        name="published",
        problem=Problem(
            image_size=(size, size),
            channels=int(values["channels"]),
            physics=MultiframeSuperres(frames=int(values["operators"])),
        ),
        denoiser=Denoiser(weights="random"),
        algorithm=Algorithm(iterations=int(values["K"])),
        tiling=Tiling(patch=int(values["patch"]), halo=int(values["halo"]), max_batch_size=batch, checkpoint=mode),
        resources=Resources(gpus=ranks, layout="replicated"),
        train=Train(),
    )
    fitted = not values["peak_mib"].startswith("did-not-fit")
    return Row(
        label=f"{size}^2 patch {values['patch']} {ranks} GPUs batch {batch} {mode}",
        request=Request(spec=spec, task="train", max_batch_size=batch, checkpoint=mode),
        peak_mib=float(values["peak_mib"]) if fitted else None,
    )


def report(rows: list[Row], forecasts: list[Forecast]) -> list[str]:
    """One line per row, then the judgement."""
    lines = [f"{'':46} forecast published    error  fits 32 GiB (with {ALLOWANCE - 1:.0%})"]
    pairs = []
    for row, made in zip(rows, forecasts, strict=True):
        if made.error is not None:
            lines.append(f"{row.label:46} no forecast: {made.error}")
            continue
        mine, fits = made.peak_bytes / MIB, CARD.fits(made)
        right = "right" if fits == (row.peak_mib is not None) else "WRONG"
        if row.peak_mib is None:
            lines.append(f"{row.label:46} {mine:8.0f} did not fit           {fits!s:5} {right}")
            continue
        pairs.append((mine, row.peak_mib))
        lines.append(
            f"{row.label:46} {mine:8.0f} {row.peak_mib:9.0f} {mine / row.peak_mib - 1:+8.1%}  {fits!s:5} {right}"
        )
    if len(pairs) > 1:
        errors = [mine / published - 1 for mine, published in pairs]
        lines.append(f"without a factor: {min(errors):+.1%} to {max(errors):+.1%} on {len(pairs)} rows")
        lines += [_judged(pairs[::2], pairs[1::2], "even", "odd"), _judged(pairs[1::2], pairs[::2], "odd", "even")]
    return lines


def _judged(fitted: list[tuple[float, float]], others: list[tuple[float, float]], mine: str, its: str) -> str:
    """One factor from some rows, and the worst of the others with it."""
    factor = statistics.median(published / made for made, published in fitted)
    worst = max((factor * made / published - 1 for made, published in others), key=abs)
    return f"factor fitted on the {mine} rows: {factor:.3f}; with it the worst of the {its} rows is {worst:+.1%}"


def main() -> None:
    """Forecast the rows and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("training_v100.csv"))
    parser.add_argument("--rows", type=int, nargs="*", help="numbers of rows, from 0; default: all")
    chosen = parser.parse_args()
    rows = read_rows(chosen.file)
    rows = [rows[i] for i in chosen.rows] if chosen.rows else rows
    print(source(chosen.file))
    print("\n".join(report(rows, forecast([row.request for row in rows]))))


if __name__ == "__main__":
    main()
