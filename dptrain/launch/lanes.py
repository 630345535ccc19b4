"""How the arrays of a sweep share `--max-parallel`: in lanes, each with a part of the limit, also beside those of an earlier command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dptrain.records.intent import Intent, read_intent
from dptrain.records.paths import RunPaths


@dataclass(frozen=True, kw_only=True)
class Busy:
    """A lane of an earlier command that is not over."""

    share: int
    jobs: tuple[str, ...]
    left: int
    """Runs that are not over."""


def busy_lanes(runs: Sequence[RunPaths]) -> list[Busy]:
    """The lanes of runs that are not over. A job that was submitted without a limit is a lane that holds all of its runs at once."""
    intents = [intent for paths in runs if (intent := read_intent(paths)).job_id is not None]
    groups: dict[str, list[Intent]] = {}
    for intent in intents:
        groups.setdefault(intent.lane or _head(intent), []).append(intent)
    return [
        Busy(
            share=max(intent.lane_share or len(group) for intent in group),
            jobs=tuple(sorted({_head(intent) for intent in group})),
            left=len(group),
        )
        for group in groups.values()
    ]


def _head(intent: Intent) -> str:
    """The job, of a member of an array that of the array."""
    return str(intent.job_id).split("_")[0]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Arrays that run one after the other, with their share of the runs at once."""

    groups: tuple[int, ...]
    max_parallel: int | None
    after: tuple[str, ...] = ()
    """Jobs that have this share before it."""


def lanes(sizes: Sequence[int], max_parallel: int | None, busy: Sequence[Busy] = ()) -> list[Lane]:
    """Share out `max_parallel` over arrays, since SLURM's own limit holds within one array only.

    What busy lanes leave of the limit is dealt at once: as many lanes as may run, and what then is left goes to those with the most
    runs per place. Where there are more arrays than that, further lanes follow busy ones, each with the share of the one that it
    follows. The larger arrays are dealt first, each to the lane with the least runs per place. The shares never exceed the limit.

    :param sizes: runs of each array.
    :param busy: where these have more than the limit, everything comes after all of them.
    """
    if max_parallel is None:
        return [Lane(groups=(number,), max_parallel=None) for number in range(len(sizes))]
    spare = max_parallel - sum(lane.share for lane in busy)
    if spare < 0:
        jobs = tuple(job for lane in busy for job in lane.jobs)
        return [replace(lane, after=jobs) for lane in lanes(sizes, max_parallel)]
    now = min(spare, len(sizes))
    followed = sorted(busy, key=lambda lane: -lane.share)[: len(sizes) - now]
    share = [1] * now + [lane.share for lane in followed]
    load = [0] * now + [lane.left for lane in followed]
    dealt: list[list[int]] = [[] for _ in share]
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        least = min(range(len(share)), key=lambda n: load[n] / share[n])
        dealt[least].append(number)
        load[least] += sizes[number]
    for _ in range(spare - now):
        share[max(range(now), key=lambda n: load[n] / share[n])] += 1
    after = [()] * now + [lane.jobs for lane in followed]
    return [
        # A single job before an array could exceed any share but 1.
        Lane(groups=tuple(g), max_parallel=s if len(g) == 1 else 1, after=jobs)
        for g, s, jobs in zip(dealt, share, after, strict=True)
        if g
    ]
