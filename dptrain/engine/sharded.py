"""The plug-and-play iteration and its unrolled network in the layout `sharded`: every rank iterates on its own box.

deepinv's algorithms (`algorithms.py`) on pieces that work on boxes: gradient, proximal step, denoiser. A^T y is computed once
and is all that stays of the measurements. Retained per unrolled step: boxes and their halos, no whole image.

Letters: x, z iterates (B, C, *box) of this rank's box; y a list of O tensors, its part of the operators' measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from dptrain.engine.algorithms import RULES, Pieces
from dptrain.engine.context import RankContext
from dptrain.engine.measure import Meter
from dptrain.engine.metrics import SSIM_WINDOW
from dptrain.engine.proximal import Proximal
from dptrain.engine.sharded_denoiser import ShardedDenoiser
from dptrain.engine.sharded_physics import ShardedPhysics
from dptrain.engine.similarity import BoxSimilarity
from dptrain.engine.tiled import InnerDenoiser
from dptrain.engine.unrolled import Iterate, Unrolled
from dptrain.geometry.tiles import TileGrid
from dptrain.spec.schema import Algorithm


class ShardedPlugAndPlay(Unrolled):
    """One algorithm on this rank's box of the image."""

    holds_whole = False

    def __init__(
        self,
        algorithm: Algorithm,
        ctx: RankContext,
        physics: ShardedPhysics,
        network: torch.nn.Module,
        grid: TileGrid,
        *,
        step_size: float,
        norm_sq: float,
        sigma: float | None,
        dtype: torch.dtype,
        max_batch_size: int,
        checkpoint: str,
        bf16: bool = False,
        compiled: bool = False,
        trainable: tuple[str, ...] = (),
    ) -> None:
        """
        :param physics: of this rank's box.
        :param network: denoiser called as network(x, sigma).
        :param step_size: gamma; with trainable step sizes, the start of every gamma_k.
        :param norm_sq: ||A||^2 of the stacked operator.
        :param sigma: noise level given to the denoiser; None: given per call.
        :param max_batch_size: tiles per denoiser call.
        :param checkpoint: deepinv's mode: auto, always, never; or stages.
        :param trainable: of denoiser, step_size, sigma; the others keep their values.
        """
        super().__init__(algorithm, ctx, norm_sq, dtype)
        network.requires_grad_("denoiser" in trainable)
        self._shape = grid.shape
        self.fidelity = physics.fidelity
        # Solvers of different images take different numbers of iterations.
        self.proximal = Proximal(self.fidelity.normal, partial(ctx.summed, within_replica=True))
        self.denoiser = ShardedDenoiser(
            InnerDenoiser(network, bf16=bf16, compiled=compiled, stages=checkpoint == "stages"),
            grid,
            physics.owned,
            ctx.mesh.spatial_rank,
            ctx.mesh.spatial_group,
            max_batch_size=max_batch_size,
            checkpoint=checkpoint,
            fill_batches=compiled,
            on_sent=ctx.sent,
        )
        steps = self.iterations if {"step_size", "sigma"} & set(trainable) else 1
        self.gamma_k = _scalars([step_size] * steps, dtype, ctx.device, "step_size" in trainable)
        self.sigma_k = _scalars([sigma or 0.0] * steps, dtype, ctx.device, "sigma" in trainable)
        self._executed: set[int] = set()
        self._meter: Meter | None = None
        self._similarity = BoxSimilarity(grid.shape, physics.owned, ctx.mesh.spatial_rank, ctx.mesh.spatial_group)

    @property
    def network(self) -> torch.nn.Module:
        """The denoiser's network, without what wraps it."""
        network = self.denoiser.processor.network
        assert isinstance(network, torch.nn.Module)
        return network

    @property
    def executed(self) -> set[int]:
        """Ids of the tiles this rank has denoised."""
        return self._executed

    @property
    def values_k(self) -> dict[str, list[Any]]:
        """gamma_k and sigma_k: `step_size` and `sigma`, one value for all steps or K; parameters where they are trained."""
        return {"step_size": list(self.gamma_k), "sigma": list(self.sigma_k)}

    def load_parameters_k(self, values: dict[str, torch.Tensor]) -> None:
        """Set gamma_k and sigma_k from tensors of shape (1,) or (K,).

        :raises ValueError: another number of steps than the values were trained for.
        """
        names = {"step_size": "gamma_k", "sigma": "sigma_k"}
        for name, tensor in values.items():
            numbers = tensor.reshape(-1).tolist()
            self.check_steps(name, numbers)
            current: torch.nn.ParameterList = getattr(self, names[name])
            if len(numbers) > len(current):
                # One value for all steps, hence not trained here: the optimiser does not know it.
                frozen = _scalars(numbers, self.dtype, self.ctx.device, trainable=False)
                setattr(self, names[name], frozen)
                continue
            with torch.no_grad():
                for parameter, number in zip(current, numbers * (len(current) // len(numbers)), strict=True):
                    parameter.fill_(number)

    def measured(self, y: Any) -> torch.Tensor:
        """A^T y on this rank's box."""
        with torch.no_grad():
            return self.fidelity.A_adjoint(y)

    def back_projected(self, measured: torch.Tensor) -> torch.Tensor:
        """A^T y / ||A||^2 on this rank's box."""
        return measured / self.norm_sq

    def initial(self, measured: torch.Tensor) -> Iterate:
        """First iterate: A^T y / ||A||^2, or zeros of its shape."""
        x = torch.zeros_like(measured) if self.algorithm.init == "zeros" else self.back_projected(measured)
        return {"est": (x,) * RULES[self.algorithm.name].carries, "it": 0}

    def iterate(self, state: Iterate, k: int, measured: torch.Tensor, sigma: torch.Tensor | None = None) -> Iterate:
        """Step k (from 0) of the algorithm; `sigma` of shape (B,) replaces sigma_k."""
        gamma: torch.Tensor = self.gamma_k[k if len(self.gamma_k) > 1 else 0]
        level = self.sigma_k[k if len(self.sigma_k) > 1 else 0] if sigma is None else sigma

        def descend(z: torch.Tensor) -> torch.Tensor:
            with self._section("gradient"):
                gradient = self.fidelity.gradient(z, measured)
            return z - gamma * gradient

        def prox(z: torch.Tensor) -> torch.Tensor:
            with self._section("gradient"):
                return self.proximal(z, measured, gamma)

        def denoise(u: torch.Tensor) -> torch.Tensor:
            with self._section("denoise"):
                x: torch.Tensor = self.denoiser(u, level)
            self._executed.update(self.denoiser.tile_ids)
            return x

        step = int(state["it"])
        pieces = Pieces(descend=descend, prox=prox, denoise=denoise)
        return {"est": RULES[self.algorithm.name].step(state["est"], step, pieces), "it": step + 1}

    def elements(self, x: torch.Tensor) -> int:
        """Numbers in the whole images of which x is this rank's box."""
        return x.shape[0] * x.shape[1] * math.prod(self._shape)

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all boxes of all replicas' images, without a graph."""
        return self.ctx.summed(value)

    def ssim(self, x: torch.Tensor, truth: torch.Tensor) -> float | None:
        """Structural similarity of the whole images, None where an axis is shorter than the window."""
        if min(self._shape) < SSIM_WINDOW:
            return None
        with self.ctx.uncounted():
            total = self.sum(self._similarity.sum(x, truth))
        return float(total) / self.elements(x)

    def sync_gradients(self) -> None:
        """Sum the gradients of all trainable parameters over boxes and average them over replicas, in one message."""
        parameters = list(self.trained.values())
        if self.ctx.world_size == 1 or not parameters:
            return
        flat = torch.cat([_gradient(p).reshape(-1) for p in parameters])
        total = self.ctx.summed(flat).div_(self.ctx.mesh.replicas)
        parts = total.split_with_sizes([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            if parameter.grad is None:
                parameter.grad = part.view_as(parameter).clone()
            else:
                parameter.grad.copy_(part.view_as(parameter))

    def time_sections(self, meter: Meter) -> None:
        """From now on time the sections `gradient` and `denoise`."""
        self._meter = meter

    def _section(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self._meter is None else self._meter.section(name)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    # A rank without tiles has none.
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _scalars(numbers: list[float], dtype: torch.dtype, device: torch.device, trainable: bool) -> torch.nn.ParameterList:
    def made() -> Iterator[torch.nn.Parameter]:
        for number in numbers:
            yield torch.nn.Parameter(torch.tensor(number, dtype=dtype, device=device), requires_grad=trainable)

    return torch.nn.ParameterList(made())
