"""The forecast against published memory peaks of training in layout `replicated` on V100 cards of 32 GiB (`training_v100.csv`).

Each row is a DRUNet with random weights in five unrolled PGD steps on four frames of super-resolution, one image per step. Printed:
forecast and published peak, their signed difference, and whether the row is said to fit with the allowance. Then one factor is
fitted on every other row and the rest judged by it. The published runs used an earlier deepinv and their allocator's own count.

    python benchmarks/reference_v100.py [--file FILE] [--rows 0 1 2]
"""

from __future__ import annotations

import argparse
import csv
import statistics
from dataclasses import dataclass
from pathlib import Path

from dptrain.plan.forecast import ALLOWANCE, Forecast, Request, forecast
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

CAPACITY_GIB = 32
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
    with file.open(encoding="utf-8", newline="") as stream:
        return [_row(values) for values in csv.DictReader(stream)]


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
        mine, fits = made.peak_bytes / MIB, made.fits(CAPACITY_GIB)
        right = "right" if fits == (row.peak_mib is not None) else "WRONG"
        if row.peak_mib is None:
            lines.append(f"{row.label:46} {mine:8.0f} did not fit           {fits!s:5} {right}")
            continue
        pairs.append((mine, row.peak_mib))
        lines.append(
            f"{row.label:46} {mine:8.0f} {row.peak_mib:9.0f} {mine / row.peak_mib - 1:+8.1%}  {fits!s:5} {right}"
        )
    fitted, judged = pairs[::2], pairs[1::2]
    if judged:
        factor = statistics.median(published / mine for mine, published in fitted)
        worst = max((factor * mine / published - 1 for mine, published in judged), key=abs)
        lines.append(f"factor fitted on every other row: {factor:.3f}; of the others the worst is {worst:+.1%}")
    return lines


def main() -> None:
    """Forecast the rows and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("training_v100.csv"))
    parser.add_argument("--rows", type=int, nargs="*", help="numbers of rows, from 0; default: all")
    chosen = parser.parse_args()
    rows = read_rows(chosen.file)
    rows = [rows[i] for i in chosen.rows] if chosen.rows else rows
    print("\n".join(report(rows, forecast([row.request for row in rows]))))


if __name__ == "__main__":
    main()
