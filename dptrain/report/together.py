"""Runs that shared a machine: the times of their steps say nothing of scaling."""

from __future__ import annotations

from collections.abc import Sequence

from dptrain.report.runs import Run

MOST_NAMES = 4


def at_once(runs: Sequence[Run]) -> list[Run]:
    """Local runs that were on one host at the same time as another of them. Jobs of SLURM have their shares of a node."""
    local = [run for run in runs if run.status.launcher == "local"]
    spans = sorted(
        (str(run.start.get("host")), *span, number) for number, run in enumerate(local) for span in run.spans_s
    )
    found: set[int] = set()
    longest: tuple[str, float, float, int] | None = None
    for span in spans:
        host, begin_s, end_s, number = span
        if longest is None or longest[0] != host:
            longest = span
            continue
        if begin_s < longest[2] and number != longest[3]:
            found |= {number, longest[3]}
        if end_s > longest[2]:
            longest = span
    return [local[number] for number in sorted(found)]


def warning(runs: Sequence[Run], shown: Sequence[Run] | None = None) -> str | None:
    """Which times do not compare, in one line; None where none of those shown shared a machine with another.

    :param runs: all there are.
    :param shown: those whose times are; default: all.
    """
    among = {run.name for run in (runs if shown is None else shown)}
    names = [run.name for run in at_once(runs) if run.name in among]
    if not names:
        return None
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (
        f"the times of {len(names)} run{'s' * (len(names) > 1)} say nothing of scaling, since other runs were on the same machine "
        f"at the same time: {', '.join(names[:MOST_NAMES])}{more}"
    )
