"""Layout replicated on real gloo ranks: the answer and the gradient do not depend on how many there are."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from dptrain.engine.context import RankEnvironment
from dptrain.engine.metrics import psnr_db
from dptrain.engine.tiled import GridStrategy
from dptrain.geometry.tiles import TileGrid
from dptrain.spec.schema import (
    Algorithm,
    Deblur,
    Denoise,
    Denoiser,
    Inpaint,
    MultiframeSuperres,
    Resources,
    Spec,
    Tiling,
)
from tests.engine.helpers import (
    SMALL,
    algorithm_of,
    context,
    first_gradient,
    reconstruct,
    sample_of,
    single,
    truth_of,
    with_tiling,
)
from tests.ranks import RankPool

FLOAT32 = Resources(precision="float32", layout="replicated")


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_reconstruction_equals_one_rank(ranks: RankPool, world_size: int) -> None:
    expected, every_tile, nothing = reconstruct(single(), SMALL)
    results = ranks.run(world_size, reconstruct, SMALL)
    for x, _, sent in results:
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-12)
        assert sent > 0
    tiles = [ids for _, ids, _ in results]
    assert sorted(itertools.chain(*tiles)) == every_tile == list(range(9))
    assert nothing == 0


@pytest.mark.parametrize("world_size", [2, 3])
def test_first_gradient_equals_one_rank(ranks: RankPool, world_size: int) -> None:
    loss, expected = first_gradient(single(), SMALL)
    for other_loss, gradients in ranks.run(world_size, first_gradient, SMALL):
        assert other_loss == pytest.approx(loss, rel=1e-12)
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            error = (gradient - expected[name]).norm() / expected[name].norm()
            assert error < 1e-10, name


@pytest.mark.parametrize("physics", [Deblur(), Denoise(), Inpaint()])
def test_more_ranks_than_operators(ranks: RankPool, physics: Deblur | Denoise | Inpaint) -> None:
    # One operator on three ranks: in float32, since deepinv aborts in float64 (plan refuses that).
    spec = replace(SMALL, problem=replace(SMALL.problem, physics=physics), resources=FLOAT32)
    expected = reconstruct(single(), spec)[0]
    for x, _, _ in ranks.run(3, reconstruct, spec):
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-5)


def test_a_volume(ranks: RankPool) -> None:
    problem = replace(SMALL.problem, image_size=(20, 18, 22), channels=1, physics=Inpaint())
    spec = replace(SMALL, problem=problem, tiling=Tiling(patch=12, halo=4), resources=FLOAT32)
    expected, tiles, _ = reconstruct(single(), spec)
    assert expected.shape == (1, 1, 20, 18, 22) and len(tiles) == 8
    for x, _, _ in ranks.run(2, reconstruct, spec):
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode,batch", [("never", 1), ("auto", 1), ("auto", 4), ("always", 2)])
def test_checkpoint_modes_and_batches_give_one_gradient(mode: str, batch: int) -> None:
    loss, expected = first_gradient(single(), SMALL)
    other_loss, gradients = first_gradient(single(), SMALL, checkpoint=mode, batch=batch)
    assert other_loss == pytest.approx(loss, rel=1e-12)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", ["pgd", "fista", "drs", "admm", "hqs"])
def test_every_algorithm_on_two_ranks(ranks: RankPool, name: str) -> None:
    spec = replace(SMALL, algorithm=Algorithm(name=name, iterations=2))  # type: ignore[arg-type]
    expected = reconstruct(single(), spec)[0]
    assert bool(torch.isfinite(expected).all())
    for x, _, _ in ranks.run(2, reconstruct, spec):
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-9)


def test_the_grid_strategy_denoises_as_deepinvs_tiling() -> None:
    from deepinv.distributed.strategies.distributed_strategies import TilingStrategy

    x = torch.rand(2, 3, 40, 36, dtype=torch.float64)
    ours = GridStrategy(TileGrid((40, 36), 16, 4), batch=2, channels=3)
    theirs = TilingStrategy((2, 3, 40, 36), tiling_dims=(-2, -1), patch_size=16, overlap=4)
    indices = list(range(9))
    assert ours.get_num_patches() == theirs.get_num_patches() == 9
    for (i, mine), (j, other) in zip(
        ours.get_local_patches(x, indices), theirs.get_local_patches(x, indices), strict=True
    ):
        assert i == j and torch.equal(mine, other)
    out, out_theirs = torch.zeros_like(x), torch.zeros_like(x)
    ours.reduce_patches(out, ours.get_local_patches(x, indices))
    theirs.reduce_patches(out_theirs, theirs.get_local_patches(x, indices))
    assert torch.equal(out, out_theirs) and torch.equal(out, x)


def test_a_patch_as_long_as_an_axis_is_allowed() -> None:
    spec = with_tiling(SMALL, patch=36, halo=4)
    assert reconstruct(single(), spec)[1] == [0, 1]


def _bf16(env: RankEnvironment, spec: Spec) -> tuple[torch.Tensor, torch.Tensor]:
    return reconstruct(env, spec)[0], reconstruct(env, replace(spec, resources=FLOAT32))[0]


def test_bf16_concerns_the_denoiser_alone() -> None:
    spec = replace(SMALL, resources=Resources(precision="bf16", layout="replicated"))
    low, full = _bf16(single(), spec)
    assert low.dtype == torch.float32
    assert 0 < float((low - full).abs().max()) < 0.1
    low, full = _bf16(single(), replace(spec, denoiser=Denoiser(name="identity")))
    # What passes the network is rounded to bfloat16 nowhere: identity has no operation that autocast changes.
    assert torch.equal(low, full)


def test_noise_level_per_image_reaches_every_tile() -> None:
    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            return sigma.reshape(-1, 1, 1, 1).expand_as(x)

    from dptrain.engine.tiled import InnerDenoiser

    ctx = context(single())
    algorithm, physics = algorithm_of(SMALL, ctx, batch=4)
    algorithm.optim.prior[0].denoiser.processor = InnerDenoiser(Constant())
    y = sample_of(SMALL, physics).measurements
    batch = type(y)([torch.cat([m, m]) for m in y])
    with torch.no_grad():
        x = algorithm(batch, torch.tensor([0.1, 0.3], dtype=torch.float64))
    torch.testing.assert_close(x[0], torch.full_like(x[0], 0.1))
    torch.testing.assert_close(x[1], torch.full_like(x[1], 0.3))


def test_step_sizes_come_back_from_a_save() -> None:
    algorithm, _ = algorithm_of(SMALL, context(single()), trainable=("step_size", "sigma"))
    with torch.no_grad():
        for parameter in algorithm.parameters():
            if parameter.requires_grad:
                parameter.mul_(0.5)
    values = {name: torch.stack(v) for name, v in algorithm.parameters_k.items()}
    other, _ = algorithm_of(SMALL, context(single()))
    other.load_parameters_k(values)
    assert torch.equal(torch.stack(other.parameters_k["step_size"]), values["step_size"])
    assert float(other.optim.update_params_fn(2)["stepsize"]) == pytest.approx(float(values["step_size"][2]))
    with pytest.raises(ValueError, match="3 unrolled steps"):
        algorithm_of(replace(SMALL, algorithm=Algorithm(iterations=5)), context(single()))[0].load_parameters_k(values)


def test_psnr_of_the_first_iterate_is_that_of_the_scaled_adjoint() -> None:
    physics_spec = MultiframeSuperres(frames=4, factor=1)
    spec = replace(SMALL, problem=replace(SMALL.problem, physics=physics_spec))
    ctx = context(single())
    algorithm, physics = algorithm_of(spec, ctx)
    sample = sample_of(spec, physics)
    x = algorithm.initial(sample.measurements)["est"][0]
    # ||A||^2 is about 4 here; an unscaled A^T y would be four times too bright.
    assert algorithm.norm_sq == pytest.approx(3.99, abs=0.02)
    assert psnr_db(x, truth_of(sample)) > 15
