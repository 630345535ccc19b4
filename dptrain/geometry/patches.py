"""`patch: fit`: the edge of a patch with which the busiest rank has the fewest pixels to denoise.

A step waits for the rank with most tiles, and every tile is denoised with its halo. What counts is therefore the load: pixels of
the busiest rank's windows over its even share of the image, which is (largest over mean number of tiles per rank) times (padded
tile area over image area). Small patches deal evenly and pay for halos, large ones the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dptrain.geometry.boxes import Box
from dptrain.geometry.dealing import busiest
from dptrain.geometry.tiles import TileGrid

LARGEST = {2: 512, 3: 128}
"""Largest patch tried, by the image's axes: what a tile needs in memory grows with it, and beyond it the halo costs little."""
STEP = 8
"""Patches tried are so many pixels apart, or a multiple that suits the network's stride."""
NEAR = 1.01
"""Among patches within this factor of the least load: one whose tiles stay with the owners of their boxes, which saves an exchange,
and of those the largest, which takes the fewest calls."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One patch and what it costs."""

    edge: int
    """Pixels."""
    load: float
    """Pixels that the busiest rank denoises, over its even share of the image; 1 is the ideal."""
    aligned: bool
    """Layout sharded: whether every rank works on the tiles of its own box."""


def load(grid: TileGrid, ranks: int, most: int) -> float:
    """Largest over mean number of tiles per rank, times padded tile area over image area.

    :param most: tiles of the busiest rank.
    """
    return most * ranks * math.prod(grid.window_shape) / math.prod(grid.shape)


def measured(grid: TileGrid, ranks: int, owned: Sequence[Box] | None) -> Patch:
    """What a grid of tiles costs.

    :param owned: box per rank in layout sharded; None: tiles are dealt round robin, as in layout replicated.
    """
    most, aligned = (grid.deal_counts(ranks).most, False) if owned is None else busiest(grid, owned)
    return Patch(edge=grid.patch, load=load(grid, ranks, most), aligned=aligned)


def candidates(
    shape: Sequence[int], halo: int, stride: int = 1, smallest_window: int = 1, largest: int | None = None
) -> list[int]:
    """Patches worth trying, ascending: window = patch + 2 halo is a multiple of the network's stride; never an empty list.

    Up to `largest`, and not beyond the first that covers the longest axis. An axis not longer than the patch has one window,
    whatever the patch; where the windows of some patches suit along every axis, those of others are left out.

    :param stride: multiple that a window's sides must be for the network.
    :param smallest_window: pixels that they must be at least.
    :param largest: default: `LARGEST`.
    """
    step = math.lcm(STEP, stride)
    limit = min(largest or LARGEST[len(shape)], max(shape) + step - 1)
    first = -2 * halo % stride or step
    while first + 2 * halo < smallest_window:
        first += step
    edges = [*range(first, limit + 1, step)] or [first]

    def suits(edge: int) -> bool:
        windows = TileGrid(tuple(shape), edge, halo).window_shape
        return all(side % stride == 0 and side >= smallest_window for side in windows)

    return [edge for edge in edges if suits(edge)] or edges


def fit_patch(
    shape: Sequence[int],
    halo: int,
    ranks: int,
    owned: Sequence[Box] | None,
    *,
    stride: int = 1,
    smallest_window: int = 1,
    largest: int | None = None,
) -> Patch:
    """The patch of the least load, see `NEAR` for ties.

    No dealing has less than an even one: patches are measured in the order of that bound, until it exceeds what was found.

    :param shape: of the image, pixels.
    :param ranks: that share the image.
    :param owned: as for `measured`.
    """
    bounds = []
    for edge in candidates(shape, halo, stride, smallest_window, largest):
        grid = TileGrid(tuple(shape), edge, halo)
        bounds.append((load(grid, ranks, -(-len(grid) // ranks)), grid))
    found: list[Patch] = []
    for bound, grid in sorted(bounds, key=lambda pair: pair[0]):
        if found and bound > NEAR * min(patch.load for patch in found):
            break
        found.append(measured(grid, ranks, owned))
    limit = NEAR * min(patch.load for patch in found)
    return max((patch for patch in found if patch.load <= limit), key=lambda patch: (patch.aligned, patch.edge))
