"""Figures of what a step costs: time by section, memory by ranks, and what checkpointing and batches of tiles trade."""

from __future__ import annotations

from collections.abc import Sequence

from dptrain.records.reading import whole_number
from dptrain.report.derive import price
from dptrain.report.figure import Cell, Figure, Key, Missing, Picture, Table
from dptrain.report.groups import RANKS, Series, completed, labels, series
from dptrain.report.runs import GIB, Run
from dptrain.report.scaling import chunks
from dptrain.report.svg import Axis, Bar, Line, Point, bar_chart, line_chart
from dptrain.status.show import size

MOST_BARS = 16
MODES = ("never", "always", "stages")
"""Of `tiling.checkpoint`, by ascending price."""


def breakdown_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Seconds of a step by section."""
    title = "Time of a step by section"
    able = [run for run in completed(runs) if run.sections]
    if not able:
        return Missing(title=title, why="a completed run with `sections` in result.json")
    able.sort(key=lambda run: (run.status.task, str(run.spec.get("problem.image_size")), run.ranks))
    names = list(dict.fromkeys(name for run in able for name in run.sections))
    pictures = []
    for task in dict.fromkeys(run.status.task for run in able):
        of_task = [run for run in able if run.status.task == task]
        named = list(zip(of_task, labels(of_task), strict=True))
        for part in chunks(named, MOST_BARS)[:6]:
            shown = [name for name in names if any(name in run.sections for run, _ in part)]
            bars = [
                Bar(
                    label=label,
                    parts=[(names.index(n), n, run.sections[n]) for n in shown if n in run.sections],
                    note=f"{sum(run.sections.values()):.3g} s",
                )
                for run, label in part
            ]
            keys = tuple(Key(slot=names.index(name), label=name) for name in shown)
            svg = bar_chart(f"Seconds of a step by section, {task}", bars, Axis(label="seconds"))
            pictures.append(Picture(svg=svg, caption=task, keys=keys))
    rows = tuple((run.name, run.ranks, run.status.task, *(run.sections.get(name) for name in names)) for run in able)
    return Figure(
        ident="breakdown",
        title=title,
        how="The median over steps of each section's seconds on rank 0, without the first step; parts of one name within a step add "
        "up, and `other` is what no section explains. Medians need not add up to the median step.",
        pictures=tuple(pictures),
        table=Table(header=("run", "ranks", "task", *(f"{name} (s)" for name in names)), rows=rows),
    )


def memory_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Peak memory of a rank over ranks, measured and forecast."""
    title = "Memory against ranks"
    found = series(runs, RANKS, lambda run: None if run.peak_gib is None else run.ranks)
    if not found:
        return Missing(title=title, why="two completed runs that differ in nothing but resources.gpus")
    rows: list[tuple[Cell, ...]] = [
        (one.label, run.ranks, run.peak_gib, run.forecast("peak_gib"), run.forecast("capacity_gib"), run.name)
        for one in found
        for run in one.runs
    ]
    without = "" if any(row[3] is not None for row in rows) else " No plan of these runs holds a forecast."
    return Figure(
        ident="memory",
        title=title,
        how="Measured: `peak_memory_bytes` of the rank with most, the tensors alive at once (the allocator's count on a GPU). Forecast: "
        "`memory.peak_gib` of the run's plan, without its allowance; dashed." + without,
        pictures=tuple(_memory_picture(part) for part in chunks(found)),
        table=Table(
            header=("series", "ranks", "measured (GiB)", "forecast (GiB)", "card (GiB)", "run"), rows=tuple(rows)
        ),
    )


def _memory_picture(part: Sequence[Series]) -> Picture:
    unit, scale = _unit([run for one in part for run in one.runs])
    lines = []
    for slot, one in enumerate(part):
        measured = [Point(x=run.ranks, y=v * scale) for run in one.runs if (v := run.peak_gib) is not None]
        lines.append(Line(label=one.label, points=measured, slot=slot))
        forecast = [Point(x=run.ranks, y=v * scale) for run in one.runs if (v := run.forecast("peak_gib")) is not None]
        if forecast:
            lines.append(Line(label=f"{one.label}, forecast", points=forecast, slot=slot, dashed=True))
    ticks = sorted({run.ranks for one in part for run in one.runs})
    return Picture(
        svg=line_chart(
            "Peak memory of a rank over ranks",
            lines,
            Axis(label="ranks", scale="log2", ticks=ticks),
            Axis(label=f"{unit} at the peak", low=0),
        ),
        keys=tuple(Key(slot=slot, label=one.label) for slot, one in enumerate(part)),
    )


def _unit(runs: Sequence[Run]) -> tuple[str, int]:
    """What the peaks of these runs are drawn in, and how many of it are a GiB."""
    return ("GiB", 1) if max((run.peak_gib or 0.0 for run in runs), default=0.0) >= 0.5 else ("MiB", 1024)


def checkpoint_figure(runs: Sequence[Run]) -> Figure | Missing:
    """What activation checkpointing saves in memory and costs in time."""
    title = "Checkpoint trade"
    trained = [run for run in runs if run.status.task == "train" and run.step_s is not None]
    found = series(trained, ("tiling.checkpoint",), lambda run: run.decided("checkpoint"))
    if not found:
        return Missing(title=title, why="two completed training runs that differ in nothing but tiling.checkpoint")
    rows: list[tuple[Cell, ...]] = []
    pictures = []
    for one in found:
        ordered = sorted(one.runs, key=lambda run: _mode(run))
        base = ordered[0]
        for run in ordered:
            saved = None if run.peak_gib is None or not base.peak_gib else price(run.peak_gib, base.peak_gib)
            peaks = (run.forecast("forward_gib"), run.forecast("backward_gib"), run.peak_gib)
            rows.append((one.label, _mode_name(run), *peaks, saved, run.step_s, price_of(run, base), run.name))
        pictures.append(_trade_picture(one.label, [(_mode_name(run), run) for run in ordered]))
    header = (
        "series",
        "checkpoint",
        "forward, forecast (GiB)",
        "backward, forecast (GiB)",
        "peak, measured (GiB)",
        "memory against first",
        "s/step",
        "time price",
        "run",
    )
    return Figure(
        ident="checkpoint",
        title=title,
        how="Runs alike in all but `tiling.checkpoint`. The time price is the step time over that of the mode that keeps most, less one; "
        "memory is compared in the same way. Peaks of forward and backward pass are the plan's forecast.",
        pictures=tuple(pictures[:8]),
        table=Table(header=header, rows=tuple(rows)),
    )


def price_of(run: Run, base: Run) -> float | None:
    """The time price of a run: its step time over that of the base, less one."""
    return price(run.step_s, base.step_s) if run.step_s and base.step_s else None


def batch_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Time and memory over the number of tiles per call."""
    title = "Batches of tiles"
    timed = [run for run in runs if run.step_s is not None]
    found = series(timed, ("tiling.max_batch_size",), lambda run: whole_number(run.decided("max_batch_size"), 1))
    if not found:
        return Missing(title=title, why="two completed runs that differ in nothing but tiling.max_batch_size")
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        for run in one.runs:
            first = one.runs[0]
            rows.append((one.label, _batch(run), run.step_s, price_of(run, first), run.peak_gib, run.name))
    pictures = []
    for part in chunks(found):
        ticks = sorted({_batch(run) for one in part for run in one.runs})
        x = Axis(label="tiles per call", scale="log2", ticks=ticks)
        keys = tuple(Key(slot=slot, label=one.label) for slot, one in enumerate(part))
        unit, scale = _unit([run for one in part for run in one.runs])
        for label, key, factor in (("s / step", "step_s", 1), (f"{unit} at the peak", "peak_gib", scale)):
            lines = [
                Line(
                    label=one.label,
                    slot=slot,
                    points=[
                        Point(x=_batch(run), y=v * factor) for run in one.runs if (v := getattr(run, key)) is not None
                    ],
                )
                for slot, one in enumerate(part)
            ]
            if all(line.points for line in lines):
                chart = line_chart(f"{label} over tiles per call", lines, x, Axis(label=label, low=0))
                pictures.append(Picture(svg=chart, keys=keys))
    return Figure(
        ident="batch",
        title=title,
        how="Runs alike in all but `tiling.max_batch_size` (`fit`: the number that plan has decided). Median step time, and the peak "
        "memory of the rank with most; the price is against the smallest batch.",
        pictures=tuple(pictures[:8]),
        table=Table(
            header=("series", "tiles per call", "s/step", "time against first", "peak (GiB)", "run"), rows=tuple(rows)
        ),
    )


def _batch(run: Run) -> int:
    return int(run.decided("max_batch_size"))


def _mode_name(run: Run) -> str:
    return str(run.decided("checkpoint"))


def _mode(run: Run) -> tuple[int, str]:
    name = _mode_name(run)
    return (MODES.index(name) if name in MODES else len(MODES), name)


def _trade_picture(label: str, runs: Sequence[tuple[str, Run]]) -> Picture:
    """Time and memory as shares of the largest, so that both are read on one axis."""
    longest = max(run.step_s or 0 for _, run in runs)
    highest = max(run.peak_gib or 0 for _, run in runs)
    bars = []
    for mode, run in runs:
        bars.append(
            Bar(label=f"{mode}: time", parts=[(0, "s / step", (run.step_s or 0) / longest)], note=f"{run.step_s:.3g} s")
        )
        if run.peak_gib is not None and highest:
            share = run.peak_gib / highest
            bars.append(Bar(label=f"{mode}: memory", parts=[(1, "GiB", share)], note=size(int(run.peak_gib * GIB))))
    svg = bar_chart(f"Time and memory by checkpointing, {label}", bars, Axis(label="share of the largest", high=1))
    return Picture(svg=svg, caption=label, keys=(Key(slot=0, label="time of a step"), Key(slot=1, label="peak memory")))
