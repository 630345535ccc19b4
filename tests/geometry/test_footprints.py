"""What local operators read: enough for every stage, inside the image unless it wraps, and no more than a halo."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dptrain.geometry.boxes import Box, cells, contains, empty_box, split_boxes, whole
from dptrain.geometry.footprints import (
    Boundary,
    Footprint,
    image_window,
    levels,
    passages,
    runs_locally,
    total_stride,
    wraps,
)

boundaries: st.SearchStrategy[Boundary] = st.sampled_from(["circular", "reflect", "replicate", "constant", "none"])


@st.composite
def footprints(draw: st.DrawFn) -> Footprint:
    boundary = draw(boundaries)
    sides = st.integers(0, 0 if boundary == "none" else 3)
    halo = tuple((draw(sides), draw(sides)) for _ in range(2))
    return Footprint(halo=halo, stride=(draw(st.integers(1, 3)), draw(st.integers(1, 2))), boundary=boundary)


@given(st.lists(footprints(), min_size=1, max_size=3), st.integers(6, 30), st.integers(6, 30), st.integers(1, 6))
def test_stages_find_what_they_read(stages: list[Footprint], height: int, width: int, ranks: int) -> None:
    shape = (height, width)
    assume(runs_locally(stages, shape))
    stride = total_stride(stages, 2)
    assume(all(step <= n for step, n in zip(stride, shape, strict=True)))
    measured = 0
    for box in split_boxes(shape, ranks, stride):
        if not cells(box):
            continue
        made = passages(stages, shape, box)
        for passage, following in itertools.pairwise(made):
            assert passage.out == following.source
        for passage, stage, lengths in zip(made, stages, levels(stages, shape), strict=False):
            assert contains(passage.padded, passage.window) and contains(passage.padded, passage.source)
            assert wraps([stages]) or contains(whole(lengths), passage.source)
            for (start, stop), (a, b), (low, high), step in zip(
                passage.window, passage.out, stage.halo, stage.stride, strict=True
            ):
                assert (b - a) == -(-(stop - start - low - high) // step)
        assert contains(image_window([stages], shape, box), made[0].source)
        measured += cells(made[-1].out)
    assert measured == cells(whole(levels(stages, shape)[-1]))


def blur(boundary: Boundary) -> Footprint:
    return Footprint(halo=((2, 2), (1, 1)), stride=(1, 1), boundary=boundary)


def test_the_window_of_several_operators_is_around_all() -> None:
    box: Box = ((0, 8), (4, 8))
    wide = Footprint(halo=((3, 0), (0, 4)), stride=(1, 1), boundary="circular")
    assert image_window([[blur("circular")], [wide]], (16, 16), box) == ((-3, 10), (3, 12))
    assert image_window([[blur("constant")]], (16, 16), box) == ((0, 10), (3, 9))
    assert image_window([[]], (16, 16), box) == box
    assert image_window([[blur("circular")]], (16, 16), empty_box(2)) == empty_box(2)


def test_what_cannot_run_on_boxes() -> None:
    half = Footprint(halo=((0, 0), (0, 0)), stride=(2, 2), boundary="none")
    assert runs_locally([blur("circular"), half], (13, 14))
    assert not runs_locally([half, blur("circular")], (13, 14))
    assert runs_locally([half, blur("reflect")], (13, 14))
    assert not runs_locally([blur("reflect"), blur("circular")], (16, 16))
    assert not runs_locally([blur("circular")], (2, 16))  # shorter than the halo


def test_reading_beyond_a_border_needs_a_boundary() -> None:
    with pytest.raises(AssertionError):
        Footprint(halo=((1, 0), (0, 0)), stride=(1, 1), boundary="none")
