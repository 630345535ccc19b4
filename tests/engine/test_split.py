"""The arithmetic of the communication split: constructed cases, and what holds for any."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrain.engine.split import BETWEEN, Misaligned, Seen, efficiencies, split

SECTIONS = ("forward", "backward", BETWEEN)
seconds = st.floats(0, 10, allow_subnormal=False)


@st.composite
def worlds(draw: st.DrawFn) -> list[Seen]:
    """What ranks saw: calls that all or some of them take part in, and compute around them."""
    ranks = draw(st.integers(1, 4))
    calls: list[dict[tuple[str, str], list[float]]] = [{} for _ in range(ranks)]
    for number in range(draw(st.integers(0, 4))):
        part = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
        count = draw(st.integers(1, 5))
        key = (draw(st.sampled_from(SECTIONS)), f"call {number}")
        for rank in part:
            calls[rank][key] = draw(st.lists(seconds, min_size=count, max_size=count))
    every = []
    for mine in calls:
        inside = {
            name: math.fsum(t for key, times in mine.items() if key[0] == name for t in times) for name in SECTIONS
        }
        total = {name: inside[name] + draw(seconds) for name in SECTIONS}
        sent = {name: draw(st.integers(0, 10**9)) for name in SECTIONS}
        every.append(Seen(seconds=total, bytes_sent=sent, calls=mine))
    return every


def test_a_late_rank_is_waiting_of_the_others_and_not_transfer() -> None:
    def seen(late_s: float) -> Seen:
        times = {("forward", "tiles"): [0.01 + late_s, 0.02], ("forward", "all_reduce"): [0.03]}
        return Seen(seconds={"forward": 1.0}, bytes_sent={"forward": 8}, calls=times)

    made = split([seen(0), seen(0.05), seen(0.05)], steps=1)["sections"]["forward"]
    assert made["transfer_s"] == pytest.approx([0.06, 0.06, 0.06])
    assert made["wait_s"] == pytest.approx([0, 0.05, 0.05])
    assert made["compute_s"] == pytest.approx([0.94, 0.89, 0.89])
    assert made["calls"] == [3, 3, 3] and made["bytes_sent"] == [8, 8, 8]
    assert made["load_balance"] == pytest.approx((0.94 + 0.89 * 2) / 3 / 0.94, abs=1e-4)
    assert made["communication_efficiency"] == pytest.approx(0.94)
    assert made["parallel_efficiency"] == pytest.approx((0.94 + 0.89 * 2) / 3, abs=1e-4)


def test_the_least_is_over_those_who_take_part() -> None:
    pair = {("backward", "tiles"): [0.4]}
    made = split([Seen(seconds={"backward": 1.0}), *[Seen(seconds={"backward": 1.0}, calls=pair)] * 2], steps=2)
    assert made["steps"] == 2
    assert made["step"]["transfer_s"] == pytest.approx([0, 0.4, 0.4])
    assert made["step"]["calls"] == [0, 1, 1]


def test_one_rank_waits_for_nobody() -> None:
    alone = Seen(seconds={"gradient": 2.0, BETWEEN: 1.0}, calls={("gradient", "all_reduce"): [0.5]})
    made = split([alone], steps=1)
    assert made["step"]["wait_s"] == [0] and made["step"]["transfer_s"] == [0.5]
    assert made["step"]["load_balance"] == 1
    assert made["whole"]["seconds"] == [3.0] and made["step"]["seconds"] == [2.0]


def test_the_textbook_case_of_the_efficiencies() -> None:
    # Four ranks of which one computes all the time of 10 s.
    assert efficiencies([10, 5, 5, 4], 10) == {
        "load_balance": 0.6,
        "communication_efficiency": 1.0,
        "parallel_efficiency": 0.6,
    }
    assert efficiencies([4, 4], 5) == {
        "load_balance": 1.0,
        "communication_efficiency": 0.8,
        "parallel_efficiency": 0.8,
    }
    assert set(efficiencies([0, 0], 5).values()) == {None}


def test_calls_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(Misaligned, match="between 1 and 2 calls of 'tiles' in forward"):
        split([Seen(seconds={"forward": 1.0}, calls={("forward", "tiles"): [0.1] * n}) for n in (1, 2)], steps=1)


@given(worlds())
def test_the_parts_make_the_whole(ranks: list[Seen]) -> None:
    made = split(ranks, steps=1)
    assert list(made["sections"]) == list(SECTIONS)
    for part in (*made["sections"].values(), made["step"], made["whole"]):
        for rank in range(len(ranks)):
            whole = part["compute_s"][rank] + part["transfer_s"][rank] + part["wait_s"][rank]
            assert whole == pytest.approx(part["seconds"][rank], abs=1e-5)
            assert min(part["compute_s"][rank], part["transfer_s"][rank], part["wait_s"][rank]) >= -1e-5
        if part["parallel_efficiency"] is not None:
            product = part["load_balance"] * part["communication_efficiency"]
            assert part["parallel_efficiency"] == pytest.approx(product, abs=2e-4)
            assert 0 <= part["parallel_efficiency"] <= part["load_balance"] <= 1
    for name in ("seconds", "transfer_s", "wait_s", "bytes_sent", "calls"):
        for rank in range(len(ranks)):
            parts = {section: of[name][rank] for section, of in made["sections"].items()}
            assert made["whole"][name][rank] == pytest.approx(sum(parts.values()), abs=1e-5)
            assert made["step"][name][rank] == pytest.approx(sum(parts.values()) - parts[BETWEEN], abs=1e-5)


@given(worlds(), st.data())
def test_the_order_of_the_ranks_changes_nothing(ranks: list[Seen], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(ranks))))
    before, after = split(ranks, steps=1), split([ranks[i] for i in order], steps=1)
    for section in SECTIONS:
        a, b = before["sections"][section], after["sections"][section]
        for name, value in a.items():
            moved: Any = [value[i] for i in order] if isinstance(value, list) else value
            assert b[name] == (moved if moved is None else pytest.approx(moved, abs=1.1e-4)), name


@given(worlds(), st.data())
def test_who_comes_late_makes_the_others_wait_by_as_much(ranks: list[Seen], data: st.DataObject) -> None:
    """One more second for all but one rank of a call that nobody waited in is waiting, whatever else there is."""
    late = data.draw(st.integers(0, len(ranks) - 1))
    key = ("forward", "one more")
    more = []
    for rank, seen in enumerate(ranks):
        took = 0.25 if rank == late else 1.25
        total = {**seen.seconds, "forward": seen.seconds["forward"] + took}
        more.append(Seen(seconds=total, bytes_sent=seen.bytes_sent, calls={**seen.calls, key: [took]}))
    before, after = split(ranks, steps=1)["sections"]["forward"], split(more, steps=1)["sections"]["forward"]
    for rank in range(len(ranks)):
        assert after["transfer_s"][rank] - before["transfer_s"][rank] == pytest.approx(0.25, abs=1e-5)
        waited = 0 if rank == late else 1
        assert after["wait_s"][rank] - before["wait_s"][rank] == pytest.approx(waited, abs=1e-5)
        assert after["compute_s"][rank] == pytest.approx(before["compute_s"][rank], abs=1e-5)
