"""Figures of what was said before: forecast against measured, and configurations that did not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dptrain.records.reading import real_number
from dptrain.report.figure import Cell, Figure, Missing, Picture, Table
from dptrain.report.groups import completed
from dptrain.report.runs import Run, plan_refuses, reason_of
from dptrain.report.svg import Axis, Line, Point, line_chart

MOST_DOTS = 200


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Something that plan says and a run measures."""

    name: str
    said: Callable[[Run], float | None]
    measured: Callable[[Run], float | None]


QUANTITIES = (
    Quantity(name="peak memory (GiB)", said=lambda run: run.forecast("peak_gib"), measured=lambda run: run.peak_gib),
    Quantity(
        name="step time (s)", said=lambda run: real_number(run.plan.get("step_time_s")), measured=lambda run: run.step_s
    ),
    Quantity(
        name="sent per step (MB)",
        said=lambda run: _mega(real_number(run.plan.get("bytes_per_step"))),
        measured=lambda run: _mega(run.sent_per_step_bytes),
    ),
)


def forecast_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Plan's numbers beside those of the run."""
    title = "Forecast against measured"
    rows: list[tuple[Cell, ...]] = []
    pictures = []
    for quantity in QUANTITIES:
        pairs = []
        for run in (run for run in completed(runs) if run.status.faults is None):
            said, found = quantity.said(run), quantity.measured(run)
            # A single rank sends nothing, and is forecast to.
            if said is not None and found is not None and said > 0 and found > 0:
                pairs.append(Point(x=said, y=found))
                rows.append((quantity.name, run.name, run.ranks, said, found, found / said))
        if pairs:
            pictures.append(_picture(quantity.name, pairs))
    if not rows:
        why = (
            "a completed run whose plan holds a forecast: memory with gpu_memory_gib in the profile, or bytes per step"
        )
        return Missing(title=title, why=why)
    return Figure(
        ident="forecast",
        title=title,
        how="What plan.json said before the run, and what the run measured: peak memory of the rank with most (the forecast without its "
        "allowance), the median step, bytes sent per step by the rank that sends most, all bytes of the newest attempt over its steps. "
        "On the line both are equal. Runs with injected faults are left out.",
        pictures=tuple(pictures),
        table=Table(
            header=("quantity", "run", "ranks", "forecast", "measured", "measured / forecast"), rows=tuple(rows)
        ),
    )


def _picture(name: str, pairs: Sequence[Point]) -> Picture:
    ends = [v for p in pairs for v in (p.x, p.y)]
    equal = [Point(x=v, y=v) for v in (min(ends), max(ends))]
    dots = [Line(label=name, points=[p]) for p in pairs[:MOST_DOTS]]
    svg = line_chart(
        f"Measured over forecast, {name}",
        [Line(label="equal", points=equal, slot=-1, dashed=True), *dots],
        Axis(label=f"forecast {name}", scale="log10"),
        Axis(label="measured", scale="log10"),
    )
    return Picture(svg=svg, caption=name)


def misfits_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Runs that plan refused or that ran out of memory; forecast beside the card where both are known."""
    title = "Configurations that did not fit"
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        reasons, failure = plan_refuses(run), run.status.failure
        ran_out = failure is not None and failure.kind.startswith("out-of-memory")
        if reasons or ran_out:
            said = reason_of(run) if ran_out else "; ".join(reasons)
            seen = "ran out of memory" if ran_out else "refused by plan"
            memory = (run.forecast("peak_gib"), run.forecast("capacity_gib"))
            rows.append((run.name, run.ranks, seen, *memory, said))
    if not rows:
        return Missing(title=title, why="a run that plan refused, or that ran out of memory; there is none")
    return Figure(
        ident="misfits",
        title=title,
        how="Runs whose plan says `fits: false`, and runs that ended out of memory. They are in no other figure.",
        pictures=(),
        table=Table(
            header=("run", "ranks", "what happened", "forecast (GiB)", "card (GiB)", "reason"), rows=tuple(rows)
        ),
    )


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6
