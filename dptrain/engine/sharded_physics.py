"""The operators and the image of the layout sharded, as data, reconstruction and training see them on one rank.

Each rank reads or makes its own box; what can only be read whole is read on the first rank (of each replica) and sent box by
box. Files are written by the first rank from slabs of all boxes: one writer, so that any shared file system does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dptrain.engine.communication import gathered
from dptrain.engine.context import RankContext
from dptrain.engine.exchange import Exchange
from dptrain.engine.fidelity import DataFidelity, operators_stride
from dptrain.engine.problems.parts import Pixels, dot, slab_rows
from dptrain.geometry.boxes import Box, cells, shape_of, split_boxes, whole
from dptrain.geometry.messages import exchange_plan


class ShardedPhysics:
    """Every rank has its own box of the image, and its part of the operators (`problems.parts.RankPhysics`)."""

    def __init__(
        self,
        physics: Any,
        image_shape: Sequence[int],
        ctx: RankContext,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """
        :param physics: a deepinv StackedLinearPhysics, the same on every rank.
        :param image_shape: C, then pixels per spatial axis.
        """
        self.channels, self.shape = image_shape[0], tuple(image_shape[1:])
        self.ctx, self.device, self.dtype = ctx, device, dtype
        self.rank, self.group = ctx.mesh.spatial_rank, ctx.mesh.spatial_group
        self.owned = split_boxes(self.shape, ctx.mesh.spatial_size, operators_stride(physics, self.shape))
        self.box = self.owned[self.rank]
        self.first = self.rank == 0
        self.noise_models = [operator.noise_model for operator in physics.physics_list]
        self.fidelity = DataFidelity(physics, image_shape, self.owned, self.rank, self.group, on_sent=ctx.sent)

    def read(self, pixels: Pixels) -> Tensor:
        """(1, C, *box), read here or received from the first rank, which holds one box at a time."""
        if pixels.in_parts:
            return pixels.read(self.box)[None].to(self.device, self.dtype)
        mine = self._nothing()
        for rank, box in enumerate(self.owned):
            held = pixels.read(box)[None].to(self.device, self.dtype) if self.first else self._nothing()
            (part,) = self._exchange(_at(0, box, len(self.owned)), _at(rank, box, len(self.owned))).copy_out((held,))
            mine = part if rank == self.rank else mine
        return mine

    def slabs(self, x: Tensor, multiple: int = 1) -> Iterator[tuple[int, Tensor | None]]:
        """Of all boxes, on the first rank; none larger than one rank's share of the image."""
        image_bytes = self.channels * x.element_size() * cells(whole(self.shape))
        for start, stop in slab_rows(self.shape[0], image_bytes, len(self.owned), multiple):
            slab = ((start, stop), *whole(self.shape[1:]))
            exchange = self._exchange([[box] for box in self.owned], _at(0, slab, len(self.owned)))
            (rows,) = exchange.copy_out((x.detach(),))
            yield start, rows[0] if self.first else None

    def measure(self, x: Tensor) -> list[Tensor]:
        """Of this rank's box; outside the bytes of a step."""
        with torch.no_grad(), self.ctx.uncounted():
            return [y.contiguous() for y in self.fidelity.A(x)]

    def place(self, i: int) -> Box | None:
        """As in `DataFidelity`."""
        return self.fidelity.place(i)

    def shapes(self) -> list[tuple[int, ...]]:
        """Channels from the ranks that measure anything, pixels from the operators' footprints."""
        mine: dict[int, tuple[int, ...]] = {}
        for i, y in enumerate(self.measure(self.empty().zero_())):
            place = self.place(i)
            if place is None:
                mine[i] = tuple(y.shape[1:])
            elif cells(place):
                mine[i] = (y.shape[1], *self.fidelity.measured_shapes[i])
        every = gathered(mine, self.group) if len(self.owned) > 1 else [mine]
        known = {i: shape for shapes in every for i, shape in shapes.items()}
        return [known[i] for i in range(len(self.noise_models))]

    def change_whole(self, i: int, y: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Of a local operator: all its measurements are on the first rank for the moment of the call."""
        if i not in self.fidelity.measured:
            return change(y) if self.place(i) is None else y
        held, shape = self.fidelity.measured[i], self.fidelity.measured_shapes[i]
        plan = exchange_plan([[box] for box in held], _at(0, whole(shape), len(held)), shape)
        exchange = Exchange(plan, self.rank, self.group)
        (every,) = exchange.copy_out((y,))
        (part,) = exchange.add_back((change(every) if self.first else every,))
        return part

    def normal(self, x: Tensor) -> Tensor:
        """A^T A on boxes; outside the bytes of a step."""
        with torch.no_grad(), self.ctx.uncounted():
            return self.fidelity.normal(x)

    def dot(self, a: Tensor, b: Tensor) -> float:
        """Summed over boxes."""
        with self.ctx.uncounted():
            return float(self.ctx.summed(dot(a, b), within_replica=True))

    def empty(self) -> Tensor:
        """One box."""
        return torch.empty(1, self.channels, *shape_of(self.box), device=self.device, dtype=self.dtype)

    def _exchange(self, held: Sequence[Sequence[Box]], wanted: Sequence[Sequence[Box]]) -> Exchange:
        return Exchange(exchange_plan(held, wanted, self.shape), self.rank, self.group)

    def _nothing(self) -> Tensor:
        return torch.empty(1, self.channels, *(0,) * len(self.shape), device=self.device, dtype=self.dtype)


def _at(rank: int, box: Box, ranks: int) -> list[list[Box]]:
    """One box on one rank."""
    return [[box] if r == rank else [] for r in range(ranks)]
