"""The exchange plan: every wanted pixel comes once, from the one who holds it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrain.geometry.boxes import Box, cells, contains, empty_box, shape_of, split_boxes, whole
from dptrain.geometry.messages import exchange_plan
from tests.geometry.boxes import boxes_in, shapes


def pixels(box: Box) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(start, stop) for start, stop in box)))


@given(st.data(), shapes(longest=6), st.integers(1, 6))
def test_every_wanted_pixel_comes_once_from_its_holder(data: st.DataObject, shape: tuple[int, ...], ranks: int) -> None:
    periodic = tuple(data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape))))
    held = [[box] for box in split_boxes(shape, ranks, (1,) * len(shape))]
    wanted = [data.draw(st.lists(boxes_in(shape, periodic), max_size=2)) for _ in range(ranks)]
    plan = exchange_plan(held, wanted, shape, periodic)
    arrived: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for m in plan.messages:
        assert contains(plan.held[m.source][m.held], m.box) and contains(plan.wanted[m.target][m.wanted], m.place)
        assert shape_of(m.box) == shape_of(m.place)
        for (i, _), (p, _), length in zip(m.box, m.place, shape, strict=True):
            assert (p - i) % length == 0
        arrived.setdefault((m.target, m.wanted), []).extend(pixels(m.place))
    for rank, boxes in enumerate(wanted):
        for number, box in enumerate(boxes):
            assert sorted(arrived.get((rank, number), [])) == pixels(box)


@given(st.data(), shapes(longest=6), st.integers(1, 6))
def test_what_is_sent_is_received(data: st.DataObject, shape: tuple[int, ...], ranks: int) -> None:
    held = [[box] for box in split_boxes(shape, ranks, (1,) * len(shape))]
    wanted = [data.draw(st.lists(boxes_in(shape), max_size=2)) for _ in range(ranks)]
    plan = exchange_plan(held, wanted, shape)
    every = range(ranks)
    sent = sum(plan.bytes_sent(r, 12) for r in every)
    assert sent == sum(plan.bytes_received(r, 12) for r in every)
    assert sent == 12 * sum(cells(m.box) for m in plan.messages if m.source != m.target)
    assert sum(map(plan.messages_sent, every)) == sum(map(plan.messages_received, every)) == len(plan.cells_between)


def test_a_rank_without_boxes_takes_part_with_an_empty_one() -> None:
    plan = exchange_plan([[((0, 4), (0, 4))], []], [[], [((1, 2), (1, 2))]], (4, 4))
    assert plan.held[1] == plan.wanted[0] == (empty_box(2),)
    assert plan.bytes_sent(0, 8) == 8 and plan.messages_sent(0) == plan.messages_received(1) == 1


def test_a_wanted_pixel_that_nobody_holds_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="wanted by rank 0: 4 of its pixels"):
        exchange_plan([[((0, 2), (0, 2))]], [[((0, 3), (0, 2))]], (3, 2))


def test_halo_and_whole_image_at_64_ranks() -> None:
    shape = (8192, 8192)
    owned = split_boxes(shape, 64, (2, 2))
    held = [[box] for box in owned]
    haloed = [[tuple((a - 2, b + 2) for a, b in box)] for box in owned]
    halo = exchange_plan(held, haloed, shape, (True, True))
    assert {halo.messages_sent(r) for r in range(64)} == {8}
    assert {halo.bytes_sent(r, 12) for r in range(64)} == {12 * (1028**2 - 1024**2)}
    image = exchange_plan(held, [[whole(shape)]] * 64, shape)
    assert {image.bytes_received(r, 12) for r in range(64)} == {12 * (8192**2 - 1024**2)}
