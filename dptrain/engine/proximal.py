"""The proximal step of the data term on boxes: the minimiser of gamma/2 ||A x - y||^2 + 1/2 ||x - z||^2.

It solves (I + gamma A^T A) x = z + gamma A^T y by conjugate gradients (Hestenes and Stiefel 1952) from x = z, the solver that
deepinv's `LinearPhysics.prox_l2` uses, until the residual's norm is `TOLERANCE` of the right-hand side's. Every image of a batch
has its own step lengths and stops by itself, so an image's result does not depend on the others. Inner products are added up in
float64 and summed over the ranks, which therefore all see the same numbers and stop together.
Cost per iteration: one A^T A, and two sums over ranks of one number per image; four boxes of memory while it runs. At gamma =
0.99 / ||A||^2 it took 6 iterations in float32 and 14 in float64; in general they grow as sqrt(1 + gamma ||A||^2).

The derivative in z is the same solve, since the operator is its own adjoint: nothing is kept for it. Where gamma is trained,
x - z is kept: dx/dgamma = (I + gamma A^T A)^-1 (x - z) / gamma.

Letters: x, z, b, adjoint_y are (B, C, *box): B images, C channels, this rank's box.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.autograd.function import once_differentiable

from dptrain.errors import UsageError

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Norm of the residual relative to that of the right-hand side, in both layouts; deepinv's default is 1e-4. So tight that one
iteration more or less, as rounding decides, does not show."""
MOST_ITERATIONS = 1000
"""Enough for gamma ||A||^2 of about 5000."""


class Proximal:
    """z -> prox of gamma f for a linear operator, every rank on its own box."""

    def __init__(
        self, normal: Callable[[torch.Tensor], torch.Tensor], summed: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """
        :param normal: A^T A on this rank's box, without a graph; a collective.
        :param summed: the sum of a tensor over the ranks, without a graph.
        """
        self.normal, self.summed = normal, summed

    def __call__(self, z: torch.Tensor, adjoint_y: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        """The proximal point; differentiable once, gamma's gradient being this rank's share. A collective, also backwards.

        :param adjoint_y: A^T y.
        :param gamma: one number above 0.
        :raises UsageError: not solved after `MOST_ITERATIONS`.
        """
        return cast(torch.Tensor, _Proximal.apply(self, z, adjoint_y, gamma))

    def increment(self, z: torch.Tensor, adjoint_y: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        """x - z, without a graph."""
        residual = gamma * (adjoint_y - self.normal(z))
        return self.solve(residual, gamma, relative_to=z + gamma * adjoint_y)

    def solve(self, b: torch.Tensor, gamma: torch.Tensor, relative_to: torch.Tensor) -> torch.Tensor:
        """(I + gamma A^T A)^-1 b by conjugate gradients from zero, without a graph.

        :param relative_to: the residual is compared with the norm of this, image by image.
        :raises UsageError: not solved after `MOST_ITERATIONS`.
        """
        # Gradients may be so small that the square of one is nothing in float32: solved for a right-hand side of norm 1.
        norm = self._norm(relative_to)
        residual = b / norm
        # Zeros; but what is not finite counts as solved below, and must not come out as zero.
        x, direction = 0 * residual, residual.clone()
        squares, limit = self._product(residual, residual), TOLERANCE[b.dtype] ** 2
        for _ in range(MOST_ITERATIONS):
            left = squares > limit
            if not any_left(left):
                return x.mul_(norm)
            image = direction + gamma * self.normal(direction)
            curvature = self._product(direction, image)
            # An image that is done stands still.
            length = _per_image(torch.where(left, squares / curvature, 0), b)
            x.addcmul_(length, direction)
            residual.addcmul_(length, image, value=-1)
            del image  # or the next iteration holds it beside its own
            before, squares = squares, self._product(residual, residual)
            direction.mul_(_per_image(torch.where(left, squares / before, 0), b)).add_(residual)
        reached = float(squares.max().sqrt())
        raise UsageError(
            f"the proximal step with gamma {float(gamma):g} is not solved after {MOST_ITERATIONS} iterations of conjugate "
            f"gradients: its relative residual is {reached:.2g}, not yet {TOLERANCE[b.dtype]:g}\n"
            "    write: a smaller algorithm.step_size, or auto"
        )

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """<a, b> over the whole images: float64, one number per image."""
        return self.summed((a * b).sum(dim=tuple(range(1, a.ndim)), dtype=torch.float64))

    def _norm(self, a: torch.Tensor) -> torch.Tensor:
        """The norm of each whole image of a, 1 where there is nothing, of shape (B, 1, ...)."""
        own = torch.linalg.vector_norm(a, dim=tuple(range(1, a.ndim)), dtype=torch.float64)
        norm = self.summed(own.square()).sqrt()
        return _per_image(torch.where(norm == 0, 1, norm), a)


def any_left(left: torch.Tensor) -> bool:
    """Whether an image is not solved yet: the one place where the solver reads numbers on the host."""
    return bool(left.any())


class _Proximal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, proximal: Proximal, z: torch.Tensor, adjoint_y: torch.Tensor, gamma: torch.Tensor
    ) -> torch.Tensor:
        increment = proximal.increment(z, adjoint_y, gamma)
        ctx.proximal = proximal
        ctx.save_for_backward(gamma, *([increment] if ctx.needs_input_grad[3] else []))
        return z + increment

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gamma, *increment = ctx.saved_tensors
        solved = ctx.proximal.solve(gradient, gamma, relative_to=gradient)
        to_y = gamma * solved if ctx.needs_input_grad[2] else None
        to_gamma = (solved * increment[0]).sum() / gamma if increment else None
        return None, solved, to_y, to_gamma


def _per_image(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.to(like.dtype).view(-1, *(1,) * (like.ndim - 1))
