"""Fields of random numbers: any box equals the crop of the whole."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dptrain.engine.problems.random_fields import normal_box, normal_like, seed_of, uniform_between, uniform_box

SIZES = st.lists(st.integers(1, 150), min_size=1, max_size=2) | st.lists(st.integers(1, 40), min_size=3, max_size=3)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    size = draw(SIZES)
    box = []
    for n in size:
        lo = draw(st.integers(0, n))
        box.append((lo, draw(st.integers(lo, n))))
    return size, box


@given(boxes(), st.integers(1, 3))
def test_a_box_is_the_crop_of_the_whole(case: tuple[list[int], list[tuple[int, int]]], channels: int) -> None:
    size, box = case
    crop = tuple(slice(lo, hi) for lo, hi in box)
    for draw in (normal_box, uniform_box):
        whole = draw((3, "a", 1), channels, [(0, n) for n in size])
        assert torch.equal(draw((3, "a", 1), channels, box), whole[(slice(None), *crop)])


def test_moments_and_independence() -> None:
    box = [(0, 300), (0, 300)]
    one, other = normal_box((0, "noise", 1), 1, box), normal_box((0, "noise", 2), 1, box)
    assert abs(float(one.mean())) < 0.01 and abs(float(one.std()) - 1) < 0.01
    assert abs(float((one * other).mean())) < 0.01
    shifted = one[:, 64:] * one[:, :-64]  # neighbouring blocks are independent too
    assert abs(float(shifted.mean())) < 0.01


def test_float32_is_float64_rounded_and_any_measurement_shape_works() -> None:
    for shape in ((1, 7), (1, 3, 5), (1, 2, 9, 70), (1, 1, 4, 5, 6)):
        wide = normal_like((1, "n"), torch.zeros(shape, dtype=torch.float64))
        narrow = normal_like((1, "n"), torch.zeros(shape))
        assert wide.shape == shape and torch.equal(wide.float(), narrow)


def test_values_are_those_written_down_once() -> None:
    """A change here would silently change every run's data; equal on every machine and in every process."""
    assert seed_of(0, "noise", 1) == 6506115867383488411
    values = normal_box((0, "noise", 1), 1, [(70, 72), (3, 5)]).flatten()
    expected = torch.tensor([0.24667851458659, -1.14566662111958, -0.01734917432114, -0.78017757935492])
    torch.testing.assert_close(values, expected.double(), rtol=1e-6, atol=0)


def test_numbers_between() -> None:
    assert seed_of(0, 1, 2) != seed_of(0, 12)
    assert uniform_between(2.0, 2.0, 1, "x") == 2.0
    assert 0.1 <= uniform_between(0.1, 0.2, 5, "std") <= 0.2
