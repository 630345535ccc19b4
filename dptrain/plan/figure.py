"""The picture of a table of plans: predicted efficiency over the number of ranks, one line per image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from dptrain.errors import UsageError
from dptrain.plan.rows import Row
from dptrain.records.places import writing


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw efficiency over rank count into a PNG, PDF or SVG file.

    :raises UsageError: another kind of file, or a place that cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    figure = Figure(figsize=(6, 3.8), dpi=120, layout="constrained")
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise UsageError(f"--plot {path}: no picture of this kind can be written\n    write: {path.stem}.png")
    axes = figure.subplots()
    for size, group in groupby(rows, key=lambda row: row.image_size):
        drawn = sorted((row for row in group if row.efficiency_bound is not None), key=lambda row: row.gpus)
        label = " x ".join(map(str, size))
        (line,) = axes.plot([r.gpus for r in drawn], [r.efficiency_bound for r in drawn], marker=".", label=label)
        knee = [row for row in drawn if row.knee]
        axes.plot(
            [r.gpus for r in knee], [r.efficiency_bound for r in knee], "o", color=line.get_color(), ms=9, mfc="none"
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({row.gpus for row in rows})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("ranks")
    axes.set_ylabel("efficiency bound")
    axes.set_title("circle: knee")
    axes.grid(alpha=0.3)
    axes.legend(title="pixels")
    with writing("the picture", path, "--plot FILE in a folder you can write"):
        figure.savefig(path)
