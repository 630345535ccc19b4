"""Who denoises which tiles, where every rank owns a box of the image.

Owning and working are two things. Where the tiles around each owned box are balanced, a rank works on those whose core has its
centre in its box, and one exchange of halos serves. Else tiles are dealt evenly: in runs along a snake through the owners, so that
most of what a rank works on lies in its box or next to it; it then costs fetching the windows and returning the cores.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dptrain.geometry.boxes import Box, cells, clip
from dptrain.geometry.messages import ExchangePlan, exchange_plan
from dptrain.geometry.tiles import AxisTile, TileGrid

BALANCED = 0.97
"""Tiles stay with the owners of their boxes where that reaches this share of the balance of an even deal."""

Place = tuple[int, ...]
"""A tile's place in the grid of tiles, or an owner's in the grid of owned boxes."""


@dataclass(frozen=True)
class TileBlock:
    """A rectangle of neighbouring tiles: one window to read, one core to return."""

    tiles: tuple[int, ...]
    """Tile ids, last axis fastest."""
    window: Box
    """Around all their windows, clipped to the image; what is missing at its borders is reflected after the exchange."""
    core: Box
    """Of all their cores."""


@dataclass(frozen=True)
class Dealing:
    """The tiles of every rank."""

    grid: TileGrid
    owned: tuple[Box, ...]
    blocks: tuple[tuple[TileBlock, ...], ...]
    """Per rank; none for an idle one."""
    aligned: bool
    """Whether every rank works on the tiles of its own box."""

    @property
    def tiles(self) -> list[list[int]]:
        """Tile ids per rank."""
        return [[tile for block in blocks for tile in block.tiles] for blocks in self.blocks]

    @property
    def balance(self) -> float:
        """Mean over largest number of tiles per rank."""
        return _balance([len(tiles) for tiles in self.tiles])

    def fetch_plan(self) -> ExchangePlan:
        """From owned boxes to the windows of blocks."""
        wanted = [[block.window for block in blocks] for blocks in self.blocks]
        return exchange_plan([[box] for box in self.owned], wanted, self.grid.shape)

    def return_plan(self) -> ExchangePlan:
        """From the cores of blocks to owned boxes."""
        held = [[block.core for block in blocks] for blocks in self.blocks]
        return exchange_plan(held, [[box] for box in self.owned], self.grid.shape)


def deal_tiles(grid: TileGrid, owned: Sequence[Box]) -> Dealing:
    """Deal the tiles to the owners of boxes.

    :param owned: box per rank, as `split_boxes` makes them: a grid of boxes, the ranks left over empty.
    """
    _, keep = busiest(grid, owned)
    places = at_home(grid, owned) if keep else _deal_evenly(grid, _OwnerGrid(owned))
    blocks = tuple(tuple(_block(grid, rectangle) for rectangle in rectangles(mine)) for mine in places)
    return Dealing(grid, tuple(owned), blocks, keep)


def busiest(grid: TileGrid, owned: Sequence[Box]) -> tuple[int, bool]:
    """(tiles of the busiest rank, whether tiles stay with the owners of their boxes), without listing them.

    Owners are a grid of boxes, so that the tiles of one are the product of those that it has along every axis.
    """
    homes = _OwnerGrid(owned)
    aligned = math.prod(max(Counter(homes.along(grid, axis)).values()) for axis in range(len(grid.shape)))
    even = -(-len(grid) // len(owned))
    keep = even >= BALANCED * aligned
    return (aligned if keep else even), keep


def at_home(grid: TileGrid, owned: Sequence[Box]) -> list[list[Place]]:
    """Per rank the tiles whose core has its centre in its box."""
    owners = _OwnerGrid(owned)
    places: list[list[Place]] = [[] for _ in owned]
    for place in itertools.product(*(range(n) for n in grid.counts)):
        places[owners.ranks[owners.home(grid, place)]].append(place)
    return places


def rectangles(places: Sequence[Place]) -> list[Box]:
    """Disjoint rectangles that cover a set of places: each grown from the first place left, along the last axis first."""
    left = set(places)
    found: list[Box] = []
    while left:
        corner = min(left)
        box = [(start, start + 1) for start in corner]
        for axis in reversed(range(len(corner))):
            while True:
                stop = box[axis][1]
                face = [range(stop, stop + 1) if a == axis else range(*interval) for a, interval in enumerate(box)]
                if not left.issuperset(itertools.product(*face)):
                    break
                box[axis] = (box[axis][0], stop + 1)
        left.difference_update(itertools.product(*(range(*interval) for interval in box)))
        found.append(tuple(box))
    return found


def runs_back(owner: Place, axis: int) -> bool:
    """Whether the snake goes down along an axis at this owner: it turns with every step along the slower axes."""
    return sum(owner[:axis]) % 2 == 1


class _OwnerGrid:
    """The owned boxes as a grid, found from the boxes themselves."""

    def __init__(self, owned: Sequence[Box]) -> None:
        full = {rank: box for rank, box in enumerate(owned) if cells(box)}
        axes = range(len(owned[0]))
        self._starts = [sorted({box[axis][0] for box in full.values()}) for axis in axes]
        self.ranks = {tuple(self._starts[a].index(box[a][0]) for a in axes): rank for rank, box in full.items()}
        self._idle = [rank for rank in range(len(owned)) if rank not in full]

    def home(self, grid: TileGrid, place: Place) -> Place:
        """The owner of the centre of a tile's core."""
        return tuple(_home(starts, axis[i]) for starts, axis, i in zip(self._starts, grid.axes, place, strict=True))

    def along(self, grid: TileGrid, axis: int) -> list[int]:
        """The owner's place along one axis of every tile along it."""
        return [_home(self._starts[axis], tile) for tile in grid.axes[axis]]

    def snake(self, owner: Place) -> Place:
        """Sorts owners along a path on which each is a neighbour of the next: every axis runs back and forth."""
        return tuple(-i if runs_back(owner, axis) else i for axis, i in enumerate(owner))

    def path(self) -> list[int]:
        """Ranks along the snake, then those that own nothing."""
        return [self.ranks[owner] for owner in sorted(self.ranks, key=self.snake)] + self._idle


def _home(starts: Sequence[int], tile: AxisTile) -> int:
    """Which of the boxes that begin at `starts` has the centre of the tile's core."""
    return bisect_right(starts, (tile.core_start + tile.core_stop) // 2) - 1


def _deal_evenly(grid: TileGrid, owners: _OwnerGrid) -> list[list[Place]]:
    def order(place: Place) -> tuple[Place, int, Place]:
        owner = owners.home(grid, place)
        # Within an owner along the snake's way, so that what it gives away lies next to the one who gets it.
        return owners.snake(owner), -place[-1] if runs_back(owner, len(owner) - 1) else place[-1], place

    places = sorted(itertools.product(*(range(n) for n in grid.counts)), key=order)
    path = owners.path()
    dealt: list[list[Place]] = [[] for _ in path]
    for position, rank in enumerate(path):
        dealt[rank] = places[len(places) * position // len(path) : len(places) * (position + 1) // len(path)]
    return dealt


def _block(grid: TileGrid, rectangle: Box) -> TileBlock:
    ends: list[tuple[AxisTile, AxisTile]] = [
        (axis[start], axis[stop - 1]) for axis, (start, stop) in zip(grid.axes, rectangle, strict=True)
    ]
    ids = []
    for place in itertools.product(*(range(*interval) for interval in rectangle)):
        number = 0
        for i, count in zip(place, grid.counts, strict=True):
            number = number * count + i
        ids.append(number)
    window = tuple((first.start, last.stop) for first, last in ends)
    core = tuple((first.core_start, last.core_stop) for first, last in ends)
    return TileBlock(tuple(ids), clip(window, grid.shape), core)


def _balance(counts: Sequence[int]) -> float:
    return sum(counts) / len(counts) / max(counts)
