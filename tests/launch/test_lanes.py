"""The limit on runs at once holds over all arrays of a sweep, those of earlier commands too."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dptrain.launch.lanes import Busy, busy_lanes, lanes
from tests.status.helpers import WrittenRun

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=8)
BUSY = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40)), max_size=5).map(
    lambda lanes: [
        Busy(share=share, jobs=tuple(f"{number}{k}" for k in range(jobs)), left=left)
        for number, (share, jobs, left) in enumerate(lanes)
    ]
)


@given(sizes=SIZES, max_parallel=st.one_of(st.none(), st.integers(1, 12)))
def test_lanes_share_the_limit_and_hold_every_array_once(sizes: list[int], max_parallel: int | None) -> None:
    dealt = lanes(sizes, max_parallel)
    assert sorted(number for lane in dealt for number in lane.groups) == list(range(len(sizes)))
    if max_parallel is None:
        assert all(lane.max_parallel is None and len(lane.groups) == 1 for lane in dealt)
        return
    shares = [lane.max_parallel for lane in dealt]
    assert sum(s for s in shares if s is not None) == max_parallel and all(s for s in shares)
    # A lane with several arrays runs one at a time: otherwise a single job before an array could exceed the share.
    assert all(len(lane.groups) == 1 or lane.max_parallel == 1 for lane in dealt)


@given(sizes=SIZES, max_parallel=st.integers(1, 12), busy=BUSY)
def test_lanes_beside_busy_ones_never_exceed_the_limit(sizes: list[int], max_parallel: int, busy: list[Busy]) -> None:
    dealt = lanes(sizes, max_parallel, busy)
    assert sorted(number for lane in dealt for number in lane.groups) == list(range(len(sizes)))
    assert all(len(lane.groups) == 1 or lane.max_parallel == 1 for lane in dealt)
    taken = sum(lane.share for lane in busy)
    if taken > max_parallel:
        every = tuple(job for lane in busy for job in lane.jobs)
        assert all(lane.after == every for lane in dealt)
        return
    # At its largest: of a busy lane and the one that follows it only one runs.
    at_once = sum(lane.max_parallel or 0 for lane in dealt if not lane.after)
    assert at_once + taken <= max_parallel
    shares = {lane.jobs: lane.share for lane in busy}
    followers = [lane for lane in dealt if lane.after]
    assert len({lane.after for lane in followers}) == len(followers)
    assert all((lane.max_parallel or 0) <= shares[lane.after] for lane in followers)
    # Nothing waits while there is room, and nothing idles that an array could use.
    assert not followers or at_once == max_parallel - taken
    assert followers or at_once == max_parallel - taken or not dealt


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
