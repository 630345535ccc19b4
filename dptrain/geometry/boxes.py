"""Boxes of pixels as integers: arithmetic, images under periodic wrap, and which rank owns which part of an image.

A box is half-open per axis, in pixels of the whole image. An empty box has no pixels; a rank that owns nothing owns one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from dptrain.errors import PlanRefused

Box = tuple[tuple[int, int], ...]
"""(start, stop) per axis, stop excluded."""
VOLUME_SLACK = 1.1
"""Of the rank grids whose largest box is within this factor of the smallest possible, the one with the least surface is taken."""


def whole(shape: Sequence[int]) -> Box:
    """The box of a full image."""
    return tuple((0, length) for length in shape)


def empty_box(axes: int) -> Box:
    """A box without pixels."""
    return ((0, 0),) * axes


def shape_of(box: Box) -> tuple[int, ...]:
    """Pixels per axis."""
    return tuple(stop - start for start, stop in box)


def cells(box: Box) -> int:
    """Number of pixels."""
    return math.prod(stop - start for start, stop in box)


def shift(box: Box, by: Sequence[int]) -> Box:
    """The box moved by `by` pixels per axis."""
    return tuple((start + d, stop + d) for (start, stop), d in zip(box, by, strict=True))


def intersect(a: Box, b: Box) -> Box | None:
    """The common pixels; None where there are none."""
    out = []
    for (a_start, a_stop), (b_start, b_stop) in zip(a, b, strict=True):
        start = a_start if a_start > b_start else b_start
        stop = a_stop if a_stop < b_stop else b_stop
        if start >= stop:
            return None
        out.append((start, stop))
    return tuple(out)


def contains(outer: Box, inner: Box) -> bool:
    """Whether every pixel of `inner` lies in `outer`."""
    return not cells(inner) or all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def hull(boxes: Sequence[Box]) -> Box:
    """The smallest box around all of them."""
    return tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in zip(*boxes, strict=True))


def clip(box: Box, shape: Sequence[int]) -> Box:
    """The part inside an image of `shape`; empty where there is none."""
    return intersect(box, whole(shape)) or empty_box(len(box))


def slices(box: Box, origin: Box, lead: int = 0) -> tuple[slice, ...]:
    """Where the pixels of `box` lie in an array that holds `origin`.

    :param lead: axes of the array before the spatial ones, taken whole.
    """
    inside = (slice(start - o, stop - o) for (start, stop), (o, _) in zip(box, origin, strict=True))
    return (*(slice(None),) * lead, *inside)


def periodic_images(box: Box, shape: Sequence[int], periodic: Sequence[bool]) -> list[tuple[Box, Box]]:
    """The parts of a box that may stick out of the image along periodic axes, by ascending place.

    :returns: pairs of (pixels inside the image, the same in the coordinates of `box`).
    """
    axes = []
    for (start, stop), length, wraps in zip(box, shape, periodic, strict=True):
        assert wraps or stop <= start or (start >= 0 and stop <= length), (box, shape, periodic)
        turns = range(start // length, -(-stop // length)) if wraps else range(1)
        pieces = [(max(start, k * length), min(stop, (k + 1) * length), k * length) for k in turns]
        axes.append([piece for piece in pieces if piece[0] < piece[1]])
    return [
        (tuple((a - d, b - d) for a, b, d in place), tuple((a, b) for a, b, _ in place))
        for place in itertools.product(*axes)
    ]


def rank_grid(shape: Sequence[int], world_size: int, stride: Sequence[int]) -> tuple[int, ...]:
    """How many parts each axis is cut into: as many ranks as possible, then nearly the smallest boxes, then the least surface.

    :raises PlanRefused: where an axis is shorter than the operators' stride.
    """
    blocks = [-(-length // step) for length, step in zip(shape, stride, strict=True)]
    for axis, (length, step) in enumerate(zip(shape, stride, strict=True)):
        if length < step:
            raise PlanRefused(
                f"axis {axis} of the image has {length} pixels, fewer than the operators' stride of {step}: no box can be cut there"
            )
    count = min(world_size, math.prod(blocks))
    while not (grids := list(_factorings(count, blocks))):
        count -= 1
    largest = {grid: _largest_shape(shape, blocks, stride, grid) for grid in grids}
    limit = VOLUME_SLACK * min(math.prod(sides) for sides in largest.values())
    near = [grid for grid in grids if math.prod(largest[grid]) <= limit]
    # Equal surfaces: cut the slower axes, whose slabs lie together in memory.
    return min(near, key=lambda grid: (_cut_surface(largest[grid], grid), tuple(-parts for parts in grid)))


def split_boxes(shape: Sequence[int], world_size: int, stride: Sequence[int]) -> list[Box]:
    """The box each rank owns: near-equal, cut at multiples of the stride, ranks numbered with the last axis fastest.

    Ranks beyond the boxes own an empty box; that happens where there are fewer stride-sized blocks, or blocks per axis, than
    ranks.

    :param shape: pixels per axis.
    :param stride: of the operators, pixels per axis.
    :raises PlanRefused: where an axis is shorter than the stride.
    """
    grid = rank_grid(shape, world_size, stride)
    axes = []
    for length, step, parts in zip(shape, stride, grid, strict=True):
        blocks = -(-length // step)
        cuts = [min(length, step * (blocks * k // parts)) for k in range(parts + 1)]
        axes.append(list(itertools.pairwise(cuts)))
    boxes: list[Box] = list(itertools.product(*axes))
    return boxes + [empty_box(len(shape))] * (world_size - len(boxes))


def _factorings(count: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to write `count` as a product of one factor per axis, none above its limit."""
    if len(limits) == 1:
        if count <= limits[0]:
            yield (count,)
        return
    for first in range(1, min(count, limits[0]) + 1):
        if count % first == 0:
            yield from ((first, *rest) for rest in _factorings(count // first, limits[1:]))


def _largest_shape(
    shape: Sequence[int], blocks: Sequence[int], stride: Sequence[int], grid: Sequence[int]
) -> tuple[int, ...]:
    return tuple(
        min(length, step * -(-n // parts)) for length, n, step, parts in zip(shape, blocks, stride, grid, strict=True)
    )


def _cut_surface(sides: Sequence[int], grid: Sequence[int]) -> int:
    """Pixels on the faces that a box with the most neighbours shares with them."""
    return sum(min(parts - 1, 2) * (math.prod(sides) // side) for side, parts in zip(sides, grid, strict=True))
