"""What the loops of reconstruction and training see of an algorithm, whatever the layout of its images.

x_{k+1} = D_sigma(x_k - gamma grad f(x_k)) or a relative of it. Images, measurements and metrics of a rank are its part: all of
them in the layout replicated, those of its box in the layout sharded.

Letters: x an iterate (B, C, ...), the rank's part of it; y the rank's part of O operators' measurements, a list of tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dptrain.engine.algorithms import RULES
from dptrain.engine.communication import all_reduce
from dptrain.engine.context import RankContext
from dptrain.engine.measure import Meter
from dptrain.spec.schema import Algorithm

Iterate = dict[str, Any]
"""State of an algorithm: `est`, a tuple (x, ...) of which x is the image, and what else the algorithm carries."""


class Unrolled(torch.nn.Module, ABC):
    """One algorithm with its denoiser, physics and step sizes, ready to iterate."""

    holds_whole: bool
    """Whether the rank's part is the whole image."""

    def __init__(self, algorithm: Algorithm, ctx: RankContext, norm_sq: float, dtype: torch.dtype) -> None:
        """
        :param norm_sq: ||A||^2 of the stacked operator.
        """
        super().__init__()
        self.algorithm, self.ctx, self.norm_sq, self.dtype = algorithm, ctx, norm_sq, dtype
        self.iterations = algorithm.iterations

    @property
    @abstractmethod
    def network(self) -> torch.nn.Module:
        """The denoiser's network, without what wraps it."""

    @property
    @abstractmethod
    def executed(self) -> set[int]:
        """Ids of the tiles this rank has denoised."""

    @property
    @abstractmethod
    def values_k(self) -> dict[str, list[Any]]:
        """gamma_k and sigma_k: `step_size` and `sigma`, one value for all steps or K; parameters where they are trained."""

    @property
    def parameters_k(self) -> dict[str, list[torch.Tensor]]:
        """gamma_k and sigma_k as tensors: `step_size` and `sigma`, one value for all steps or K values."""
        return {
            name: [torch.as_tensor(v, dtype=self.dtype).detach() for v in values]
            for name, values in self.values_k.items()
        }

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """What an optimiser changes: `denoiser.<name>`, `step_size.<k>`, `sigma.<k>`, the same and in this order in every layout."""
        named: dict[str, Any] = {f"denoiser.{name}": value for name, value in self.network.named_parameters()}
        named |= {f"{name}.{k}": value for name, values in self.values_k.items() for k, value in enumerate(values)}
        return {name: p for name, p in named.items() if isinstance(p, torch.nn.Parameter) and p.requires_grad}

    @abstractmethod
    def load_parameters_k(self, values: dict[str, torch.Tensor]) -> None:
        """Set gamma_k and sigma_k from tensors of shape (1,) or (K,).

        :raises ValueError: another number of steps than the values were trained for.
        """

    @abstractmethod
    def measured(self, y: Any) -> Any:
        """What the iteration needs of y; a collective."""

    @abstractmethod
    def back_projected(self, measured: Any) -> torch.Tensor:
        """A^T y / ||A||^2, of the size of the image; a collective."""

    @abstractmethod
    def initial(self, measured: Any) -> Iterate:
        """First iterate: A^T y / ||A||^2, or zeros of its shape; a collective."""

    @abstractmethod
    def iterate(self, state: Iterate, k: int, measured: Any, sigma: torch.Tensor | None = None) -> Iterate:
        """Step k (from 0) of the algorithm; `sigma` of shape (B,) replaces sigma_k. A collective."""

    def carried(self, state: Iterate) -> dict[str, torch.Tensor]:
        """What the next step reads of a state, by name, the same in every layout; deepinv keeps more."""
        return {f"est{i}": x for i, x in enumerate(state["est"][: RULES[self.algorithm.name].carries])}

    def state_of(self, carried: dict[str, torch.Tensor], k: int) -> Iterate:
        """The state after k steps of what `carried` gave."""
        est = tuple(carried[f"est{i}"] for i in range(RULES[self.algorithm.name].carries))
        return {"est": est, "cost": None, "it": k}

    @abstractmethod
    def elements(self, x: torch.Tensor) -> int:
        """Numbers in the whole images of which x is this rank's part."""

    @abstractmethod
    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """A value that was summed over the ranks' parts, summed over the whole images of all replicas, without a graph.

        A collective.
        """

    def largest(self, number: float) -> float:
        """The largest of the ranks' numbers; a collective."""
        value = torch.tensor(number, dtype=torch.float64, device=self.ctx.device)
        if self.ctx.use_dist and self.ctx.world_size > 1:
            all_reduce(value, dist.ReduceOp.MAX)
        return float(value)

    @abstractmethod
    def ssim(self, x: torch.Tensor, truth: torch.Tensor) -> float | None:
        """Structural similarity of the whole images of which x and truth are this rank's part, None where an axis is shorter than
        the window; a collective.
        """

    @abstractmethod
    def sync_gradients(self) -> None:
        """After the backward pass of a loss over the ranks' parts: every `.grad` is that of the whole loss, mean over replicas.

        A collective.
        """

    @abstractmethod
    def time_sections(self, meter: Meter) -> None:
        """From now on time the sections `gradient` and `denoise`."""

    def forward(
        self,
        measured: Any,
        sigma: torch.Tensor | None = None,
        after_step: Callable[[int, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """All K steps from the initial iterate; returns x_K of shape (B, C, ...)."""
        state = self.initial(measured)
        for k in range(self.iterations):
            state = self.iterate(state, k, measured, sigma)
            if after_step is not None:
                after_step(k, state["est"][0])
        x: torch.Tensor = state["est"][0]
        return x

    def check_steps(self, name: str, numbers: list[float]) -> None:
        """:raises ValueError: where `numbers` were trained for another number of steps."""
        if len(numbers) not in (1, self.iterations):
            raise ValueError(
                f"{name} was trained for {len(numbers)} unrolled steps, algorithm.iterations is {self.iterations}"
            )
