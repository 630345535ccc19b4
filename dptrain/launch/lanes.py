"""How the arrays of a sweep share `--max-parallel`: in lanes, each with a part of the limit, also beside those of an earlier command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

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

    A lane takes free places, or those of busy lanes once these are over, or both. Every number of lanes is tried, and that one taken
    with which the last lane would be over first if all runs took equally long. Without busy lanes that is at most twice as long as
    `max_parallel` runs at once would take to the end. The shares never exceed the limit.

    :param sizes: runs of each array.
    :param busy: where these have more than the limit, everything comes after all of them.
    """
    if max_parallel is None:
        return [Lane(groups=(number,), max_parallel=None) for number in range(len(sizes))]
    spare = max_parallel - sum(lane.share for lane in busy)
    if spare < 0:
        jobs = tuple(job for lane in busy for job in lane.jobs)
        return [replace(lane, after=jobs) for lane in lanes(sizes, max_parallel)]
    free = [Busy(share=1, jobs=(), left=0)] * min(spare, sum(sizes))
    places = free + sorted(busy, key=_free_after)
    tries = [_deal(sizes, places, count) for count in range(1, min(len(places), len(sizes)) + 1)]
    # Of equally good ones that with most lanes: fewer arrays wait for another.
    best = min(reversed(tries), key=lambda tried: max(lane.over for lane in tried), default=[])
    return [Lane(groups=lane.groups, max_parallel=lane.limit, after=lane.after) for lane in best if lane.groups]


def _free_after(lane: Busy) -> int:
    """Runs, one after the other, until it is over."""
    return -(-lane.left // lane.share)


@dataclass
class _Dealt:
    """A lane to which arrays and places are being dealt; times are in runs one after the other."""

    share: int
    begins: int
    after: tuple[str, ...]
    groups: tuple[int, ...] = ()
    load: int = 0

    @property
    def over(self) -> float:
        """When its last run would end."""
        return self.begins + self.load / self.limit if self.groups else 0.0

    @property
    def limit(self) -> int:
        # A single job before an array could exceed any share but 1.
        return self.share if len(self.groups) == 1 else 1

    def with_group(self, number: int, size: int) -> _Dealt:
        return replace(self, groups=(*self.groups, number), load=self.load + size)

    def with_place(self, place: Busy) -> _Dealt:
        begins = max(self.begins, _free_after(place))
        return replace(self, share=self.share + place.share, begins=begins, after=(*self.after, *place.jobs))


def _deal(sizes: Sequence[int], places: Sequence[Busy], count: int) -> list[_Dealt]:
    """Arrays to the first `count` places, the larger ones first, each to where it would be over first; then the next places, as few
    at a time as make it end sooner, to the lane that would be over last."""
    dealt = [_Dealt(share=p.share, begins=_free_after(p), after=p.jobs) for p in places[:count]]
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        grown = [lane.with_group(number, sizes[number]) for lane in dealt]
        least = min(range(count), key=lambda n: grown[n].over)
        dealt[least] = grown[least]
    taken = count
    while True:
        last = max((n for n in range(count) if len(dealt[n].groups) == 1), key=lambda n: dealt[n].over, default=None)
        if last is None:
            return dealt
        wider = accumulate(places[taken:], _Dealt.with_place, initial=dealt[last])
        sooner = next(((n, lane) for n, lane in enumerate(wider) if lane.over < dealt[last].over), None)
        if sooner is None:
            return dealt
        more, dealt[last] = sooner
        taken += more
