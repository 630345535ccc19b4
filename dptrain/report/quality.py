"""Figures of the result: PSNR and loss along the run, and how far they are from those of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dptrain.report.derive import largest_difference
from dptrain.report.figure import Cell, Figure, Key, Missing, Picture, Table
from dptrain.report.groups import HOW, labels, newest_by
from dptrain.report.runs import Run, psnr_of_both
from dptrain.report.scaling import chunks
from dptrain.report.svg import SLOTS, Axis, Line, Point, line_chart

MOST_POINTS = 200
"""Of a line: longer paths are drawn at every n-th step."""
MOST_ROWS = 50
"""Of a path in a table."""
MOST_PICTURES = 12
LEAST_DIFFERENCE = 1e-9
"""Where smaller ones, and none, are drawn: the axis is logarithmic."""
SAME_HEIGHT = 0.005
"""Of the height of a picture: lines so near to each other are one."""


def psnr_path(run: Run) -> tuple[list[float], list[float]]:
    """Steps and PSNR, as `Run.psnr_at`."""
    return _known(list(run.psnr_at), list(run.psnr_at.values()))


def loss_path(run: Run) -> tuple[list[float], list[float]]:
    """Steps, from 1, and the loss of each."""
    values = run.entries("loss")
    return _known([k + 1.0 for k in range(len(values))], values)


def _known(steps: Sequence[float | None], values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """The points that have both coordinates."""
    points = [(x, y) for x, y in zip(steps, values, strict=True) if x is not None and y is not None]
    return [x for x, _ in points], [y for _, y in points]


def psnr_figure(runs: Sequence[Run]) -> Figure | Missing:
    """PSNR against iteration, or against the step of training."""
    paths = {run.name: psnr_path(run) for run in runs if run.completed}
    return _path_figure(
        [run for run in runs if run.completed and paths[run.name][1]],
        paths,
        Missing(title="PSNR against iteration", why="a completed run whose data has a truth"),
        ident="psnr",
        y_label="PSNR (dB)",
        how="PSNR in dB of the whole image against the truth, for a range of 1, after each iteration; 0 is the first iterate. The mean "
        "over images where a run has several. Of training: the mean over held-out images after so many optimiser steps.",
    )


def loss_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Loss against the step of training."""
    paths = {run.name: loss_path(run) for run in runs if run.completed}
    return _path_figure(
        [run for run in runs if run.completed and paths[run.name][1]],
        paths,
        Missing(title="Loss against step", why="a completed training run"),
        ident="loss",
        y_label="loss",
        how="Training loss of each optimiser step, the mean over its images and over all ranks, before the step changes the weights.",
    )


def difference_figure(runs: Sequence[Run]) -> Figure | Missing:
    """How far PSNR and loss are from those of the single-rank run of the same settings."""
    title = "Difference to the single-rank reference"
    rows: list[tuple[Cell, ...]] = []
    references = newest_by((r for r in runs if r.ranks == 1), lambda run: run.setting(HOW))
    for run in (r for r in runs if r.completed and r.ranks > 1):
        reference = references.get(run.setting(HOW))
        if reference is None:
            continue
        pairs = [psnr_of_both(run, reference), (run.entries("loss"), reference.entries("loss"))]
        found = [largest_difference(*pair) for pair in pairs]
        if found != [None, None]:
            rows.append((run.name, run.ranks, str(run.spec.get("resources.layout")), reference.name, *found))
    if not rows:
        why = "a completed run on several ranks and one on one rank, alike in all but ranks, layout, batch and checkpointing"
        return Missing(title=title, why=why)
    return Figure(
        ident="reference",
        title=title,
        how="The largest absolute difference of the PSNR path (dB; in training at the steps at which both were measured), and of the "
        "list of losses, to the newest completed single-rank run alike in all but ranks, layout, batch and checkpointing. Differences "
        "below 1e-9 are drawn there.",
        pictures=(_difference_picture(rows),),
        table=Table(header=("run", "ranks", "layout", "reference", "PSNR (dB)", "loss"), rows=tuple(rows)),
    )


def _difference_picture(rows: Sequence[tuple[Cell, ...]]) -> Picture:
    """One point per run and its larger difference, by layout."""
    layouts = list(dict.fromkeys(str(row[2]) for row in rows))
    lines = []
    for row in rows:
        value = max(float(v or 0) for v in row[4:6])
        point = Point(x=float(row[1] or 0), y=max(value, LEAST_DIFFERENCE))
        lines.append(Line(label=str(row[0]), points=[point], slot=layouts.index(str(row[2]))))
    axis = Axis(label="ranks", scale="log2", ticks=sorted({p.x for line in lines for p in line.points}))
    y = Axis(label="largest difference", scale="log10")
    keys = tuple(Key(slot=slot, label=layout) for slot, layout in enumerate(layouts))
    return Picture(svg=line_chart("Largest difference over ranks", lines, axis, y), keys=keys)


def _path_figure(
    runs: Sequence[Run],
    paths: dict[str, tuple[list[float], list[float]]],
    missing: Missing,
    *,
    ident: str,
    y_label: str,
    how: str,
) -> Figure | Missing:
    """One picture per group of runs that are alike but for how they compute; the same legend, the same axes."""
    if not runs:
        return missing
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.setting(HOW), []).append(run)
    titles = labels([group[0] for group in groups.values()], HOW)
    pictures = []
    for title, group in zip(titles, groups.values(), strict=True):
        for part in chunks(list(zip(group, labels(group), strict=True))):
            lines = merged([_path_line(label, *paths[run.name]) for run, label in part])
            task = part[0][0].status.task
            x = Axis(label="optimiser step" if task == "train" else "iteration", whole=True)
            svg = line_chart(f"{y_label} over steps, {title}", lines, x, Axis(label=y_label))
            keys = tuple(Key(slot=line.slot, label=line.label) for line in lines)
            pictures.append(Picture(svg=svg, caption=title, keys=keys))
    note = f" The first {MOST_PICTURES} of {len(pictures)} pictures are shown." if len(pictures) > MOST_PICTURES else ""
    rows = tuple(row for run in runs for row in _path_rows(run, *paths[run.name]))
    longest = max(len(paths[run.name][0]) for run in runs)
    if longest > MOST_ROWS:
        note += " Of long paths the table has some steps only, the last among them; result.json has all."
    return Figure(
        ident=ident,
        title=missing.title,
        how=how + note,
        pictures=tuple(pictures[:MOST_PICTURES]),
        table=Table(header=("run", "step", y_label), rows=rows),
    )


def _path_line(label: str, steps: Sequence[float], values: Sequence[float]) -> Line:
    chosen = thinned(len(values), MOST_POINTS)
    return Line(label=label, points=[Point(x=steps[i], y=values[i]) for i in chosen])


def merged(lines: Sequence[Line]) -> list[Line]:
    """Lines that nobody could tell apart become one that says so; each has a slot of its own."""
    heights = [p.y for line in lines for p in line.points]
    near = SAME_HEIGHT * (max(heights) - min(heights))
    groups: list[list[Line]] = []
    for line in lines:
        group = next((g for g in groups if _coincide(g[0], line, near)), None)
        groups.append([line]) if group is None else group.append(line)
    return [
        replace(
            group[0],
            slot=slot % SLOTS,
            label=group[0].label
            if len(group) == 1
            else f"{len(group)} runs that coincide at this scale: {'; '.join(line.label for line in group)}",
        )
        for slot, group in enumerate(groups)
    ]


def _coincide(a: Line, b: Line, near: float) -> bool:
    if [p.x for p in a.points] != [p.x for p in b.points]:
        return False
    return all(abs(p.y - q.y) <= near for p, q in zip(a.points, b.points, strict=True))


def _path_rows(run: Run, steps: Sequence[float], values: Sequence[float]) -> list[tuple[Cell, ...]]:
    return [(run.name, int(steps[i]), values[i]) for i in thinned(len(values), MOST_ROWS)]


def thinned(count: int, most: int) -> list[int]:
    """Positions of at most about so many of `count` entries, evenly, the last one among them."""
    chosen = list(range(0, count, max(1, -(-count // most))))
    return chosen if not count or chosen[-1] == count - 1 else [*chosen, count - 1]
