"""What a local operator reads, as integers: which pixels of the image an operator's measurements on a box depend on.

A local operator is a chain of stages. Each reads a window around its output's footprint and runs in valid mode; at the border of
the image the window is completed by the stage's boundary. Coordinates of a stage's output are its input's divided by the stride.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dptrain.geometry.boxes import Box, cells, contains, empty_box, hull, whole
from dptrain.geometry.messages import ExchangePlan, exchange_plan

Boundary = Literal["circular", "reflect", "replicate", "constant", "none"]
"""How an image goes on beyond its border: constant is zero; none: nothing beyond it is read."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What one output pixel of a stage reads per axis: its stride-sized cell of the input and the halo around it."""

    halo: tuple[tuple[int, int], ...]
    """Input pixels before and after the cell."""
    stride: tuple[int, ...]
    """Input pixels per output pixel."""
    boundary: Boundary

    def __post_init__(self) -> None:
        assert self.boundary != "none" or not any(map(any, self.halo)), self


@dataclass(frozen=True)
class Passage:
    """One stage on one rank."""

    source: Box
    """Input pixels that the rank needs: inside the image, or wrapped around a circular boundary."""
    padded: Box
    """The source with the boundary's continuation at borders of the image."""
    window: Box
    """Input of the stage in valid mode: in `padded`."""
    out: Box
    """Its output."""


def levels(stages: Sequence[Footprint], shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Shapes of the image, of every stage's output, the last being that of the measurements."""
    made = [tuple(shape)]
    for stage in stages:
        made.append(tuple(-(-n // step) for n, step in zip(made[-1], stage.stride, strict=True)))
    return made


def total_stride(stages: Sequence[Footprint], axes: int) -> tuple[int, ...]:
    """Pixels of the image per measurement, per axis."""
    total = [1] * axes
    for stage in stages:
        total = [a * b for a, b in zip(total, stage.stride, strict=True)]
    return tuple(total)


def runs_locally(stages: Sequence[Footprint], shape: Sequence[int]) -> bool:
    """Whether a chain can run on boxes.

    A circular stage after one with another boundary would read that boundary's continuation on the image's other side; after
    a stride that does not divide the image, its period is not the image's. A halo must be shorter than the axis.
    """
    boundaries = {stage.boundary for stage in stages} - {"none"}
    if "circular" in boundaries and len(boundaries) > 1:
        return False
    uneven = False
    for stage, lengths in zip(stages, levels(stages, shape)[:-1], strict=True):
        if stage.boundary == "circular" and uneven:
            return False
        if any(max(halo) >= n for halo, n in zip(stage.halo, lengths, strict=True) if max(halo)):
            return False
        uneven = uneven or any(n % step for n, step in zip(lengths, stage.stride, strict=True))
    return True


def measured_box(stages: Sequence[Footprint], box: Box) -> Box:
    """The measurements of a box that starts at multiples of the total stride."""
    strides = total_stride(stages, len(box))
    assert all(start % step == 0 for (start, _), step in zip(box, strides, strict=True)), (box, strides)
    return tuple((start // step, -(-stop // step)) for (start, stop), step in zip(box, strides, strict=True))


def passages(stages: Sequence[Footprint], shape: Sequence[int], box: Box) -> list[Passage]:
    """What each stage reads so that the last one gives the measurements of `box`, first stage first."""
    made: list[Passage] = []
    out = measured_box(stages, box)
    for stage, lengths in zip(reversed(stages), reversed(levels(stages, shape)[:-1]), strict=True):
        made.append(_passage(stage, lengths, out))
        out = made[-1].source
    return made[::-1]


def image_window(operators: Sequence[Sequence[Footprint]], shape: Sequence[int], box: Box) -> Box:
    """The pixels of the image around which all operators find what they read for their measurements of `box`.

    It sticks out of the image only where an operator is circular; empty for an empty box.
    """
    if not cells(box) or not operators:
        return empty_box(len(box))
    windows = [passages(stages, shape, box)[0].source if stages else box for stages in operators]
    return hull(windows)


def wraps(operators: Sequence[Sequence[Footprint]]) -> bool:
    """Whether any operator is circular."""
    return any(stage.boundary == "circular" for stages in operators for stage in stages)


def fidelity_plan(
    local: Sequence[Sequence[Footprint]], global_operators: int, shape: Sequence[int], owned: Sequence[Box]
) -> ExchangePlan:
    """The exchange of one data step: the halo of the local operators, and the image where a global one works.

    :param local: stages of every local operator.
    :param global_operators: how many there are; dealt round robin.
    """
    wanted: list[list[Box]] = []
    for rank, box in enumerate(owned):
        window = image_window(local, shape, box)
        image = [whole(shape)] if rank < global_operators else []
        # A window inside the gathered image is a part of it and is not sent twice.
        wanted.append(image if image and contains(image[0], window) else [window, *image])
    circular = (wraps(local),) * len(shape)
    return exchange_plan([[box] for box in owned], wanted, shape, circular)


def _passage(stage: Footprint, lengths: Sequence[int], out: Box) -> Passage:
    window: list[tuple[int, int]] = []
    for (start, stop), step, (low, high), length in zip(out, stage.stride, stage.halo, lengths, strict=True):
        # The last cell may be cut short by the border; a wrapped one is not.
        end = stop * step if stop > -(-length // step) else min(stop * step, length)
        window.append((start * step - low, end + high))
    if stage.boundary in ("circular", "none"):
        return Passage(tuple(window), tuple(window), tuple(window), out)
    ends = list(_completed(stage.boundary, window, lengths))
    return Passage(tuple(s for s, _ in ends), tuple(p for _, p in ends), tuple(window), out)


def _completed(
    boundary: Boundary, window: Sequence[tuple[int, int]], lengths: Sequence[int]
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Per axis the source inside the image and the source with its continuation."""
    for (start, stop), length in zip(window, lengths, strict=True):
        low, high = max(start, 0), min(stop, length)
        if boundary == "reflect":
            # The mirrored pixels must be there, also where the halo before a pixel is longer than the one after it.
            high = max(high, 1 - start) if start < 0 else high
            low = min(low, 2 * length - 1 - stop) if stop > length else low
        yield (low, high), (min(low, start), max(high, stop))
