"""Figures of communication: compute, transfer and waiting per rank, and the POP efficiencies that follow from them.

They are of runs whose result.json has `communication` (docs/run-directory.md): seconds and bytes of each rank, summed over a few
measured steps, per section and for the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dptrain.records.reading import real_number
from dptrain.report.derive import communication_efficiency, load_balance, parallel_efficiency
from dptrain.report.figure import Cell, Figure, Key, Missing, Picture, Table
from dptrain.report.groups import completed, labels
from dptrain.report.runs import Run
from dptrain.report.svg import Axis, Bar, bar_chart

MOST_RANKS = 16
MOST_PICTURES = 12
NEEDED = "a completed run on several ranks that has measured its communication (`communication` in result.json)"
EFFICIENCIES = ("load balance", "communication efficiency", "parallel efficiency")


@dataclass(frozen=True, kw_only=True)
class Split:
    """One section of a step, or the whole of it: seconds and bytes per step, one entry per rank."""

    section: str
    compute_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    bytes_sent: tuple[float, ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        """Wall time of each rank."""
        return tuple(sum(parts) for parts in zip(self.compute_s, self.wait_s, self.transfer_s, strict=True))


def step_of(run: Run) -> Split | None:
    """The split of a step; None where the run has not measured it."""
    value = run.result.get("communication")
    return _split(run, value, "step", "all of the step") if isinstance(value, dict) else None


def sections_of(run: Run) -> list[Split]:
    """The split of each section of a step."""
    value = run.result.get("communication")
    sections = value.get("sections") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(sections, dict):
        return []
    found = [
        _split(run, {**sections, "steps": value.get("steps")}, name, name) for name in sections if name != "between"
    ]
    return [split for split in found if split is not None]


def _split(run: Run, value: dict[str, Any], key: str, name: str) -> Split | None:
    entry, steps = value.get(key), real_number(value.get("steps"))
    if not isinstance(entry, dict) or not steps or steps < 1:
        return None
    lists = []
    for part in ("compute_s", "wait_s", "transfer_s", "bytes_sent"):
        numbers = entry.get(part)
        known = [real_number(n) for n in numbers] if isinstance(numbers, list) else []
        if len(known) != run.ranks:
            return None
        lists.append(tuple(max(0.0, n or 0.0) / steps for n in known))
    compute, wait, transfer, sent = lists
    return Split(section=name, compute_s=compute, wait_s=wait, transfer_s=transfer, bytes_sent=sent)


def _measured(runs: Sequence[Run]) -> list[tuple[Run, Split]]:
    able = [(run, split) for run in completed(runs) if run.ranks > 1 and (split := step_of(run)) is not None]
    return [(run, split) for run, split in able if max(split.compute_s) > 0]


def split_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Compute, wait and transfer per rank."""
    title = "Communication split"
    found = _measured(runs)
    if not found:
        return Missing(title=title, why=NEEDED)
    rows = [row for run, split in found for part in (*sections_of(run), split) for row in _rows(run, part)]
    named = list(zip(found, labels([run for run, _ in found]), strict=True))
    pictures = tuple(_picture(label, split) for (_, split), label in named[:MOST_PICTURES])
    note = f" Pictures show the first {MOST_PICTURES} runs." if len(named) > MOST_PICTURES else ""
    return Figure(
        ident="communication",
        title=title,
        how="Seconds per step of each rank, in the few steps that were measured. Transfer is the shortest time that any rank taking part "
        "needs for an exchange or collective, wait what this rank takes beyond it, compute the rest. A slow rank shows as wait of the "
        f"others. Pictures show {MOST_RANKS} ranks at most." + note,
        pictures=pictures,
        table=Table(
            header=("run", "section", "rank", "compute (s)", "wait (s)", "transfer (s)", "bytes sent"), rows=tuple(rows)
        ),
    )


def _rows(run: Run, split: Split) -> list[tuple[Cell, ...]]:
    columns = zip(split.compute_s, split.wait_s, split.transfer_s, split.bytes_sent, strict=True)
    return [(run.name, split.section, rank, *values) for rank, values in enumerate(columns)]


def _picture(label: str, split: Split) -> Picture:
    bars = [
        Bar(
            label=f"rank {rank}",
            parts=[(0, "compute", compute), (1, "wait", wait), (2, "transfer", transfer)],
            note=f"{compute + wait + transfer:.3g} s",
        )
        for rank, (compute, wait, transfer) in enumerate(
            zip(split.compute_s, split.wait_s, split.transfer_s, strict=True)
        )
    ]
    keys = tuple(Key(slot=slot, label=part) for slot, part in enumerate(("compute", "wait", "transfer")))
    svg = bar_chart(f"Compute, wait and transfer per rank, {label}", bars[:MOST_RANKS], Axis(label="seconds of a step"))
    return Picture(svg=svg, caption=label, keys=keys)


def efficiencies(split: Split) -> tuple[float, float, float]:
    """Load balance, communication efficiency, parallel efficiency of a step."""
    runtime = max(split.seconds)
    return (
        load_balance(split.compute_s),
        communication_efficiency(split.compute_s, runtime),
        parallel_efficiency(split.compute_s, runtime),
    )


def pop_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Load balance, communication efficiency and their product."""
    title = "POP efficiencies"
    found = _measured(runs)
    if not found:
        return Missing(title=title, why=NEEDED)
    rows: list[tuple[Cell, ...]] = []
    pictures = []
    for (run, split), label in zip(found, labels([run for run, _ in found]), strict=True):
        numbers = efficiencies(split)
        rows.append((run.name, run.ranks, *numbers))
        bars = [
            Bar(label=name, parts=[(slot, name, value)], note=f"{value:.1%}")
            for slot, (name, value) in enumerate(zip(EFFICIENCIES, numbers, strict=True))
        ]
        svg = bar_chart(f"POP efficiencies, {label}", bars, Axis(label="share", high=1))
        pictures.append(Picture(svg=svg, caption=label))
    return Figure(
        ident="pop",
        title=title,
        how="As the POP Centre of Excellence defines them: load balance = mean / largest useful computation of the ranks; communication "
        "efficiency = largest useful computation / run time; parallel efficiency = their product. Useful computation is `compute` of "
        "the communication split, run time that of the slowest rank in the measured steps.",
        pictures=tuple(pictures[:MOST_PICTURES]),
        table=Table(header=("run", "ranks", *EFFICIENCIES), rows=tuple(rows)),
    )
