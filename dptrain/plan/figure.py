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
        points = sorted((r.gpus, r.efficiency_bound, r.knee) for r in group if r.efficiency_bound is not None)
        label = " x ".join(map(str, size))
        (line,) = axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker=".", label=label)
        knees = [(x, y) for x, y, is_knee in points if is_knee]
        axes.plot([x for x, _ in knees], [y for _, y in knees], "o", color=line.get_color(), ms=9, mfc="none")
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
