"""The limit on runs at once holds over all arrays of a sweep, those of earlier commands too."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dptrain.launch.lanes import Busy, Lane, busy_lanes, lanes
from tests.status.helpers import WrittenRun

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=8)
BUSY = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40)), max_size=5).map(
    lambda lanes: [
        Busy(share=share, jobs=tuple(f"{number}{k}" for k in range(jobs)), left=left)
        for number, (share, jobs, left) in enumerate(lanes)
    ]
)


def run_all(
    sizes: Sequence[int],
    dealt: Sequence[Lane],
    busy: Sequence[Busy],
    ending: Callable[[list[list[int]]], list[list[int]]],
) -> tuple[int, int]:
    """Run the arrays as SLURM would, those of a lane one after the other.

    :param ending: chooses from the running runs those that end next; each is given by the list that counts those left of its array.
    :return: the most runs at once, and how often some ended.
    """
    before = [([lane.left], lane) for lane in busy]
    lanes_left = [([[sizes[number]] for number in lane.groups], lane) for lane in dealt]
    most = rounds = 0
    while True:
        running = [left for left, lane in before for _ in range(min(left[0], lane.share))]
        for groups, lane in lanes_left:
            held = [left for left, other in before if set(other.jobs) & set(lane.after)]
            now = next((left for left in groups if left[0]), None)
            if now is not None and not any(left[0] for left in held):
                running += [now] * min(now[0], lane.max_parallel or now[0])
        if not running:
            break
        most, rounds = max(most, len(running)), rounds + 1
        for left in ending(running):
            left[0] -= 1
    assert not any(left[0] for groups, _ in lanes_left for left in groups)
    return most, rounds


@given(sizes=SIZES, max_parallel=st.one_of(st.none(), st.integers(1, 12)))
def test_lanes_share_the_limit_and_hold_every_array_once(sizes: list[int], max_parallel: int | None) -> None:
    dealt = lanes(sizes, max_parallel)
    assert sorted(number for lane in dealt for number in lane.groups) == list(range(len(sizes)))
    if max_parallel is None:
        assert all(lane.max_parallel is None and len(lane.groups) == 1 for lane in dealt)
        return
    shares = [lane.max_parallel for lane in dealt]
    assert sum(s for s in shares if s is not None) == min(max_parallel, sum(sizes)) and all(s for s in shares)
    # A lane with several arrays runs one at a time: otherwise a single job before an array could exceed the share.
    assert all(len(lane.groups) == 1 or lane.max_parallel == 1 for lane in dealt)
    # Runs that take equally long; no order is better than so many at once to the end.
    _, rounds = run_all(sizes, dealt, (), lambda running: running)
    assert rounds <= max(1, math.ceil(2 * sum(sizes) / max_parallel))


@given(sizes=SIZES, max_parallel=st.integers(1, 12), busy=BUSY, order=st.randoms(use_true_random=False))
def test_lanes_beside_busy_ones_never_exceed_the_limit(
    sizes: list[int], max_parallel: int, busy: list[Busy], order: random.Random
) -> None:
    dealt = lanes(sizes, max_parallel, busy)
    assert sorted(number for lane in dealt for number in lane.groups) == list(range(len(sizes)))
    assert all(len(lane.groups) == 1 or lane.max_parallel == 1 for lane in dealt)
    for lane in dealt:
        followed = [other for other in busy if set(other.jobs) & set(lane.after)]
        assert sorted(job for other in followed for job in other.jobs) == sorted(lane.after)
    # Whichever run ends next.
    most, _ = run_all(sizes, dealt, busy, lambda running: [order.choice(running)])
    assert most <= max(max_parallel, sum(lane.share for lane in busy))


@given(size=st.integers(1, 200), max_parallel=st.integers(1, 12), lefts=st.lists(st.integers(1, 9), max_size=12))
def test_one_array_gets_what_lets_it_end_first(size: int, max_parallel: int, lefts: list[int]) -> None:
    busy = [Busy(share=1, jobs=(str(number),), left=left) for number, left in enumerate(lefts[:max_parallel])]
    _, rounds = run_all([size], lanes([size], max_parallel, busy), busy, lambda running: running)
    spare, waits = max_parallel - len(busy), max((lane.left for lane in busy), default=0)
    after_all = waits + math.ceil(size / max_parallel)
    at_once = max(waits, math.ceil(size / spare)) if spare else after_all
    assert rounds <= max(waits, min(after_all, at_once))


def test_a_large_array_beside_small_ones_gets_most_of_the_limit() -> None:
    assert [(lane.groups, lane.max_parallel) for lane in lanes([100, 1, 1, 1, 1], 4)] == [((0,), 3), ((1, 2, 3, 4), 1)]
    ending = [Busy(share=1, jobs=(job,), left=left) for job, left in (("11", 1), ("12", 1), ("13", 1), ("14", 90))]
    (lane,) = lanes([100], 4, ending)
    assert (lane.max_parallel, lane.after) == (3, ("11", "12", "13"))


def test_what_was_killed_halfway_goes_on_as_it_was_meant() -> None:
    # Four arrays of six, four at once; two of the four were submitted.
    half = [Busy(share=1, jobs=(job,), left=6) for job in ("11", "12")]
    assert [(lane.groups, lane.max_parallel, lane.after) for lane in lanes([6, 6], 4, half)] == [
        ((0,), 1, ()),
        ((1,), 1, ()),
    ]
    # Three at once, three arrays left: what is not in the free place follows one of the first two.
    assert [(lane.max_parallel, lane.after) for lane in lanes([6, 6, 6], 3, half)] == [(1, ()), (1, ("11",))]


def test_lanes_are_read_from_intents(tmp_path: Path) -> None:
    def run(name: str, job_id: str | None, lane: str | None = None, share: int | None = None) -> WrittenRun:
        return WrittenRun(tmp_path, name, job_id=job_id, lane=lane, lane_share=share)

    runs = [
        run("a", "11_0", "x", 2),
        run("b", "11_3", "x", 2),
        run("c", "12", "x", 2),
        run("d", "13_0"),
        run("e", "13_1"),
        run("f", None),
    ]
    assert busy_lanes([one.paths for one in runs]) == [
        Busy(share=2, jobs=("11", "12"), left=3),
        Busy(share=2, jobs=("13",), left=2),
    ]
