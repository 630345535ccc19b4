"""Figures of communication: compute, wait and transfer per rank, and the POP efficiencies that follow from them.

They are of runs whose result.json has `communication`: a list, one entry per rank, of seconds per step by section,

    {"gradient": {"compute_s": 0.2, "transfer_s": 0.01, "wait_s": 0.03, "bytes": 8192}, ...}

where transfer is the shortest that a rank takes for each exchange or collective, wait what this rank takes beyond it, and compute the
rest of the section.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dptrain.records.reading import real_number
from dptrain.report.derive import communication_efficiency, load_balance, parallel_efficiency
from dptrain.report.figure import Cell, Figure, Key, Missing, Picture, Table
from dptrain.report.groups import completed, labels
from dptrain.report.runs import Run
from dptrain.report.scaling import chunks
from dptrain.report.svg import Axis, Bar, bar_chart

PARTS = ("compute", "wait", "transfer")
MOST_RANKS = 16


@dataclass(frozen=True, kw_only=True)
class RankSplit:
    """Seconds of a step of one rank, all sections together."""

    rank: int
    compute_s: float
    wait_s: float
    transfer_s: float
    sent_bytes: float

    @property
    def total_s(self) -> float:
        """The rank's step."""
        return self.compute_s + self.wait_s + self.transfer_s


def split_of(run: Run) -> list[RankSplit]:
    """The split of every rank; empty where the run has not measured it."""
    value = run.result.get("communication")
    if not isinstance(value, list) or not value:
        return []
    found = []
    for rank, sections in enumerate(value):
        parts = [s for s in sections.values() if isinstance(s, dict)] if isinstance(sections, dict) else []
        sums = [sum(real_number(s.get(f"{p}_s")) or 0.0 for s in parts) for p in PARTS]
        sent = sum(real_number(s.get("bytes")) or 0.0 for s in parts)
        if not sums[0]:
            return []
        found.append(RankSplit(rank=rank, compute_s=sums[0], wait_s=sums[1], transfer_s=sums[2], sent_bytes=sent))
    return found


def split_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Compute, wait and transfer per rank."""
    title = "Communication split"
    found = [(run, split) for run in completed(runs) if (split := split_of(run))]
    if not found:
        return Missing(
            title=title, why="a completed run that has measured its communication (`communication` in result.json)"
        )
    rows: list[tuple[Cell, ...]] = [
        (run.name, s.rank, s.compute_s, s.wait_s, s.transfer_s, s.sent_bytes) for run, split in found for s in split
    ]
    pictures = []
    for (run, split), label in list(zip(found, labels([run for run, _ in found]), strict=True))[:8]:
        bars = [
            Bar(
                label=f"rank {s.rank}",
                parts=[(0, "compute", s.compute_s), (1, "wait", s.wait_s), (2, "transfer", s.transfer_s)],
                note=f"{s.total_s:.3g} s",
            )
            for s in split[:MOST_RANKS]
        ]
        keys = tuple(Key(slot=slot, label=part) for slot, part in enumerate(PARTS))
        svg = bar_chart(f"Compute, wait and transfer per rank, {label}", bars, Axis(label="seconds of a step"))
        pictures.append(Picture(svg=svg, caption=f"{label} ({run.name})", keys=keys))
    return Figure(
        ident="communication",
        title=title,
        how="Seconds of a step of each rank. Transfer is the shortest time that any rank takes for an exchange or collective, wait what "
        f"this rank takes beyond it, compute the rest. Pictures show the first {MOST_RANKS} ranks of the first eight runs.",
        pictures=tuple(pictures),
        table=Table(header=("run", "rank", "compute (s)", "wait (s)", "transfer (s)", "bytes sent"), rows=tuple(rows)),
    )


def pop_figure(runs: Sequence[Run]) -> Figure | Missing:
    """Load balance, communication efficiency and their product."""
    title = "POP efficiencies"
    found = [(run, split) for run in completed(runs) if (split := split_of(run))]
    if not found:
        return Missing(
            title=title, why="a completed run that has measured its communication (`communication` in result.json)"
        )
    rows: list[tuple[Cell, ...]] = []
    bars = []
    for (run, split), label in zip(found, labels([run for run, _ in found]), strict=True):
        compute, runtime = [s.compute_s for s in split], max(s.total_s for s in split)
        numbers = (
            load_balance(compute),
            communication_efficiency(compute, runtime),
            parallel_efficiency(compute, runtime),
        )
        rows.append((run.name, run.ranks, *numbers))
        names = ("load balance", "communication efficiency", "parallel efficiency")
        bars.append(
            [
                Bar(label=f"{label}: {name}", parts=[(slot, name, value)], note=f"{value:.1%}")
                for slot, (name, value) in enumerate(zip(names, numbers, strict=True))
            ]
        )
    return Figure(
        ident="pop",
        title=title,
        how="As the POP Centre of Excellence defines them: load balance = mean / largest useful computation of the ranks; communication "
        "efficiency = largest useful computation / run time; parallel efficiency = their product. Useful computation is `compute` of "
        "the communication split, run time the longest step of a rank.",
        pictures=tuple(
            Picture(
                svg=bar_chart(
                    "POP efficiencies", [bar for of_run in part for bar in of_run], Axis(label="share", high=1)
                )
            )
            for part in chunks(bars, 4)
        ),
        table=Table(
            header=("run", "ranks", "load balance", "communication efficiency", "parallel efficiency"), rows=tuple(rows)
        ),
    )
