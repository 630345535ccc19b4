"""The denoiser on boxes, on real gloo ranks: the answer and the gradient are those of deepinv's tiling of the whole image."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from deepinv.distributed.framework import DistributedProcessing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptrain.engine.context import RankEnvironment
from dptrain.engine.sharded_denoiser import ShardedDenoiser
from dptrain.engine.tiled import GridStrategy, InnerDenoiser
from dptrain.geometry.boxes import slices, split_boxes, whole
from dptrain.geometry.tiles import TileGrid
from tests.engine.helpers import Network, context, single
from tests.ranks import RankPool


@dataclass(frozen=True, kw_only=True)
class Case:
    """One image and one way of denoising it."""

    shape: tuple[int, ...]
    patch: int
    halo: int
    images: int = 1
    channels: int = 1
    batch: int = 2
    checkpoint: str = "always"
    fill: bool = False
    dropout: float = 0.0
    grad_x: bool = True

    @property
    def grid(self) -> TileGrid:
        return TileGrid(self.shape, self.patch, self.halo)

    def image(self, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.images, self.channels, *self.shape, dtype=torch.float64, generator=generator)

    def sigma(self) -> torch.Tensor:
        return torch.linspace(0.1, 0.2, self.images, dtype=torch.float64).requires_grad_()


Answer = dict[str, torch.Tensor]


def answer(network: torch.nn.Module, x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> Answer:
    nothing = torch.zeros(())
    weights = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in network.parameters()])
    return {
        "out": out.detach(),
        "x": nothing if x.grad is None else x.grad,
        "sigma": nothing if sigma.grad is None else sigma.grad,
        "weights": weights,
    }


def on_a_box(env: RankEnvironment, case: Case) -> tuple[Answer, list[int], int]:
    """(answer of this rank, tiles executed, saved tensors), the loss being a weighted sum."""
    network = Network(len(case.shape), case.channels, case.dropout)
    owned = split_boxes(case.shape, env.world_size, (1,) * len(case.shape))
    denoiser = ShardedDenoiser(
        InnerDenoiser(network, stages=case.checkpoint == "stages"),
        case.grid,
        owned,
        env.rank,
        max_batch_size=case.batch,
        checkpoint=case.checkpoint,
        fill_batches=case.fill,
    )
    here = slices(owned[env.rank], whole(case.shape), lead=2)
    x, sigma = case.image(0)[here].clone().requires_grad_(case.grad_x), case.sigma()
    torch.manual_seed(env.rank)
    saved: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = denoiser(x, sigma)
    (out * case.image(1)[here]).sum().backward()
    return answer(network, x, sigma, out), denoiser.tile_ids, sum(saved)


def on_the_image(case: Case) -> Answer:
    """deepinv's tiling on one process."""
    network = Network(len(case.shape), case.channels, case.dropout)
    denoiser = DistributedProcessing(
        context(single()),
        InnerDenoiser(network),
        strategy=GridStrategy(case.grid, case.images, case.channels),
        max_batch_size=case.batch,
        checkpoint_batches="never",
    )
    x, sigma = case.image(0).requires_grad_(case.grad_x), case.sigma()
    out = denoiser(x, sigma)
    (out * case.image(1)).sum().backward()
    return answer(network, x, sigma, out)


def assembled(case: Case, answers: list[Answer]) -> Answer:
    """What the ranks answered as one: boxes put together, gradients of shared values summed."""
    owned = split_boxes(case.shape, len(answers), (1,) * len(case.shape))
    made = {name: torch.zeros_like(case.image(0)) for name in ("out", "x")}
    for name, box, one in itertools.product(made, range(len(owned)), [answers]):
        made[name][slices(owned[box], whole(case.shape), lead=2)] = one[box][name]
    summed = {name: torch.stack([a[name] for a in answers]).sum(0) for name in ("sigma", "weights")}
    return {**made, **summed}


def check(ranks: RankPool, case: Case, world_size: int) -> None:
    results = ranks.run(world_size, on_a_box, case)
    got, expected = assembled(case, [a for a, _, _ in results]), on_the_image(case)
    torch.testing.assert_close(got["out"], expected["out"], rtol=0, atol=1e-12)
    for name in ("x", "sigma", "weights"):
        error = (got[name] - expected[name]).norm() / (1 + expected[name].norm())
        assert error < 1e-10, (name, float(error))
    assert sorted(itertools.chain(*(tiles for _, tiles, _ in results))) == list(range(len(case.grid)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = tuple(draw(st.lists(st.integers(3, 26), min_size=2, max_size=2)))
    if draw(st.booleans()):
        shape = tuple(draw(st.lists(st.integers(3, 11), min_size=3, max_size=3)))
    return Case(
        shape=shape,
        patch=draw(st.integers(2, 14)),
        halo=draw(st.integers(0, min(min(shape) - 1, 4))),
        images=draw(st.integers(1, 2)),
        channels=draw(st.sampled_from([1, 3])),
        batch=draw(st.integers(1, 4)),
        checkpoint=draw(st.sampled_from(["always", "never", "auto", "stages"])),
        fill=draw(st.booleans()),
    )


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), world_size=st.integers(1, 6))
def test_equals_the_tiling_of_the_whole_image(ranks: RankPool, case: Case, world_size: int) -> None:
    check(ranks, case, world_size)


@pytest.mark.parametrize("checkpoint", ["always", "never", "auto"])
@pytest.mark.parametrize("world_size", [2, 4, 6])
def test_awkward_images(ranks: RankPool, checkpoint: str, world_size: int) -> None:
    # The last tile is shifted by most of a patch; patch = image on one axis; six ranks on two tiles.
    check(ranks, Case(shape=(33, 50), patch=16, halo=5, checkpoint=checkpoint), world_size)
    check(ranks, Case(shape=(12, 23), patch=12, halo=3, checkpoint=checkpoint), world_size)


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_idle_ranks_take_part_when_only_the_weights_learn(ranks: RankPool, checkpoint: str) -> None:
    # x needs no gradient, so that on a rank without tiles nothing but the network says that there is a backward pass.
    case = Case(shape=(12, 23), patch=12, halo=3, checkpoint=checkpoint, grad_x=False)
    results = ranks.run(5, on_a_box, case)
    weights = torch.stack([a["weights"] for a, _, _ in results]).sum(0)
    torch.testing.assert_close(weights, on_the_image(case)["weights"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(("checkpoint", "fill"), [("always", False), ("always", True), ("stages", False)])
def test_random_layers_draw_the_same_again(ranks: RankPool, world_size: int, checkpoint: str, fill: bool) -> None:
    case = Case(shape=(30, 41), patch=10, halo=3, batch=3, checkpoint=checkpoint, fill=fill, dropout=0.5)
    recomputed = ranks.run(world_size, on_a_box, case)
    kept = ranks.run(world_size, on_a_box, Case(**{**case.__dict__, "checkpoint": "never"}))
    for (one, _, _), (other, _, _) in zip(recomputed, kept, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-12, atol=1e-13)


def untouched(env: RankEnvironment, case: Case) -> bool:
    """A denoiser without weights that returns its input."""
    owned = split_boxes(case.shape, env.world_size, (1,) * len(case.shape))
    denoiser = ShardedDenoiser(
        InnerDenoiser(_Same()), case.grid, owned, env.rank, max_batch_size=2, checkpoint=case.checkpoint
    )
    x = case.image(0)[slices(owned[env.rank], whole(case.shape), lead=2)]
    with torch.no_grad():
        return torch.equal(denoiser(x, 0.1), x)


class _Same(torch.nn.Module):
    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return x


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), world_size=st.integers(1, 6))
def test_identity_returns_its_input(ranks: RankPool, case: Case, world_size: int) -> None:
    assert all(ranks.run(world_size, untouched, case))


def test_keeps_the_haloed_block_and_nothing_else(ranks: RankPool) -> None:
    case = Case(shape=(64, 64), patch=16, halo=4)
    for _, tiles, saved in ranks.run(4, on_a_box, case):
        assert len(tiles) == 4
        assert saved == 36 * 36 + 1  # the block and the noise level


def test_batches_are_even() -> None:
    grid = TileGrid((50, 10), 10, 2)
    sizes = {}
    for fill in (False, True):
        denoiser = ShardedDenoiser(
            _Same(), grid, [whole((50, 10))], 0, max_batch_size=4, checkpoint="never", fill_batches=fill
        )
        sizes[fill] = [(len(batch.tiles), batch.fill) for batch in denoiser.batches]
    assert sizes == {False: [(3, 0), (2, 0)], True: [(3, 0), (2, 1)]}
