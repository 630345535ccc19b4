"""SSIM of whole images from boxes: every rank looks at its own pixels, in windows that reach into its neighbours' boxes.

The window's halo is fetched where the image has it and reflected where the image ends, as `metrics.ssim` does with the whole image.
Letters: x, truth (B, C, *box) of this rank's box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from dptrain.engine.exchange import Exchange
from dptrain.engine.metrics import SSIM_WINDOW, ssim_map
from dptrain.geometry.boxes import Box, cells, clip, shape_of, slices
from dptrain.geometry.messages import exchange_plan

SLAB_PIXELS = 2**21
"""Pixels looked at in one go: SSIM needs some fifteen copies of them."""


class BoxSimilarity:
    """Sums over this rank's box of the similarity around every pixel; no axis of the image is shorter than the window."""

    def __init__(
        self,
        shape: Sequence[int],
        owned: Sequence[Box],
        rank: int,
        group: dist.ProcessGroup | None = None,
        *,
        slab_pixels: int = SLAB_PIXELS,
    ) -> None:
        """
        :param shape: of the whole image, pixels.
        :param owned: box of every rank.
        :param rank: this rank within `group`.
        """
        around = [_around(box, shape) for box in owned]
        # Not counted as bytes of a step: a metric is none of its work.
        self._fetch = Exchange(exchange_plan([[box] for box in owned], [[w] for w in around], shape), rank, group)
        slabs = [(slab, _around(slab, shape)) for slab in _slabs(owned[rank], slab_pixels)]
        self._places = [(slices(w, around[rank], lead=2), slices(slab, w, lead=2)) for slab, w in slabs]

    def sum(self, x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Sum over images, channels and pixels of this rank's box, a float64 scalar; a collective."""
        with torch.no_grad():
            (both,) = self._fetch.copy_out((torch.cat([x, truth], 1),))
            total = both.new_zeros((), dtype=torch.float64)
            for window, inside in self._places:
                total += ssim_map(*both[window].chunk(2, 1))[inside].sum(dtype=torch.float64)
        return total


def _around(box: Box, shape: Sequence[int]) -> Box:
    """What the windows around the pixels of a box cover of the image."""
    if not cells(box):
        return box
    halo = SSIM_WINDOW // 2
    return clip(tuple((start - halo, stop + halo) for start, stop in box), shape)


def _slabs(box: Box, pixels: int) -> list[Box]:
    """Parts of a box along its first axis, of about so many pixels; none of an empty one."""
    if not cells(box):
        return []
    (start, stop), *rest = box
    rows = max(1, pixels // math.prod(shape_of(tuple(rest))))
    return [((first, min(first + rows, stop)), *rest) for first in range(start, stop, rows)]
