"""The plug-and-play iteration and its unrolled network, on deepinv's algorithms, distributed in the layout `replicated`.

x_{k+1} = D_sigma(x_k - gamma grad f(x_k)) with f(x) = sum_i 1/2 ||A_i x - y_i||^2 (PGD), or deepinv's FISTA, DRS, ADMM, HQS
with the same f and D. One loop serves reconstruction (no gradient, metrics after every step) and training (K steps unrolled).
Cost of this layout: the whole image on every rank, one all_reduce of it per denoiser call and per data step
(`deepinv.distributed.distribute`); operators are dealt to ranks whole, tiles round robin.

Letters: x, z iterates of shape (B, C, ...), replicated; y a TensorList of O operators' measurements (B, C, ...), on every rank.
"""

from __future__ import annotations

from typing import Any

import torch
from deepinv.distributed import distribute
from deepinv.optim import ADMM, DRS, FISTA, HQS, PGD
from deepinv.optim.data_fidelity import L2
from deepinv.optim.prior import PnP
from deepinv.utils import TensorList

from dptrain.engine.context import RankContext
from dptrain.engine.measure import Meter
from dptrain.engine.metrics import SSIM_WINDOW
from dptrain.engine.problems import WholePhysics
from dptrain.engine.proximal import MOST_ITERATIONS, TOLERANCE
from dptrain.engine.similarity import BoxSimilarity
from dptrain.engine.tiled import GridStrategy, InnerDenoiser
from dptrain.engine.unrolled import Iterate, Unrolled
from dptrain.geometry.boxes import whole
from dptrain.geometry.tiles import TileGrid
from dptrain.spec.schema import Algorithm

ALGORITHMS = {"pgd": PGD, "fista": FISTA, "drs": DRS, "admm": ADMM, "hqs": HQS}


class SolvedL2(L2):  # type: ignore[misc]
    """deepinv's L2, its proximal step solved as far as in the layout sharded."""

    def prox(
        self, x: torch.Tensor, y: Any, physics: Any, *_: Any, gamma: float | torch.Tensor = 1.0, **__: Any
    ) -> torch.Tensor:
        """The proximal point of gamma f at x.

        By itself deepinv stops at a relative residual of 1e-4. Asked for more it stays some 1e-7 off, since it adds 1e-8 to every
        inner product that it divides by, and makes float32 of a gamma that is a Python float.
        """
        solved: torch.Tensor = physics.prox_l2(
            x,
            y,
            torch.as_tensor(gamma, dtype=x.dtype, device=x.device),
            max_iter=MOST_ITERATIONS,
            tol=TOLERANCE[x.dtype],
            eps=torch.finfo(x.dtype).tiny,
        )
        return solved


class PlugAndPlay(Unrolled):
    """One algorithm of deepinv's, the whole image on every rank."""

    holds_whole = True

    def __init__(
        self,
        algorithm: Algorithm,
        ctx: RankContext,
        physics: WholePhysics,
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
        :param physics: its operators are distributed here.
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
        keys = {"step_size": "stepsize", "sigma": "g_param"}
        learned = [keys[name] for name in trainable if name in keys]
        values = self.iterations if learned else 1
        optim = ALGORITHMS[algorithm.name](
            data_fidelity=SolvedL2(),
            prior=PnP(InnerDenoiser(network, bf16=bf16, compiled=compiled, stages=checkpoint == "stages")),
            stepsize=[step_size] * values,
            sigma_denoiser=[0.0 if sigma is None else sigma] * values,
            max_iter=self.iterations,
            unfold=True,
            trainable_params=learned,
        )
        self._similarity = BoxSimilarity(grid.shape, [whole(grid.shape)], 0)
        self.strategy = GridStrategy(grid, batch=1, channels=physics.channels)
        # The whole model in one dtype: deepinv makes trainable step sizes float32.
        self.optim = distribute(
            optim.to(dtype),
            ctx,
            type_object="module",
            dtype=dtype,
            tiling_strategy=self.strategy,
            max_batch_size=max_batch_size,
            checkpoint_batches="always" if checkpoint == "stages" else checkpoint,
        )
        self.physics = distribute(physics.physics, ctx, type_object="linear_physics", dtype=dtype)
        # deepinv's implicit backward of a proximal step does not know stacked measurements; without it the steps are unrolled.
        self.physics.implicit_backward_solver = False
        # deepinv made the trainable ones float32 before they became `dtype`.
        start = {"step_size": step_size, "sigma": 0.0 if sigma is None else sigma}
        for name, value in start.items():
            self._set_parameters_k(name, [value] * values)

    @property
    def network(self) -> torch.nn.Module:
        """The denoiser's network, without what wraps it."""
        network: torch.nn.Module = self.optim.prior[0].denoiser.processor.network
        return network

    @property
    def executed(self) -> set[int]:
        """Ids of the tiles this rank has denoised."""
        return self.strategy.executed

    @property
    def values_k(self) -> dict[str, list[Any]]:
        """gamma_k and sigma_k: `step_size` and `sigma`, one value for all steps or K; parameters where they are trained."""
        named = {"step_size": "stepsize", "sigma": "g_param"}
        return {name: list(self.optim.params_algo[key]) for name, key in named.items()}

    def load_parameters_k(self, values: dict[str, torch.Tensor]) -> None:
        """Set gamma_k and sigma_k from tensors of shape (1,) or (K,).

        :raises ValueError: another number of steps than the values were trained for.
        """
        for name, tensor in values.items():
            self._set_parameters_k(name, tensor.reshape(-1).tolist())

    def _set_parameters_k(self, name: str, numbers: list[float]) -> None:
        self.check_steps(name, numbers)
        key = {"step_size": "stepsize", "sigma": "g_param"}[name]
        current = self.optim.params_algo[key]
        if isinstance(current, torch.nn.ParameterList):
            with torch.no_grad():
                for parameter, number in zip(current, numbers * (len(current) // len(numbers)), strict=True):
                    parameter.fill_(number)
        else:
            self.optim.params_algo[key] = numbers
        self.optim.init_params_algo = self.optim.params_algo.copy()

    def measured(self, y: Any) -> Any:
        """y itself, as deepinv's list."""
        return TensorList(list(y))

    def back_projected(self, measured: Any) -> torch.Tensor:
        """A^T y / ||A||^2."""
        with torch.no_grad():
            x: torch.Tensor = self.physics.A_adjoint(measured) / self.norm_sq
        return x

    def initial(self, measured: Any) -> Iterate:
        """First iterate: A^T y / ||A||^2, or zeros of its shape."""
        x = self.back_projected(measured)
        if self.algorithm.init == "zeros":
            x = torch.zeros_like(x)
        return {"est": (x, x), "cost": None, "it": 0}

    def iterate(self, state: Iterate, k: int, measured: Any, sigma: torch.Tensor | None = None) -> Iterate:
        """Step k (from 0) of the algorithm; `sigma` of shape (B,) replaces sigma_k."""
        params = self.optim.update_params_fn(k)
        if sigma is not None:
            params["g_param"] = sigma
        optim = self.optim
        result: Iterate = optim.fixed_point.iterator(
            state, optim.update_data_fidelity_fn(k), optim.update_prior_fn(k), params, measured, self.physics
        )
        return result

    def elements(self, x: torch.Tensor) -> int:
        """Numbers in x."""
        return x.numel()

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """The value itself: every rank has summed over the whole image."""
        return value.detach()

    def ssim(self, x: torch.Tensor, truth: torch.Tensor) -> float | None:
        """Structural similarity, None where an axis is shorter than the window."""
        if min(x.shape[2:]) < SSIM_WINDOW:
            return None
        return float(self._similarity.sum(x, truth)) / x.numel()

    def sync_gradients(self) -> None:
        """Nothing: deepinv sums the gradients of the tiles in the backward pass."""

    def time_sections(self, meter: Meter) -> None:
        """deepinv's sections, timed where the algorithm calls them; one outside an iteration (A^T y) counts as other."""
        fidelity, prior = self.optim.data_fidelity[0], self.optim.prior[0]
        fidelity.grad = meter.timed("gradient", fidelity.grad)
        fidelity.prox = meter.timed("gradient", fidelity.prox)
        prior.prox = meter.timed("denoise", prior.prox)
