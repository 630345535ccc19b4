"""A random pixel mask, the same for every channel, keyed by seed and position; 2-D or 3-D."""

from __future__ import annotations

import torch
from deepinv.physics import Inpainting, LinearPhysics

from dptrain.engine.problems.random_fields import Box, uniform_box


def mask_box(seed: int, keep: float, box: Box) -> torch.Tensor:
    """The mask on a box, float64 zeros and ones of shape (1, *box)."""
    return (uniform_box((seed, "mask"), 1, box) < keep).double()


def build(*, image_size: tuple[int, ...], channels: int, seed: int, keep: float) -> list[LinearPhysics]:
    """One mask."""
    mask = mask_box(seed, keep, [(0, n) for n in image_size])
    return [Inpainting(img_size=(channels, *image_size), mask=mask)]
