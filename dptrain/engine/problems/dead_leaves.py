"""Synthetic images: dead leaves, 2-D or 3-D, a pure function of seed, index and position.

Discs (balls in 3-D) of random radius, depth and colour cover the image; a pixel shows the top-most one. Radii fall into octaves;
in the octave with radii in (R/2, R] a cell of edge R holds one leaf, always where R is 64 or more and else with probability R/64,
so that the density of radii falls like r^-2 (r^-3 in 3-D) and large shapes stay visible. A leaf reaches no further than the
neighbouring cells, so that any box is made without the rest: cost is 6 octaves x 9 (27) candidate leaves per pixel. Each leaf has
a colour, a shading across it and, one in three, a wavy texture.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dptrain.engine.problems.random_fields import Box, seed_of

OCTAVES = (4, 8, 16, 32, 64, 128)
"""Largest radius of each octave, in pixels: also the edge of its cells."""
CHUNK = {2: 128, 3: 32}
"""Edge of the pieces in which a box is made; bounds memory, and pieces fit the processor's cache."""

Leaves = NDArray[np.float64]
"""Per-leaf numbers of one octave, shape (cells, fields)."""


def dead_leaves(
    seed: int,
    index: int,
    box: Box,
    image_size: tuple[int, ...],
    channels: int,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The pixels of `box` of image `index` in [0, 1], shape (C, *box).

    :param box: (low, high) per axis inside `image_size`.
    :param dtype: of the result; made in float64.
    """
    assert len(box) == len(image_size) and all(0 <= lo <= hi <= n for (lo, hi), n in zip(box, image_size, strict=True))
    out = torch.empty(channels, *(hi - lo for lo, hi in box), dtype=dtype)
    edge = CHUNK[len(box)]
    starts = [range(lo - lo % edge, hi, edge) for lo, hi in box]
    for start in itertools.product(*starts):
        piece = [(max(s, lo), min(s + edge, hi)) for s, (lo, hi) in zip(start, box, strict=True)]
        target = tuple(slice(a - lo, b - lo) for (a, b), (lo, _) in zip(piece, box, strict=True))
        out[(slice(None), *target)] = _piece(seed_of(seed, "leaves", index), piece, channels)
    return out


@dataclass(frozen=True)
class _Octave:
    """The leaves of one octave around a box."""

    radius: int
    first: tuple[int, ...]
    """First cell per axis, one before the box's own."""
    counts: tuple[int, ...]
    centre: Tensor
    """(cells, axes), pixels."""
    radius_sq: Tensor
    """0 for a cell without a leaf."""
    depth: Tensor
    look: Tensor
    """(cells, fields): what `_shade` reads."""


def _uniform(key: int, cells: NDArray[np.int64], fields: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), shape (cells, fields): a 64-bit integer hash of key, cell and field."""
    state = np.full((len(cells), 1), key, dtype=np.uint64)
    for column in (*cells.astype(np.uint64).T, None):
        add = np.arange(fields, dtype=np.uint64)[None] if column is None else column[:, None]
        state = _scramble(state + add * np.uint64(0x9E3779B97F4A7C15))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _scramble(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64 bits in which every input bit moves about half of the output bits."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _octave(key: int, radius: int, box: Box, channels: int) -> _Octave:
    first = tuple(lo // radius - 1 for lo, _ in box)
    counts = tuple((hi - 1) // radius + 2 - f for f, (_, hi) in zip(first, box, strict=True))
    cells = np.stack(np.meshgrid(*(np.arange(f, f + n) for f, n in zip(first, counts, strict=True)), indexing="ij"), -1)
    cells = cells.reshape(-1, len(box))
    axes = len(box)
    draws = torch.from_numpy(_uniform(key ^ radius, cells, 5 + 3 * axes + channels))
    # Half an octave's radii, distributed like r^-(axes + 1): the inverse of its cumulative distribution.
    spread = 2.0**axes
    radii = radius * (spread - (spread - 1) * draws[:, 0]) ** (-1 / axes)
    centre = (torch.from_numpy(cells.astype(np.float64)) + draws[:, 3 : 3 + axes]) * radius
    radii_sq = torch.where(draws[:, 2] < radius / 64, radii**2, 0.0)
    look = torch.cat([centre, radii[:, None], draws[:, 3 + axes :]], 1)
    return _Octave(radius, first, counts, centre, radii_sq, draws[:, 1], look)


def _piece(key: int, box: Box, channels: int) -> Tensor:
    axes = len(box)
    shape = tuple(hi - lo for lo, hi in box)
    grid = [
        torch.arange(lo, hi, dtype=torch.float64).reshape(*(-1 if a == b else 1 for b in range(axes))) + 0.5
        for a, (lo, hi) in enumerate(box)
    ]
    octaves = [_octave(key, radius, box, channels) for radius in OCTAVES]
    best = torch.full(shape, -1.0, dtype=torch.float64)
    winner = torch.zeros(shape, dtype=torch.int64)
    base = 0
    for octave in octaves:
        home = _home_cell(octave, box)
        for offset in itertools.product((-1, 0, 1), repeat=axes):
            leaf = home + _flat(offset, octave.counts)
            distance_sq = sum((grid[a] - octave.centre[:, a][leaf]).square_() for a in range(axes))
            assert isinstance(distance_sq, Tensor)
            depth = octave.depth[leaf]
            over = (distance_sq < octave.radius_sq[leaf]) & (depth > best)
            best = torch.where(over, depth, best)
            winner = torch.where(over, leaf + base, winner)
        base += len(octave.depth)
    # A pixel that no leaf covers (about 1 in 100) takes the look of a leaf of its largest cell.
    winner = torch.where(best < 0, home + base - len(octaves[-1].depth), winner)
    return _shade(torch.cat([octave.look for octave in octaves])[winner], grid, channels)


def _flat(index: tuple[int, ...], counts: tuple[int, ...]) -> int:
    flat = 0
    for i, n in zip(index, counts, strict=True):
        flat = flat * n + i
    return flat


def _home_cell(octave: _Octave, box: Box) -> Tensor:
    """Flat index, in the octave's table, of the cell that holds each pixel."""
    axes = len(box)
    flat = torch.zeros((), dtype=torch.int64)
    for a, ((lo, hi), first, count) in enumerate(zip(box, octave.first, octave.counts, strict=True)):
        cell = torch.arange(lo, hi) // octave.radius - first
        flat = flat * count + cell.reshape(*(-1 if a == b else 1 for b in range(axes)))
    return flat


def _shade(look: Tensor, grid: list[Tensor], channels: int) -> Tensor:
    """Colours from the winning leaves' fields: centre, radius, brightness, texture strength, shading and wave directions, tints."""
    axes = len(grid)
    fields = list(look.unbind(-1))
    centre, radius, brightness, strength = fields[:axes], fields[axes], fields[axes + 1], fields[axes + 2]
    slopes, waves, tints = fields[axes + 3 : 2 * axes + 3], fields[2 * axes + 3 : 3 * axes + 3], fields[3 * axes + 3 :]
    local = [g - c for g, c in zip(grid, centre, strict=True)]
    shading = sum((s - 0.5) * x for s, x in zip(slopes, local, strict=True)) / radius
    phase = sum((2 * w - 1) * x for w, x in zip(waves, local, strict=True))
    assert isinstance(shading, Tensor) and isinstance(phase, Tensor)
    # Two leaves in three carry no texture.
    texture = torch.sin(1.5 * phase) * (0.12 * (3 * strength - 2).clamp(min=0))
    gray = brightness + 0.3 * shading + texture
    colour = torch.stack([gray + 0.35 * (t - 0.5) for t in tints]) if channels > 1 else gray[None]
    return colour.clamp(0, 1)
