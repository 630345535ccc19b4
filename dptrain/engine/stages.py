"""The steps of local operators, each in valid mode on a window: filters, decimation, masks; and what a user's own must offer.

Letters: tensors are (B, C, *window): B images, C channels, then the spatial axes of a window. O filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from deepinv.physics import functional as dF

from dptrain.geometry.boxes import Box, shape_of
from dptrain.geometry.footprints import Boundary, Footprint


class LocalStage:
    """One linear step of a local operator, in valid mode: its window in, its output out, no boundary of its own."""

    def __init__(self, footprint: Footprint) -> None:
        """
        :param footprint: what an output pixel reads.
        """
        self.footprint = footprint

    def at(self, window: Box, out: Box) -> LocalStage:
        """The stage for one place: what depends on the position is cut here, once. By default the stage itself.

        :param window: the input, in pixels of the stage's input; beyond the image where it wraps around.
        :param out: the output, in pixels of the stage's output.
        """
        return self

    def A(self, window: torch.Tensor) -> torch.Tensor:
        """Output (B, C, *out) of a window (B, C, *window)."""
        raise NotImplementedError

    def A_adjoint(self, out: torch.Tensor) -> torch.Tensor:
        """The exact transpose of `A`."""
        raise NotImplementedError


class Convolution(LocalStage):
    """deepinv's convolution with a small filter, by its own functions."""

    def __init__(
        self,
        filter: torch.Tensor,
        boundary: Boundary,
        convolve: Callable[..., torch.Tensor],
        transpose: Callable[..., torch.Tensor],
    ) -> None:
        """
        :param filter: (1 or B, 1 or C, *kernel).
        :param convolve: deepinv's function of (x, filter, padding); `transpose` its adjoint.
        """
        sides = filter.shape[2:]
        super().__init__(Footprint(halo=_kernel_halo(sides), stride=(1,) * len(sides), boundary=boundary))
        self.filter, self._convolve, self._transpose = filter, convolve, transpose
        # Not by Fourier transforms, and one 2-D filter for all images and channels.
        self.is_direct = convolve is dF.conv2d and tuple(filter.shape[:2]) == (1, 1)

    def A(self, window: torch.Tensor) -> torch.Tensor:
        return self._convolve(window, self.filter, padding="valid")

    def A_adjoint(self, out: torch.Tensor) -> torch.Tensor:
        return self._transpose(out, self.filter, padding="valid")


class Decimation(LocalStage):
    """Every n-th pixel per axis."""

    def __init__(self, factor: int, axes: int) -> None:
        super().__init__(Footprint(halo=((0, 0),) * axes, stride=(factor,) * axes, boundary="none"))
        self._kept = (slice(None), slice(None), *(slice(None, None, factor),) * axes)
        self._shape: tuple[int, ...] = ()

    def at(self, window: Box, out: Box) -> Decimation:
        placed = Decimation(self.footprint.stride[0], len(window))
        placed._shape = shape_of(window)
        return placed

    def A(self, window: torch.Tensor) -> torch.Tensor:
        return window[self._kept]

    def A_adjoint(self, out: torch.Tensor) -> torch.Tensor:
        made = out.new_zeros((*out.shape[:2], *self._shape))
        made[self._kept] = out
        return made


class FilterBank(LocalStage):
    """Small 2-D filters, each followed by decimation, in one strided convolution that computes only what is kept.

    Measured on a CPU: a blur of 5 x 5 and a decimation by 2 take a quarter of the time this way, with four filters an eighth.
    """

    def __init__(self, filters: torch.Tensor, boundary: Boundary, factor: int) -> None:
        """
        :param filters: (O, 1, *kernel), the same for every channel; the output is (B, C O, *out), a channel's O together.
        """
        sides = filters.shape[2:]
        super().__init__(Footprint(halo=_kernel_halo(sides), stride=(factor, factor), boundary=boundary))
        self.filters, self._factor = filters, factor
        self._weights = filters.flip(2, 3).contiguous()
        self._beyond: tuple[int, ...] = ()

    @property
    def kind(self) -> tuple[torch.Size, Boundary, int]:
        """What banks that can be joined have in common."""
        return self.filters.shape[2:], self.footprint.boundary, self._factor

    def at(self, window: Box, out: Box) -> FilterBank:
        placed = FilterBank(self.filters, self.footprint.boundary, self._factor)
        sides = zip(shape_of(window), shape_of(out), self.filters.shape[2:], strict=True)
        # Pixels of the window after the last one that is read.
        placed._beyond = tuple(length - (n - 1) * self._factor - side for length, n, side in sides)
        return placed

    def A(self, window: torch.Tensor) -> torch.Tensor:
        images, channels = window.shape[:2]
        single = window.reshape(images * channels, 1, *window.shape[2:])
        out = torch.nn.functional.conv2d(single, self._weights, stride=self._factor)
        return out.view(images, channels * len(self.filters), *out.shape[2:])

    def A_adjoint(self, out: torch.Tensor) -> torch.Tensor:
        count = len(self.filters)
        single = out.reshape(-1, count, *out.shape[2:])
        window = torch.nn.functional.conv_transpose2d(
            single, self._weights, stride=self._factor, output_padding=self._beyond
        )
        return window.view(out.shape[0], out.shape[1] // count, *window.shape[2:])


class Mask(LocalStage):
    """Multiplication by a mask, or by a number."""

    def __init__(self, mask: torch.Tensor, shape: Sequence[int]) -> None:
        """
        :param mask: broadcast to (B, C, *shape).
        """
        axes = len(shape)
        super().__init__(Footprint(halo=((0, 0),) * axes, stride=(1,) * axes, boundary="none"))
        self.mask, self._shape = mask, tuple(shape)

    def at(self, window: Box, out: Box) -> Mask:
        mask = self.mask.reshape((1,) * (len(window) + 2 - self.mask.ndim) + tuple(self.mask.shape))
        for axis, ((start, stop), length) in enumerate(zip(out, self._shape, strict=True), 2):
            if mask.shape[axis] > 1:
                mask = mask.index_select(axis, torch.arange(start, stop, device=mask.device) % length)
        return Mask(mask, self._shape)

    def A(self, window: torch.Tensor) -> torch.Tensor:
        return self.mask * window

    def A_adjoint(self, out: torch.Tensor) -> torch.Tensor:
        return self.mask * out


def _kernel_halo(sides: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """deepinv's centre of a filter: even ones read one pixel more after than before."""
    return tuple((side // 2 - (side - 1) % 2, side // 2) for side in sides)
