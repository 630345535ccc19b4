"""The image as one rank sees it: which part of it, how numbers from anywhere come to that part, and the operators on it.

`RankPhysics` is what data, reconstruction and training ask; `WholePhysics` is the layout replicated, where the part is the whole
image. Letters: x is (B, C, *box) on this rank's box; y a list of O tensors, this rank's part of each operator's measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from deepinv.physics import StackedLinearPhysics
from torch import Tensor

from dptrain.geometry.boxes import Box, shape_of, whole

SLAB_BYTES = 32 * 2**20
"""Of an image on its way into a file: rows of all ranks, no more than about so many bytes at once."""

DOT_PIECE = 2**20
"""Numbers of an inner product at once."""


class Pixels(Protocol):
    """Numbers of one image or measurement, (C, ...), read where and when they are needed."""

    @property
    def in_parts(self) -> bool:
        """Whether a box is read without the rest; else one rank reads everything and gives the others their boxes."""
        ...

    @property
    def bits(self) -> int:
        """Bits per sample of the source: 8, 16 or 32."""
        ...

    def read(self, box: Box | None) -> Tensor:
        """The numbers of a box, or all of them; a tensor of its own on the CPU."""
        ...


class Measured(Pixels, Protocol):
    """Measurements whose shape is known before they are read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, ...) of all of them."""
        ...


class RankPhysics(Protocol):
    """The stacked operator and this rank's part of the image. Whatever returns a tensor is called by all ranks together."""

    channels: int
    """C of the image."""
    box: Box
    """This rank's part, in pixels of the image; empty where it has none."""
    first: bool
    """Whether this rank writes what there is once."""
    noise_models: list[torch.nn.Module]
    """One per operator."""

    def read(self, pixels: Pixels) -> Tensor:
        """(1, C, *box) of an image that lies somewhere."""
        ...

    def slabs(self, x: Tensor, multiple: int = 1) -> Iterator[tuple[int, Tensor | None]]:
        """The whole image of the ranks' boxes (1, C, *box) in slabs along its first axis: (start, (C, rows, ...)).

        The slab is None on ranks other than the first.

        :param multiple: of which every start is one.
        """
        ...

    def measure(self, x: Tensor) -> list[Tensor]:
        """Measurements of an image, without noise: this rank's part. Contiguous: what is every other pixel keeps none of the others."""
        ...

    def place(self, i: int) -> Box | None:
        """Where this rank's part lies in operator i's measurements, in their own pixels; None: it is all of them."""
        ...

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes (C, ...) of the operators' measurements of the whole image."""
        ...

    def change_whole(self, i: int, y: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """This rank's part of `change(all of operator i's measurements)`, for what cannot be done part by part."""
        ...

    def normal(self, x: Tensor) -> Tensor:
        """The sum of A_i^T A_i x."""
        ...

    def dot(self, a: Tensor, b: Tensor) -> float:
        """Inner product of two whole images, summed in float64."""
        ...

    def empty(self) -> Tensor:
        """A tensor (1, C, *box) on the device, in the precision of the run."""
        ...


class WholePhysics:
    """Every rank has the whole image and all operators."""

    def __init__(
        self,
        physics: StackedLinearPhysics,
        image_shape: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
        rank: int = 0,
    ) -> None:
        """
        :param image_shape: C, then pixels per spatial axis.
        """
        self.physics, self.device, self.dtype = physics, device, dtype
        self.channels, self.box = image_shape[0], whole(image_shape[1:])
        self.first = rank == 0
        self.noise_models = [operator.noise_model for operator in physics.physics_list]

    def read(self, pixels: Pixels) -> Tensor:
        """All of it."""
        return pixels.read(None)[None].to(self.device, self.dtype)

    def slabs(self, x: Tensor, multiple: int = 1) -> Iterator[tuple[int, Tensor | None]]:
        """Views of x."""
        for start, stop in slab_rows(x.shape[2], x[0].nbytes, 1, multiple):
            yield start, x[0, :, start:stop] if self.first else None

    def measure(self, x: Tensor) -> list[Tensor]:
        """A x."""
        with torch.no_grad():
            return [y.contiguous() for y in self.physics.A(x)]

    def place(self, i: int) -> Box | None:
        """None: all of them."""
        return None

    def shapes(self) -> list[tuple[int, ...]]:
        """Of A 0."""
        return [tuple(y.shape[1:]) for y in self.measure(self.empty().zero_())]

    def change_whole(self, i: int, y: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """`change(y)`."""
        return change(y)

    def normal(self, x: Tensor) -> Tensor:
        """A^T A x."""
        with torch.no_grad():
            back: Tensor = self.physics.A_adjoint(self.physics.A(x))
        return back

    def dot(self, a: Tensor, b: Tensor) -> float:
        """Of the images."""
        return float(dot(a, b))

    def empty(self) -> Tensor:
        """A whole image."""
        return torch.empty(1, self.channels, *shape_of(self.box), device=self.device, dtype=self.dtype)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product, a float64 scalar; in pieces, for in float64 both images and their product take six float32 images."""
    pieces = zip(torch.split(a.reshape(-1), DOT_PIECE), torch.split(b.reshape(-1), DOT_PIECE), strict=True)
    return sum(((x.double() * y.double()).sum() for x, y in pieces), a.new_zeros((), dtype=torch.float64))


def slab_rows(length: int, image_bytes: int, parts: int, multiple: int) -> list[tuple[int, int]]:
    """(start, stop) of the slabs of an image of `length` rows: of `SLAB_BYTES` at most, and of one part of `parts`."""
    limit = min(SLAB_BYTES, -(-image_bytes // parts))
    rows = max(1, limit * length // max(1, image_bytes) // multiple) * multiple
    return [(start, min(start + rows, length)) for start in range(0, length, rows)]
