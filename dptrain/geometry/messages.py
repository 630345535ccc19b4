"""The exchange of boxes as integers: who sends which pixels to whom, known to every rank without a question asked.

Every rank holds values on some boxes, disjoint over all ranks, and wants values on some boxes: any, also overlapping, also
sticking out of the image along periodic axes. Each message is one intersection. Halos, tiles, cores, the whole image, output and
resharding are all this; the same list read backwards, adding, is the adjoint.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dptrain.geometry.boxes import Box, cells, empty_box, intersect, periodic_images, shift

Boxes = tuple[tuple[Box, ...], ...]
"""Boxes per rank."""


class Message(NamedTuple):
    """Pixels that go from one rank to another, or stay: source and target may be one rank."""

    source: int
    held: int
    """Which of the boxes that the source holds."""
    box: Box
    """The pixels, in coordinates of the image."""
    target: int
    wanted: int
    """Which of the boxes that the target wants."""
    place: Box
    """The same pixels in the coordinates of the wanted box: away from `box` by image lengths where it wraps around."""


@dataclass(frozen=True)
class ExchangePlan:
    """All messages of one exchange, in one order for every rank."""

    held: Boxes
    wanted: Boxes
    messages: tuple[Message, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.held)

    @cached_property
    def digest(self) -> str:
        """Tells this exchange from others, the same in every process."""
        return hashlib.blake2b(repr((self.held, self.wanted)).encode(), digest_size=8).hexdigest()

    @cached_property
    def cells_between(self) -> dict[tuple[int, int], int]:
        """Pixels by (source, target), for pairs of different ranks that have any."""
        between: Counter[tuple[int, int]] = Counter()
        for message in self.messages:
            if message.source != message.target:
                between[message.source, message.target] += cells(message.box)
        return dict(between)

    def bytes_sent(self, rank: int, cell_bytes: int) -> int:
        """Bytes a rank sends in one exchange; in the adjoint it receives them.

        :param cell_bytes: batch x channels x bytes of a number.
        """
        return cell_bytes * sum(n for (source, _), n in self.cells_between.items() if source == rank)

    def bytes_received(self, rank: int, cell_bytes: int) -> int:
        """Bytes a rank receives in one exchange; in the adjoint it sends them."""
        return cell_bytes * sum(n for (_, target), n in self.cells_between.items() if target == rank)

    def messages_sent(self, rank: int) -> int:
        """Buffers a rank sends in one exchange: one per other rank it has pixels for."""
        return sum(source == rank for source, _ in self.cells_between)

    def messages_received(self, rank: int) -> int:
        """Buffers a rank receives in one exchange."""
        return sum(target == rank for _, target in self.cells_between)


def exchange_plan(
    held: Sequence[Sequence[Box]],
    wanted: Sequence[Sequence[Box]],
    shape: Sequence[int],
    periodic: Sequence[bool] | None = None,
) -> ExchangePlan:
    """Plan an exchange.

    :param held: boxes per rank, inside the image and disjoint over all ranks.
    :param wanted: boxes per rank; every pixel of them is held by someone.
    :param shape: the image, pixels per axis.
    :param periodic: axes along which a wanted box may stick out of the image and wraps around; None: none.

    A rank without boxes gets one empty box, so that every rank has a tensor in every exchange.
    """
    assert len(held) == len(wanted), (len(held), len(wanted))
    wraps = tuple(periodic) if periodic is not None else (False,) * len(shape)
    nothing = (empty_box(len(shape)),)
    all_held = tuple(tuple(boxes) or nothing for boxes in held)
    all_wanted = tuple(tuple(boxes) or nothing for boxes in wanted)
    index = _Holders(all_held)
    messages = []
    for target, boxes in enumerate(all_wanted):
        for number, box in enumerate(boxes):
            found = 0
            for inside, place in periodic_images(box, shape, wraps):
                offset = [p - i for (p, _), (i, _) in zip(place, inside, strict=True)]
                for source, which, part in index.parts(inside):
                    messages.append(Message(source, which, part, target, number, shift(part, offset)))
                    found += cells(part)
            assert found == math.prod(max(0, stop - start) for start, stop in box), (
                f"box {box} wanted by rank {target}: {found} of its pixels are held"
            )
    return ExchangePlan(all_held, all_wanted, tuple(messages))


class _Holders:
    """Finds who holds the pixels of a box, without looking at every rank's boxes."""

    def __init__(self, held: Boxes) -> None:
        entries = [(box, rank, i) for rank, boxes in enumerate(held) for i, box in enumerate(boxes) if cells(box)]
        self._entries = sorted(entries)
        self._starts = [box[0][0] for box, _, _ in self._entries]
        self._longest = max((box[0][1] - box[0][0] for box, _, _ in entries), default=0)

    def parts(self, box: Box) -> list[tuple[int, int, Box]]:
        """(rank, which of its boxes, common pixels), by rank and box."""
        (start, stop), *_ = box
        first = bisect_right(self._starts, start - self._longest)
        last = bisect_left(self._starts, stop)
        found = []
        for holder, rank, which in self._entries[first:last]:
            part = intersect(holder, box)
            if part is not None:
                found.append((rank, which, part))
        return sorted(found)
