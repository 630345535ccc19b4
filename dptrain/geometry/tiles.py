"""The tile grid of a patch-wise denoiser, as integers: which windows are read, which cores are kept, who works on which.

The grid is the one of deepinv's `TilingStrategy` (stride = patch, last tile flush to the border, overlap trimmed from the later
tile), extended to a patch at least as long as an axis: one tile there. Coordinates are those of the unpadded image; a window
sticks out of it by the halo at physical borders, where the image is reflected.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

from dptrain.spec.schema import Tiling


@dataclass(frozen=True)
class AxisTile:
    """One tile along one axis: the window [start, stop) that is read and the core that is kept."""

    start: int
    stop: int
    core_start: int
    core_stop: int


def axis_tiles(length: int, patch: int, halo: int) -> tuple[AxisTile, ...]:
    """Tiles along one axis.

    :param length: pixels of the axis, at least 1.
    :param patch: pixels of a core before trimming, at least 1; longer than the axis: the axis.
    :param halo: pixels of context on either side, at least 0.
    """
    assert length >= 1 and patch >= 1 and halo >= 0, (length, patch, halo)
    patch = min(patch, length)
    starts = [*range(0, length - patch, patch), length - patch]
    tiles = []
    done = 0
    for start in starts:
        tiles.append(AxisTile(start - halo, start + patch + halo, max(start, done), start + patch))
        done = start + patch
    return tuple(tiles)


@dataclass(frozen=True)
class Counts:
    """Tiles per rank in numbers."""

    most: int
    mean: float
    idle: int
    """Ranks without a tile."""


@dataclass(frozen=True)
class TileGrid:
    """All tiles of an image, numbered with the last axis fastest."""

    shape: tuple[int, ...]
    """Spatial shape of the image, pixels."""
    patch: int
    """Edge of a core; at least the longest axis: one tile, the whole image with its halo reflected (the untiled reference)."""
    halo: int

    @cached_property
    def axes(self) -> tuple[tuple[AxisTile, ...], ...]:
        """Tiles per axis."""
        return tuple(axis_tiles(length, self.patch, self.halo) for length in self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles per axis."""
        return tuple(-(-max(0, length - self.patch) // self.patch) + 1 for length in self.shape)

    def __len__(self) -> int:
        return math.prod(self.counts)

    @property
    def window_shape(self) -> tuple[int, ...]:
        """Spatial shape of every tile's input: the same for all."""
        return tuple(min(self.patch, length) + 2 * self.halo for length in self.shape)

    def tiles(self) -> list[tuple[AxisTile, ...]]:
        """Every tile, by id."""
        return list(itertools.product(*self.axes))

    @property
    def work_multiplier(self) -> float:
        """Padded tile area over image area: what tiling with a halo costs."""
        return len(self) * math.prod(self.window_shape) / math.prod(self.shape)

    def deal(self, world_size: int) -> list[list[int]]:
        """Tile ids per rank, dealt round robin as deepinv does; ranks beyond the tiles get none."""
        return [list(range(rank, len(self), world_size)) for rank in range(world_size)]

    def deal_counts(self, world_size: int) -> Counts:
        """How many tiles ranks get, without listing them."""
        least, more = divmod(len(self), world_size)
        return Counts(most=least + (more > 0), mean=len(self) / world_size, idle=0 if least else world_size - more)


def tile_grid(image_size: tuple[int, ...], tiling: Tiling) -> TileGrid:
    """The grid of a spec whose patch is a number or `none`; `none` is one tile: the whole image."""
    assert tiling.patch != "fit", "plan replaces fit by a number"
    patch = max(image_size) if tiling.patch == "none" else tiling.patch
    return TileGrid(image_size, patch, tiling.halo)
