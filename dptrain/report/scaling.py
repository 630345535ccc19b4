"""Figures of scaling: strong, work-normalised, weak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dptrain.report.derive import Scaled, Timing, quartiles, scaled, weak_efficiency
from dptrain.report.figure import Cell, Figure, Key, Missing, Picture, Table
from dptrain.report.groups import RANKS, Series, labelled, ladders, pixels_per_rank, series, untiled_by, work_of
from dptrain.report.runs import Run
from dptrain.report.svg import SLOTS, Axis, Line, Point, line_chart
from dptrain.report.together import warning

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """One series against its base."""

    label: str
    base: Run
    runs: tuple[Run, ...]
    points: tuple[Scaled, ...]


def timing(run: Run) -> Timing:
    """What scaling needs of a run that has recorded a step."""
    assert run.step_s is not None, "only runs that have recorded steps are in series"
    return Timing(ranks=run.ranks, step_s=run.step_s, work=run.work)


def strong(runs: Sequence[Run]) -> list[Scaling]:
    """Every strong-scaling series: runs that differ in their number of ranks alone, against the one on fewest."""
    return [_against(one, one.runs[0]) for one in _by_ranks(runs, least=2)]


def work_normalised(runs: Sequence[Run]) -> list[Scaling]:
    """Tiled runs on any number of ranks against the untiled run of the same problem on one."""
    bases = untiled_by((run for run in runs if run.step_s is not None), work_of)
    found: list[tuple[Run, tuple[Run, ...]]] = []
    for one in _by_ranks([run for run in runs if not run.untiled and run.work is not None], least=1):
        by_base: dict[str, list[Run]] = {}
        for run in one.runs:
            by_base.setdefault(work_of(run), []).append(run)
        found += [(bases[key], tuple(group)) for key, group in by_base.items() if key in bases]
    return [
        _against(s, base) for s, (base, _) in zip(labelled([group for _, group in found], RANKS), found, strict=True)
    ]


def _by_ranks(runs: Sequence[Run], least: int) -> list[Series]:
    return series(runs, RANKS, lambda run: None if run.step_s is None else run.ranks, least)


def _against(one: Series, base: Run) -> Scaling:
    points = tuple(scaled(timing(run), timing(base)) for run in one.runs)
    return Scaling(label=one.label, base=base, runs=one.runs, points=points)


def strong_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Step time, speedup and efficiency over ranks."""
    title = "Strong scaling"
    found = strong(runs)
    if not found:
        return Missing(title=title, why="two completed runs that differ in nothing but resources.gpus")
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        for run, point in zip(one.runs, one.points, strict=True):
            low, high = quartiles(run.steps_s) if run.steps_s else (None, None)
            share = (point.step_s, low, high, point.speedup, point.efficiency)
            rows.append((one.label, point.ranks, one.base.ranks, *share, run.name))
    header = ("series", "ranks", "base ranks", "s/step", "1st quartile", "3rd quartile", "speedup", "efficiency", "run")
    return Figure(
        ident="strong-scaling",
        title=title,
        how="Seconds of a step are the median over the steps of a run, without the first of each attempt; bars are the quartiles. "
        "Speedup is the step time on the fewest ranks of the series over that on N; efficiency is speedup times base ranks over N. "
        "A series is of runs alike in all but the number of ranks.",
        warning=warning(runs, [run for one in found for run in one.runs]),
        pictures=tuple(p for part in _parts(found) for p in (_time_picture(part), _efficiency_picture(part))),
        table=Table(header=header, rows=tuple(rows)),
    )


def work_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Efficiency against the untiled run, with and without halos counted as work."""
    title = "Work-normalised efficiency"
    found = work_normalised(runs)
    if not found:
        why = (
            "a completed untiled run on one rank (tiling.patch: none, resources.gpus: 1) of the problem of a tiled one, "
            "in training with the same recomputation (tiling.checkpoint)"
        )
        return Missing(title=title, why=why)
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        for run, p in zip(one.runs, one.points, strict=True):
            numbers = (p.step_s, run.work, p.speedup, p.efficiency, p.work_normalised)
            rows.append((one.label, p.ranks, *numbers, run.name, one.base.name))
    return Figure(
        ident="work-normalised",
        title=title,
        how="Against the untiled run on one rank that recomputes as much (tiling.checkpoint). Efficiency is speedup over ranks; "
        "work-normalised efficiency is that times the work "
        "multiplier (padded tile area over image area), so what is lost there is not lost to halos. Dashed: efficiency.",
        warning=warning(runs, [run for one in found for run in (one.base, *one.runs)]),
        pictures=tuple(_work_picture(part) for part in _parts(found)),
        table=Table(
            header=(
                "series",
                "ranks",
                "s/step",
                "work multiplier",
                "speedup",
                "efficiency",
                "work-normalised",
                "run",
                "untiled run",
            ),
            rows=tuple(rows),
        ),
    )


def weak_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Ladders of one number of pixels per rank."""
    title = "Weak scaling"
    found = ladders([run for run in runs if run.step_s is not None])
    if not found:
        why = "two completed runs alike but for image and ranks, with as many pixels per rank (to 2 %)"
        return Missing(title=title, why=why)
    rows: list[tuple[Cell, ...]] = []
    lines, bottom = [], 1.0
    for slot, ladder in enumerate(found):
        base = timing(ladder.runs[0]).step_s
        shares = [weak_efficiency(timing(run).step_s, base) for run in ladder.runs]
        bottom = min(bottom, *shares)
        for run, share in zip(ladder.runs, shares, strict=True):
            size = " x ".join(map(str, run.image_size or ()))
            rows.append((ladder.label, run.ranks, size, pixels_per_rank(run), run.step_s, share, run.name))
        points = [Point(x=run.ranks, y=share) for run, share in zip(ladder.runs, shares, strict=True)]
        lines.append(Line(label=ladder.label, points=points, slot=slot % SLOTS))
    return Figure(
        ident="weak-scaling",
        title=title,
        how="A ladder is of completed runs alike in all but image and number of ranks, in which a rank has as many pixels (to 2 %). "
        "Weak efficiency is the step time on the fewest ranks over that on N: 1 where N times the pixels on N ranks take no longer.",
        warning=warning(runs, [run for ladder in found for run in ladder.runs]),
        pictures=tuple(
            Picture(
                svg=line_chart(
                    "Weak efficiency over ranks",
                    [*part, _ideal([r.ranks for ladder in found for r in ladder.runs], 1)],
                    _ranks_axis([r.ranks for ladder in found for r in ladder.runs]),
                    Axis(label="weak efficiency", low=0, high=1),
                ),
                keys=tuple(Key(slot=line.slot, label=line.label) for line in part),
            )
            for part in chunks(lines)
        ),
        table=Table(
            header=("ladder", "ranks", "image", "pixels per rank", "s/step", "weak efficiency", "run"), rows=tuple(rows)
        ),
    )


def chunks(values: Sequence[Item], size: int = SLOTS) -> list[Sequence[Item]]:
    """So many at most in one picture."""
    return [values[i : i + size] for i in range(0, len(values), size)]


def _parts(found: Sequence[Scaling]) -> list[Sequence[Scaling]]:
    return chunks(found)


def _keys(part: Sequence[Scaling]) -> tuple[Key, ...]:
    return tuple(Key(slot=slot, label=one.label) for slot, one in enumerate(part))


def _ranks_axis(ranks: Sequence[int]) -> Axis:
    return Axis(label="ranks", scale="log2", ticks=sorted(set(ranks)))


def _ideal(ranks: Sequence[int], level: float) -> Line:
    return Line(label="ideal", slot=-1, dashed=True, points=[Point(x=r, y=level) for r in (min(ranks), max(ranks))])


def _time_picture(part: Sequence[Scaling]) -> Picture:
    lines = []
    for slot, one in enumerate(part):
        points = []
        for run, p in zip(one.runs, one.points, strict=True):
            low, high = quartiles(run.steps_s) if run.steps_s else (None, None)
            points.append(Point(x=p.ranks, y=p.step_s, low=low, high=high))
        lines.append(Line(label=one.label, points=points, slot=slot))
        ends = (one.points[0], one.points[-1])
        ideal = [Point(x=p.ranks, y=ends[0].step_s * one.base.ranks / p.ranks) for p in ends]
        lines.append(Line(label="ideal", points=ideal, slot=-1, dashed=True))
    axis = _ranks_axis([p.ranks for one in part for p in one.points])
    return Picture(
        svg=line_chart("Seconds of a step over ranks", lines, axis, Axis(label="s / step", scale="log10")),
        caption="Seconds of a step; thin dashed lines: N times faster on N times the ranks.",
        keys=_keys(part),
    )


def _efficiency_picture(part: Sequence[Scaling]) -> Picture:
    ranks = [p.ranks for one in part for p in one.points]
    lines = [
        Line(label=one.label, slot=slot, points=[Point(x=p.ranks, y=p.efficiency) for p in one.points])
        for slot, one in enumerate(part)
    ]
    axis = Axis(label="efficiency", low=0, high=1)
    return Picture(
        svg=line_chart("Efficiency over ranks", [*lines, _ideal(ranks, 1)], _ranks_axis(ranks), axis),
        caption="Efficiency.",
        keys=_keys(part),
    )


def _work_picture(part: Sequence[Scaling]) -> Picture:
    ranks = [p.ranks for one in part for p in one.points]
    lines = []
    for slot, one in enumerate(part):
        normal = [Point(x=p.ranks, y=p.work_normalised) for p in one.points if p.work_normalised is not None]
        lines.append(Line(label=f"{one.label}, work-normalised", slot=slot, points=normal))
        plain = [Point(x=p.ranks, y=p.efficiency) for p in one.points]
        lines.append(Line(label=f"{one.label}, efficiency", slot=slot, points=plain, dashed=True))
    axis = Axis(label="efficiency", low=0, high=1)
    return Picture(
        svg=line_chart(
            "Efficiency against the untiled run over ranks", [*lines, _ideal(ranks, 1)], _ranks_axis(ranks), axis
        ),
        keys=_keys(part),
    )
