"""Random numbers keyed by position: any box of a field can be made without the rest, and is the same in every process.

A field is cut into blocks of `BLOCK` samples per axis; each block has a generator of its own, seeded by a hash of the field's key
and the block's place. Always drawn in float64 on the CPU, so that float32 and float64 runs, GPUs and CPUs see the same numbers
up to rounding. Cost: the blocks that a box touches are drawn whole.

C = channels (never cut into blocks), spatial axes after it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

BLOCK = 64
"""Edge of a block in samples, for fields of up to two spatial axes."""
BLOCK_3D = 16
"""The same with three or more spatial axes."""

Box = Sequence[tuple[int, int]]
"""(low, high) per spatial axis, high excluded."""


def seed_of(*key: int | str) -> int:
    """63 bits from a key; equal on every machine and in every process (Python's own `hash` is salted)."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator of its own for `key`."""
    made = torch.Generator()
    made.manual_seed(seed_of(*key))
    return made


def _field(
    key: tuple[int | str, ...], channels: int, box: Box, draw: Callable[..., Tensor], dtype: torch.dtype
) -> Tensor:
    block = BLOCK if len(box) <= 2 else BLOCK_3D
    out = torch.empty(channels, *(hi - lo for lo, hi in box), dtype=dtype)
    if not out.numel():
        return out
    for place in itertools.product(*(range(lo // block, -(-hi // block)) for lo, hi in box)):
        whole = draw(channels, *(block,) * len(box), generator=generator(*key, *place), dtype=torch.float64)
        inside = [(max(lo, p * block), min(hi, (p + 1) * block)) for p, (lo, hi) in zip(place, box, strict=True)]
        target = tuple(slice(lo - b, hi - b) for (lo, hi), (b, _) in zip(inside, box, strict=True))
        source = tuple(slice(lo - p * block, hi - p * block) for (lo, hi), p in zip(inside, place, strict=True))
        out[(slice(None), *target)] = whole[(slice(None), *source)]
    return out


def normal_box(key: tuple[int | str, ...], channels: int, box: Box, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal samples of `box`, shape (C, *box)."""
    return _field(key, channels, box, torch.randn, dtype)


def uniform_box(key: tuple[int | str, ...], channels: int, box: Box, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniform samples in [0, 1) of `box`, shape (C, *box)."""
    return _field(key, channels, box, torch.rand, dtype)


def normal_like(key: tuple[int | str, ...], y: Tensor, place: Box | None = None) -> Tensor:
    """Standard normal samples for a part of measurements, (1, C, *place), or for all of them, (1, C, ...) or (1, M).

    :param place: where y lies; None: it is all. The first axis after the batch is C when others follow.
    """
    shape = tuple(y.shape[1:])
    channels, spatial = (1, shape) if len(shape) == 1 else (shape[0], shape[1:])
    noise = normal_box(key, channels, [(0, n) for n in spatial] if place is None else place, y.dtype)
    assert noise.numel() == prod(shape), (shape, place)
    return noise.reshape(y.shape).to(y)


def uniform_between(low: float, high: float, *key: int | str) -> float:
    """One uniform number."""
    return low + (high - low) * float(torch.rand((), generator=generator(*key), dtype=torch.float64))
