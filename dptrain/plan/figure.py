"""The picture of a table of plans: predicted efficiency over the number of ranks, one line per image, and the memory of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrain.errors import UsageError
from dptrain.plan.memory import LABELS
from dptrain.plan.rows import Row
from dptrain.records.places import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WRITE = "--plot FILE in a folder you can write"


def check_place(path: Path) -> None:
    """What `draw` would refuse, before there are rows.

    :raises UsageError: another kind of file, or a place that cannot be written.
    """
    from matplotlib.figure import Figure

    _check_kind(Figure(), path)
    there = path.exists()
    with writing("the picture", path, WRITE):
        path.open("ab").close()
        if not there:
            path.unlink()


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw efficiency, and where it was forecast memory by term, over rank count into a PNG, PDF or SVG file.

    :raises UsageError: another kind of file, or a place that cannot be written.
    """
    from matplotlib.figure import Figure

    remembered = _largest_image([row for row in rows if row.terms_gib])
    width = 13 if remembered else 6
    figure = Figure(figsize=(width, 3.8), dpi=120, layout="constrained")
    _check_kind(figure, path)
    panels = figure.subplots(1, 2 if remembered else 1, squeeze=False)[0]
    _draw_efficiency(panels[0], rows)
    if remembered:
        _draw_memory(panels[1], remembered)
    with writing("the picture", path, WRITE):
        figure.savefig(path)


def _check_kind(figure: Figure, path: Path) -> None:
    if path.suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"--plot {path}: no picture of this kind can be written\n    write: {path.stem or 'plan'}.png")


def _largest_image(rows: Sequence[Row]) -> list[Row]:
    """The rows of the largest image, by number of ranks."""
    largest = max((row.image_size for row in rows), key=prod, default=None)
    return sorted((row for row in rows if row.image_size == largest), key=lambda row: row.gpus)


def _draw_efficiency(axes: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

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


def _draw_memory(axes: Any, rows: Sequence[Row]) -> None:
    """One bar per number of ranks, of terms on top of each other, and a line at the card's memory."""
    terms = list(dict.fromkeys(term for row in rows for term in row.terms_gib or {} if term != "allowance"))
    below = [0.0] * len(rows)
    for term in [*terms, "allowance"]:
        heights = [(row.terms_gib or {}).get(term, 0.0) for row in rows]
        hatch = "//" if term == "allowance" else None
        axes.bar(range(len(rows)), heights, bottom=below, label=LABELS.get(term, term), hatch=hatch)
        below = [low + high for low, high in zip(below, heights, strict=True)]
    if rows[0].capacity_gib is not None:
        axes.axhline(rows[0].capacity_gib, color="black", ls="--", lw=1, label="the card")
    axes.set_xticks(range(len(rows)), [str(row.gpus) for row in rows])
    axes.set_xlabel("ranks")
    axes.set_ylabel("GiB at the peak")
    axes.set_title("memory of a rank, " + " x ".join(map(str, rows[0].image_size)))
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
