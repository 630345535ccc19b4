"""Operators that run on a box: blur, decimation, masks, the identity and their compositions, as chains of stages in valid mode.

deepinv's operators are recognised by their type. A user's own operator says how it runs on boxes by a method
`local_stages(shape) -> list[LocalStage]`, first stage first; an operator without one is global, which costs a gather of the image.

Letters: tensors are (B, C, *box): B images, C channels, then the spatial axes of a box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from deepinv.physics import Blur, Demosaicing, Denoising, Downsampling, Inpainting
from deepinv.physics import functional as dF
from deepinv.physics.forward import ComposedLinearPhysics

from dptrain.engine.stages import Convolution, Decimation, FilterBank, LocalStage, Mask
from dptrain.errors import UsageError
from dptrain.geometry.boxes import Box, shape_of, slices
from dptrain.geometry.footprints import Boundary, Passage, measured_box, passages, runs_locally

Pads = tuple[tuple[int, int], ...]
"""Pixels before and after, per spatial axis."""


def local_stages(physics: Any, shape: Sequence[int]) -> list[LocalStage] | None:
    """How an operator runs on boxes of an image of `shape`; None for a global one."""
    stages = _stages(physics, tuple(shape))
    if stages is not None:
        stages = _fused(stages)
    if stages is None or not runs_locally([stage.footprint for stage in stages], shape):
        return None
    return stages


def filter_banks(chains: Mapping[int, Sequence[LocalStage]]) -> tuple[list[FilterBank], list[int]]:
    """For the sum of A_i^T A_i: operators that are one filter bank each, of one kind, joined into one.

    :returns: the banks, and the numbers of the operators that are in none.
    """
    banks: dict[tuple[torch.Size, Boundary, int], list[torch.Tensor]] = {}
    single = []
    for i, chain in chains.items():
        if len(chain) == 1 and isinstance(chain[0], FilterBank):
            banks.setdefault(chain[0].kind, []).append(chain[0].filters)
        else:
            single.append(i)
    joined = [FilterBank(torch.cat(filters), boundary, factor) for (_, boundary, factor), filters in banks.items()]
    return joined, single


def _fused(stages: Sequence[LocalStage]) -> list[LocalStage]:
    """A blur of all channels alike and the decimation after it as one stage."""
    made: list[LocalStage] = []
    for stage in stages:
        last = made[-1] if made else None
        if isinstance(stage, Decimation) and isinstance(last, Convolution) and last.is_direct:
            made[-1] = FilterBank(last.filter, last.footprint.boundary, stage.footprint.stride[0])
        else:
            made.append(stage)
    return made


def _stages(physics: Any, shape: tuple[int, ...]) -> list[LocalStage] | None:
    if hasattr(physics, "local_stages"):
        return list(physics.local_stages(shape))
    # The exact types: a subclass may do anything.
    kind = type(physics)
    if kind is ComposedLinearPhysics:
        return _chain(physics.physics_list, shape)
    if kind is Blur and _is_filter(physics.filter, shape) and physics.padding != "valid":
        axes = len(shape)
        boundary = _boundary(physics.padding)
        return [Convolution(physics.filter, boundary, physics.conv[axes], physics.conv_transpose[axes])]
    if kind is Downsampling and len(shape) == 2:
        decimation = Decimation(physics.factor, 2)
        if physics.filter is None:
            return [decimation]
        if physics.padding != "valid":
            return [Convolution(physics.filter, _boundary(physics.padding), dF.conv2d, dF.conv_transpose2d), decimation]
    if kind in (Inpainting, Demosaicing, Denoising) and physics.mask is not None and not physics.mask.is_complex():
        return [Mask(physics.mask, shape)]
    return None


def _chain(parts: Sequence[Any], shape: tuple[int, ...]) -> list[LocalStage] | None:
    made: list[LocalStage] = []
    for part in parts:
        stages = _stages(part, shape)
        if stages is None:
            return None
        made += stages
        for stage in stages:
            shape = tuple(-(-n // step) for n, step in zip(shape, stage.footprint.stride, strict=True))
    return made


def _is_filter(filter: Any, shape: Sequence[int]) -> bool:
    return isinstance(filter, torch.Tensor) and filter.ndim == len(shape) + 2


def _boundary(padding: str) -> Boundary:
    named: dict[str, Boundary] = {
        "circular": "circular",
        "reflect": "reflect",
        "replicate": "replicate",
        "constant": "constant",
        "zeros": "constant",
    }
    return named[padding.lower()]


class LocalOperator:
    """One local operator on one rank's box, between its window of the image and its measurements of the box."""

    def __init__(self, stages: Sequence[LocalStage], shape: Sequence[int], box: Box) -> None:
        """
        :param stages: first one first.
        :param shape: of the image.
        :param box: this rank's own, not empty, cut at the stride.
        """
        footprints = [stage.footprint for stage in stages]
        self.measured = measured_box(footprints, box)
        self._passages = passages(footprints, shape, box)
        self._stages = [stage.at(p.window, p.out) for stage, p in zip(stages, self._passages, strict=True)]
        self.window = self._passages[0].source if stages else box

    def A(self, window: torch.Tensor) -> torch.Tensor:
        """Measurements (B, C, *measured) of a window (B, C, *window) of the image.

        :raises UsageError: where a stage gives another shape than its footprint says.
        """
        for stage, passage in zip(self._stages, self._passages, strict=True):
            window = stage.A(_complete(window, passage, stage.footprint.boundary))
            _check(stage, "A", window, passage.out)
        return window

    def A_adjoint(self, y: torch.Tensor) -> torch.Tensor:
        """The exact transpose: a window, to be added to the image.

        :raises UsageError: as `A`.
        """
        for stage, passage in zip(reversed(self._stages), reversed(self._passages), strict=True):
            y = stage.A_adjoint(y)
            _check(stage, "A_adjoint", y, passage.window)
            y = _fold(y, passage, stage.footprint.boundary)
        return y

    def normal(self, window: torch.Tensor) -> torch.Tensor:
        """A^T A of a window."""
        return self.A_adjoint(self.A(window))


def _check(stage: LocalStage, method: str, found: torch.Tensor, expected: Box) -> None:
    if tuple(found.shape[2:]) != shape_of(expected):
        raise UsageError(
            f"local_stages: {type(stage).__name__}.{method} gives pixels {tuple(found.shape[2:])}, and its footprint "
            f"{stage.footprint} says {shape_of(expected)}\n"
            "    write: a footprint whose halo and stride are what one output pixel reads, and A in valid mode"
        )


def _complete(x: torch.Tensor, passage: Passage, boundary: Boundary) -> torch.Tensor:
    """The window of a stage, from its source: continued beyond the image's borders."""
    if passage.padded != passage.source:
        flat = [width for pair in reversed(_pads(passage)) for width in pair]
        x = torch.nn.functional.pad(x, flat, mode=boundary)
    return x if passage.window == passage.padded else x[slices(passage.window, passage.padded, lead=2)]


def _fold(g: torch.Tensor, passage: Passage, boundary: Boundary) -> torch.Tensor:
    """The transpose of `_complete`: what lies beyond the borders is added to the pixels it was copied from."""
    if passage.window != passage.padded:
        whole = g.new_zeros((*g.shape[:2], *shape_of(passage.padded)))
        whole[slices(passage.window, passage.padded, lead=2)] = g
        g = whole
    for axis, (low, high) in enumerate(_pads(passage), 2):
        if low or high:
            g = _fold_axis(g, axis, low, high, boundary)
    return g


def _fold_axis(g: torch.Tensor, axis: int, low: int, high: int, boundary: Boundary) -> torch.Tensor:
    length = g.shape[axis] - low - high
    core = g.narrow(axis, low, length)
    if boundary == "constant":
        return core
    core = core.clone()
    before, after = g.narrow(axis, 0, low), g.narrow(axis, low + length, high)
    if boundary == "reflect":
        core.narrow(axis, 1, low).add_(before.flip(axis))
        core.narrow(axis, length - 1 - high, high).add_(after.flip(axis))
    else:
        assert boundary == "replicate", boundary
        core.narrow(axis, 0, 1).add_(before.sum(axis, keepdim=True))
        core.narrow(axis, length - 1, 1).add_(after.sum(axis, keepdim=True))
    return core


def _pads(passage: Passage) -> Pads:
    pairs = zip(passage.source, passage.padded, strict=True)
    return tuple((start - p_start, p_stop - stop) for (start, stop), (p_start, p_stop) in pairs)
