"""The pieces of the sharded layout together: K unrolled steps on boxes give the loss and the gradients of one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dptrain.engine.context import RankEnvironment
from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.fidelity import DataFidelity, operators_stride
from dptrain.engine.problems import build_physics
from dptrain.engine.sharded_denoiser import ShardedDenoiser
from dptrain.engine.tiled import InnerDenoiser
from dptrain.geometry.boxes import slices, split_boxes, whole
from dptrain.geometry.tiles import tile_grid
from dptrain.spec.schema import Deblur, Inpaint, Spec, Tiling
from tests.engine.helpers import SMALL, algorithm_of, context, sample_of, single, truth_of
from tests.ranks import RankPool

STEP_SIZE = 0.8
SIGMA = 0.05
Weights = dict[str, torch.Tensor]


def on_boxes(
    env: RankEnvironment, spec: Spec, checkpoint: str, y: list[torch.Tensor], truth: torch.Tensor
) -> tuple[float, Weights, list[torch.Tensor]]:
    """(loss, gradients of the weights, gradients of gamma_k and sigma_k), each this rank's share."""
    shape = spec.problem.image_size
    physics = build_physics(spec, torch.device("cpu"), torch.float64)
    owned = split_boxes(shape, env.world_size, operators_stride(physics, shape))
    fidelity = DataFidelity(physics, (spec.problem.channels, *shape), owned, env.rank)
    network = build_denoiser(spec, torch.device("cpu"), torch.float64)
    denoiser = ShardedDenoiser(
        InnerDenoiser(network), tile_grid(shape, spec.tiling), owned, env.rank, max_batch_size=2, checkpoint=checkpoint
    )
    steps = range(spec.algorithm.iterations)
    gammas, sigmas = (
        [torch.full((), value, dtype=torch.float64, requires_grad=True) for _ in steps] for value in (STEP_SIZE, SIGMA)
    )
    adjoint_y = fidelity.A_adjoint([fidelity.take(i, part) for i, part in enumerate(y)])
    x = adjoint_y
    for gamma, sigma in zip(gammas, sigmas, strict=True):
        x = denoiser(x - gamma * fidelity.gradient(x, adjoint_y), sigma)
    here = slices(owned[env.rank], whole(shape), lead=2)
    loss = (x - truth[here]).square().sum() / truth.numel()
    loss.backward()  # type: ignore[no-untyped-call]
    weights = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in network.named_parameters()}
    scalars = [torch.zeros(()) if p.grad is None else p.grad for p in (*gammas, *sigmas)]
    return float(loss.detach()), weights, scalars


def on_one_process(spec: Spec) -> tuple[float, Weights, list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """The same by deepinv: (loss, gradients, ..., measurements, truth)."""
    ctx = context(single())
    algorithm, physics = algorithm_of(spec, ctx, trainable=("denoiser", "step_size", "sigma"))
    sample = sample_of(spec, physics)
    algorithm.norm_sq = 1.0
    with torch.no_grad():
        for name, value in (("stepsize", STEP_SIZE), ("g_param", SIGMA)):
            for parameter in algorithm.optim.params_algo[name]:
                parameter.fill_(value)
    loss = torch.nn.functional.mse_loss(algorithm(sample.measurements), truth_of(sample))
    loss.backward()  # type: ignore[no-untyped-call]
    weights = {name: p.grad for name, p in algorithm.network.named_parameters() if p.grad is not None}
    scalars = [p.grad for name in ("stepsize", "g_param") for p in algorithm.optim.params_algo[name]]
    return float(loss.detach()), weights, scalars, list(sample.measurements), truth_of(sample)


@pytest.mark.parametrize("world_size", [1, 2, 4, 6])
@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_loss_and_gradients_are_those_of_one_process(ranks: RankPool, world_size: int, checkpoint: str) -> None:
    check(ranks, SMALL, world_size, checkpoint)


@pytest.mark.parametrize("physics", [Deblur(), Inpaint()])
def test_other_problems(ranks: RankPool, physics: Deblur | Inpaint) -> None:
    spec = replace(SMALL, problem=replace(SMALL.problem, physics=physics))
    check(ranks, spec, 3, "auto")


def test_more_ranks_than_tiles(ranks: RankPool) -> None:
    check(ranks, replace(SMALL, tiling=Tiling(patch=36, halo=4)), 5, "auto")


def check(ranks: RankPool, spec: Spec, world_size: int, checkpoint: str) -> None:
    loss, weights, scalars, y, truth = on_one_process(spec)
    shares = ranks.run(world_size, on_boxes, spec, checkpoint, y, truth)
    assert sum(share[0] for share in shares) == pytest.approx(loss, rel=1e-12)
    for name, expected in weights.items():
        got = torch.stack([share[1][name] for share in shares]).sum(0)
        assert (got - expected).norm() <= 1e-10 * expected.norm(), name
    for k, expected in enumerate(scalars):
        got = torch.stack([share[2][k] for share in shares]).sum(0)
        assert (got - expected).abs() <= 1e-10 * expected.abs().max(), k
