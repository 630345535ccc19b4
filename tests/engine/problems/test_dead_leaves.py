"""Dead leaves: a function of seed, index and position."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrain.engine.problems.dead_leaves import dead_leaves
from tests.engine.problems.test_random_fields import boxes


@settings(max_examples=12, deadline=None)
@given(boxes().filter(lambda case: len(case[0]) > 1), st.integers(1, 4), st.integers(0, 2**40))
def test_a_box_is_the_crop_of_the_whole(
    case: tuple[list[int], list[tuple[int, int]]], channels: int, seed: int
) -> None:
    size, box = case
    whole = dead_leaves(seed, 7, [(0, n) for n in size], tuple(size), channels)
    crop = tuple(slice(lo, hi) for lo, hi in box)
    assert torch.equal(dead_leaves(seed, 7, box, tuple(size), channels), whole[(slice(None), *crop)])


def test_values_images_and_seeds() -> None:
    box = [(0, 96), (0, 80)]
    image = dead_leaves(0, 0, box, (96, 80), 3)
    assert image.shape == (3, 96, 80) and image.min() >= 0 and image.max() <= 1
    assert image.std() > 0.1, "structure, not a flat field"
    assert not torch.equal(image, dead_leaves(0, 1, box, (96, 80), 3))
    assert not torch.equal(image, dead_leaves(1, 0, box, (96, 80), 3))
    assert torch.equal(image, dead_leaves(0, 0, box, (96, 80), 3))


def test_values_are_those_written_down_once() -> None:
    flat = dead_leaves(0, 0, [(100, 102), (200, 202)], (300, 300), 1).flatten()
    expected = [0.4721566113034466, 0.46114792514945846, 0.47366224754339875, 0.4527043410301276]
    torch.testing.assert_close(flat, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)
    solid = dead_leaves(0, 0, [(10, 11), (20, 22), (3, 4)], (30, 30, 30), 2).flatten()
    expected = [0.09909883315625807, 0.09921672432315333, 0.3135405661838837, 0.3136584573507789]
    torch.testing.assert_close(solid, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


def test_large_shapes_and_edges_at_every_scale() -> None:
    """Neighbouring pixels mostly agree, with sharp edges between leaves: what makes the images useful for training."""
    image = dead_leaves(2, 0, [(0, 256), (0, 256)], (256, 256), 1)[0]
    steps = (image[1:] - image[:-1]).abs()
    assert float(steps.median()) < 0.03 and float((steps > 0.2).double().mean()) > 0.02
