"""Boxes: arithmetic against sets of pixels, and ownership."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrain.errors import PlanRefused
from dptrain.geometry.boxes import (
    Box,
    cells,
    clip,
    contains,
    empty_box,
    hull,
    intersect,
    periodic_images,
    rank_grid,
    shape_of,
    shift,
    slices,
    split_boxes,
    whole,
)
from tests.geometry.boxes import boxes_in, shapes

small = shapes(longest=7)


def pixels(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(start, stop) for start, stop in box)))


@given(st.data(), small)
def test_arithmetic_is_that_of_sets_of_pixels(data: st.DataObject, shape: tuple[int, ...]) -> None:
    reach = (True,) * len(shape)
    a, b = data.draw(boxes_in(shape, reach)), data.draw(boxes_in(shape, reach))
    common = intersect(a, b)
    assert (pixels(common) if common else set()) == pixels(a) & pixels(b)
    assert pixels(clip(a, shape)) == pixels(a) & pixels(whole(shape))
    assert cells(a) == len(pixels(a)) == math.prod(shape_of(a))
    assert contains(a, b) == (pixels(b) <= pixels(a))
    assert pixels(a) | pixels(b) <= pixels(hull([a, b]))
    by = [3, -2, 5][: len(shape)]
    assert pixels(shift(a, by)) == {tuple(i + d for i, d in zip(p, by, strict=True)) for p in pixels(a)}


def test_slices_count_from_the_origin() -> None:
    assert slices(((5, 7), (2, 9)), ((4, 10), (2, 9))) == (slice(1, 3), slice(0, 7))


@given(st.data(), small)
def test_periodic_images_cover_a_box_once(data: st.DataObject, shape: tuple[int, ...]) -> None:
    periodic = tuple(data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape))))
    box = data.draw(boxes_in(shape, periodic))
    places: list[tuple[int, ...]] = []
    for inside, place in periodic_images(box, shape, periodic):
        assert contains(whole(shape), inside) and shape_of(inside) == shape_of(place)
        for (i, _), (p, _), length, wraps in zip(inside, place, shape, periodic, strict=True):
            assert (p - i) % length == 0 and (wraps or p == i)
        places += sorted(pixels(place))
    assert len(places) == cells(box) and set(places) == pixels(box)


@given(shapes(longest=40, shortest=4), st.integers(1, 12), st.data())
def test_owned_boxes_partition_the_image_at_the_stride(shape: tuple[int, ...], ranks: int, data: st.DataObject) -> None:
    stride = [data.draw(st.integers(1, 4)) for _ in shape]
    boxes = split_boxes(shape, ranks, stride)
    grid = rank_grid(shape, ranks, stride)
    assert len(boxes) == ranks
    full = [box for box in boxes if cells(box)]
    assert len(full) == math.prod(grid) and boxes[: len(full)] == full
    assert sum(map(cells, boxes)) == math.prod(shape)
    assert all(intersect(a, b) is None for a, b in itertools.combinations(full, 2))
    for box in full:
        for (start, stop), length, step in zip(box, shape, stride, strict=True):
            assert start % step == 0 and (stop % step == 0 or stop == length)
    for axis, step in enumerate(stride):
        blocks = {-(-(box[axis][1] - box[axis][0]) // step) for box in full}
        assert max(blocks) - min(blocks) <= 1


def test_boxes_are_nearly_cubes_and_use_every_rank() -> None:
    assert rank_grid((512, 512), 4, (1, 1)) == (2, 2)
    assert rank_grid((8192, 8192), 64, (2, 2)) == (8, 8)
    assert rank_grid((512, 512), 2, (1, 1)) == (2, 1)  # slabs of rows lie together in memory
    assert rank_grid((100, 400), 4, (1, 1)) == (1, 4)
    assert rank_grid((256, 256, 256), 8, (1, 1, 1)) == (2, 2, 2)
    assert rank_grid((512, 512), 7, (1, 1)) == (7, 1)


def test_ranks_beyond_the_blocks_own_nothing() -> None:
    assert split_boxes((4, 6), 8, (2, 3))[4:] == [empty_box(2)] * 4
    # Seven parts fit along no axis of three blocks.
    assert rank_grid((6, 6), 7, (2, 2)) == (3, 2)


def test_an_axis_below_the_stride_is_refused_with_both_numbers() -> None:
    with pytest.raises(PlanRefused, match=r"axis 1 .* 3 pixels.* stride of 4"):
        split_boxes((64, 3), 2, (4, 4))
