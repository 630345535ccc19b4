"""The data step on boxes: x -> sum of A_i^T (A_i x - y_i), every rank holding its own box of x.

Local operators run on the rank's box and a halo; one exchange brings the halo of all of them, one adds back what they give to
neighbours. Global operators are dealt to ranks whole: the image is gathered for the moment of the call on the ranks that have one.
A linear step's derivative is A^T A, itself again, so the step keeps nothing for the backward pass; A^T y is computed once.
Operators are summed, never averaged.

Letters: x is (B, C, *box): B images, C channels, this rank's box. y is a list of O tensors, one per operator: the measurements of
this rank's box (B, C, *measured), or for a global operator all of them on its rank and an empty tensor elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm
from typing import Any, cast

import torch
import torch.distributed as dist
from deepinv.physics import StackedLinearPhysics

from dptrain.engine.exchange import Exchange
from dptrain.engine.local_physics import LocalOperator, filter_banks, local_stages
from dptrain.engine.stages import LocalStage
from dptrain.geometry.boxes import Box, cells, empty_box, shape_of, slices, whole
from dptrain.geometry.footprints import fidelity_plan, levels, measured_box, total_stride


class DataFidelity:
    """A stack of linear operators on this rank's box: measurements, their adjoint and the gradient of 1/2 ||A x - y||^2."""

    def __init__(
        self,
        physics: Any,
        image_shape: Sequence[int],
        owned: Sequence[Box],
        rank: int,
        group: dist.ProcessGroup | None = None,
        on_sent: Callable[[int], None] | None = None,
    ) -> None:
        """
        :param physics: a deepinv linear operator or a stack of them; the same on every rank.
        :param image_shape: C, then pixels per spatial axis.
        :param owned: box of every rank, cut at multiples of `operators_stride`.
        :param rank: this rank within `group`.
        :param on_sent: called with the bytes of every exchange.
        """
        self._channels, shape = image_shape[0], image_shape[1:]
        operators = _operators(physics)
        stages = [local_stages(operator, shape) for operator in operators]
        local = {i: chain for i, chain in enumerate(stages) if chain is not None}
        elsewhere = [i for i, chain in enumerate(stages) if chain is None]
        box = owned[rank]
        self._count = len(operators)
        self._local = {i: LocalOperator(chain, shape, box) for i, chain in local.items() if cells(box)}
        banks, single = filter_banks({i: chain for i, chain in local.items() if cells(box)})
        self._steps = [*(LocalOperator([bank], shape, box) for bank in banks), *(self._local[i] for i in single)]
        self._whole = {i: operators[i] for i in elsewhere[rank :: len(owned)]}
        self.measured = {i: [_measured(chain, owner) for owner in owned] for i, chain in local.items()}
        """Per local operator, where the measurements of every rank lie."""
        self.measured_shapes = {
            i: levels([stage.footprint for stage in chain], shape)[-1] for i, chain in local.items()
        }
        """Per local operator, pixels per axis of its measurements of the whole image."""
        self._rank = rank
        self.is_local = not elsewhere
        footprints = [[stage.footprint for stage in chain] for chain in local.values()]
        self.plan = fidelity_plan(footprints, len(elsewhere), shape, owned)
        self._exchange = Exchange(self.plan, rank, group, on_sent, "physics")
        self._window = self._exchange.wanted[0]
        # One tensor serves both where the gathered image holds the window.
        self._image_at = len(self._exchange.wanted) - 1

    @property
    def bytes_sent(self) -> int:
        """By this rank, so far, forwards and backwards."""
        return self._exchange.bytes_sent

    def place(self, i: int) -> Box | None:
        """Which of operator i's measurements this rank holds; None: all of them."""
        if i in self._whole:
            return None
        return self.measured[i][self._rank] if i in self.measured else empty_box(len(self._window))

    def take(self, i: int, y: torch.Tensor) -> torch.Tensor:
        """What this rank holds of operator i's measurements of the whole image."""
        place = self.place(i)
        if place is None:
            return y
        return y[slices(place, whole(y.shape[2:]), lead=2)] if cells(place) else self._nothing(y)

    def A(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Measurements without noise, one tensor per operator."""
        windows = self._exchange.gather(x)
        return [self._measure(i, windows) for i in range(self._count)]

    def A_adjoint(self, y: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum of A_i^T y_i on this rank's box."""
        assert len(y) == self._count, (len(y), self._count)
        sums = self._zeros(y[0])
        for i, measured in enumerate(y):
            self._add_adjoint(i, measured, sums)
        (x,) = self._exchange.scatter_add(*sums)
        return x

    def A_adjoint_A(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of A_i^T A_i x; differentiable to any order, keeping nothing."""
        return cast(torch.Tensor, _SelfAdjoint.apply(self, x))

    def gradient(self, x: torch.Tensor, adjoint_y: torch.Tensor) -> torch.Tensor:
        """The sum of A_i^T (A_i x - y_i).

        :param adjoint_y: `A_adjoint(y)`, computed once.
        """
        return self.A_adjoint_A(x) - adjoint_y

    def normal(self, x: torch.Tensor) -> torch.Tensor:
        """`A_adjoint_A` without a graph: one gather and one scatter_add for all operators, one operator's tensors at a time."""
        windows = self._exchange.copy_out((x,))
        if len(self._steps) == 1 and not self._whole and self._steps[0].window == self._window:
            sums = [self._steps[0].normal(windows[0])]
        else:
            sums = self._zeros(x)
            for step in self._steps:
                back = step.normal(_part(windows[0], step.window, self._window))
                _part(sums[0], step.window, self._window).add_(back)
            for operator in self._whole.values():
                sums[self._image_at].add_(operator.A_adjoint(operator.A(windows[self._image_at])))
        del windows
        (made,) = self._exchange.add_back(sums)
        return made

    def _measure(self, i: int, windows: Sequence[torch.Tensor]) -> torch.Tensor:
        if i in self._local:
            operator = self._local[i]
            return operator.A(_part(windows[0], operator.window, self._window))
        if i in self._whole:
            return cast(torch.Tensor, self._whole[i].A(windows[self._image_at]))
        return self._nothing(windows[0])

    def _add_adjoint(self, i: int, y: torch.Tensor, sums: Sequence[torch.Tensor]) -> None:
        if i in self._local:
            operator = self._local[i]
            _part(sums[0], operator.window, self._window).add_(operator.A_adjoint(y))
        elif i in self._whole:
            sums[self._image_at].add_(self._whole[i].A_adjoint(y))

    def _nothing(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_empty((like.shape[0], self._channels, *(0,) * len(self._window)))

    def _zeros(self, like: torch.Tensor) -> list[torch.Tensor]:
        # Measurements may have other channels than the image, and be complex.
        shapes = [(like.shape[0], self._channels, *shape_of(box)) for box in self._exchange.wanted]
        return [like.new_zeros(shape, dtype=like.dtype.to_real()) for shape in shapes]


class _SelfAdjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fidelity: DataFidelity, x: torch.Tensor) -> torch.Tensor:
        ctx.fidelity = fidelity
        return fidelity.normal(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, _SelfAdjoint.apply(ctx.fidelity, gradient)


def operators_stride(physics: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Pixels per axis at whose multiples boxes are cut: the least common multiple over the local operators."""
    strides = [(1,) * len(shape)]
    for operator in _operators(physics):
        stages = local_stages(operator, shape)
        if stages is not None:
            strides.append(total_stride([stage.footprint for stage in stages], len(shape)))
    return tuple(lcm(*axis) for axis in zip(*strides, strict=True))


def _measured(chain: Sequence[LocalStage], box: Box) -> Box:
    return measured_box([stage.footprint for stage in chain], box) if cells(box) else empty_box(len(box))


def _operators(physics: Any) -> list[Any]:
    return list(physics.physics_list) if isinstance(physics, StackedLinearPhysics) else [physics]


def _part(tensor: torch.Tensor, box: Box, of: Box) -> torch.Tensor:
    return tensor if box == of else tensor[slices(box, of, lead=2)]
