"""A family of awkward problems, drawn at random, on which the layout sharded must give the answer of one process.

The one process is written here in plain torch: whole images, reflect-padded, the same tiles in the same batches, every rank's random
numbers drawn as that rank draws them. Where deepinv can, the layout replicated must give it too.

Letters: x is (B, C, *shape), y a list of O operators' measurements of the same shape.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from deepinv.physics import Blur
from deepinv.utils import TensorList
from hypothesis import strategies as st

from dptrain.engine.build import build
from dptrain.engine.context import RankEnvironment
from dptrain.engine.problems import build_physics
from dptrain.engine.sharded import ShardedPlugAndPlay
from dptrain.engine.sharded_physics import ShardedPhysics
from dptrain.engine.tiled import reflect_pad
from dptrain.geometry.boxes import slices, whole
from dptrain.geometry.tiles import TileGrid
from dptrain.spec.schema import Algorithm, Factory, Problem, Resources, Spec, Tiling
from tests.engine.helpers import Network, context, whole_of
from tests.ranks import RankPool

HERE = "tests.engine.sharded_family"
BOUNDARIES = ("circular", "reflect", "replicate", "constant")
STEPS = 2
SIGMA = 0.1
EVERYTHING = ("denoiser", "step_size", "sigma")
Layout = Literal["replicated", "sharded"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem and one way of solving it."""

    shape: tuple[int, ...]
    patch: int
    halo: int
    world_size: int
    boundaries: tuple[str, ...]
    """One per operator."""
    channels: int = 1
    images: int = 1
    batch: int = 1
    """Tiles per call, at most."""
    checkpoint: str = "always"
    dropout: float = 0.0

    @property
    def step_size(self) -> float:
        return 0.4 / len(self.boundaries)

    @property
    def replicated_too(self) -> bool:
        """Whether deepinv can, in float64, and draws no random numbers of its own."""
        return self.world_size <= len(self.boundaries) and self.patch < min(self.shape) and not self.dropout

    def spec(self, layout: Layout) -> Spec:
        return Spec(
            name="family",
            problem=Problem(
                image_size=self.shape,
                channels=self.channels,
                physics=Factory(factory=f"{HERE}:blurs", arguments={"boundaries": self.boundaries}),
            ),
            denoiser=Factory(factory=f"{HERE}:network", arguments={"dropout": self.dropout}),
            algorithm=Algorithm(iterations=STEPS, step_size=self.step_size, sigma=SIGMA),
            tiling=Tiling(patch=self.patch, halo=self.halo),
            resources=Resources(precision="float64", layout=layout, gpus=self.world_size),
        )

    def image(self, seed: int) -> torch.Tensor:
        return random(self.images, self.channels, *self.shape, seed=seed)


@dataclass(kw_only=True)
class Answer:
    """What one rank, or one process, found."""

    x: torch.Tensor | None
    """Whole x_K; None on ranks other than the first."""
    loss: float
    gradients: dict[str, torch.Tensor]
    """By name: gamma, sigma (K,), and weights of the network."""
    norm_sq: float = 0.0
    batches: tuple[tuple[int, ...], ...] = ()
    """Ids of the tiles of each call of a step, in order."""


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def blurs(image_size: Sequence[int], boundaries: Sequence[str]) -> list[Blur]:
    """A user's physics: filters with odd and even sides."""
    sides = itertools.cycle([(5, 3), (4, 5)] if len(image_size) == 2 else [(3, 5, 3), (4, 3, 3)])
    made = []
    for i, (boundary, kernel) in enumerate(zip(boundaries, sides, strict=False)):
        filter = random(1, 1, *kernel, seed=i)
        made.append(Blur(filter=filter / filter.abs().sum(), padding=boundary))
    return made


def network(dim: int, channels: int, dropout: float) -> Network:
    """A user's denoiser."""
    return Network(dim, channels, dropout)


def on_ranks(env: RankEnvironment, case: Case, layout: Layout) -> Answer:
    """The product's answer."""
    ctx = context(env)
    built = build(case.spec(layout), ctx, max_batch_size=case.batch, checkpoint=case.checkpoint, trainable=EVERYTHING)
    algorithm, physics = built.algorithm, built.physics
    y = [case.image(seed=10 + i) for i in range(len(case.boundaries))]
    if isinstance(physics, ShardedPhysics):
        y = [physics.fidelity.take(i, part) for i, part in enumerate(y)]
    truth = case.image(seed=1)[slices(physics.box, whole(case.shape), lead=2)]
    measured = algorithm.measured(TensorList(y))
    torch.manual_seed(seed_of(env.rank))
    x = algorithm(measured)
    loss = (x - truth).square().sum() / algorithm.elements(x)
    loss.backward()
    algorithm.sync_gradients()
    batches: tuple[tuple[int, ...], ...] = ()
    if isinstance(algorithm, ShardedPlugAndPlay):
        ids = iter(algorithm.denoiser.tile_ids)
        batches = tuple(tuple(itertools.islice(ids, len(b.tiles))) for b in algorithm.denoiser.batches)
    gradients = {n: p.grad.detach() for n, p in algorithm.named_parameters() if p.requires_grad and p.grad is not None}
    return Answer(
        x=whole_of(physics, x.detach()),
        loss=float(algorithm.sum(loss)),
        gradients=by_meaning(gradients),
        norm_sq=algorithm.norm_sq,
        batches=batches,
    )


def seed_of(rank: int) -> int:
    return 1000 + rank


def by_meaning(gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names that the layouts give parameters as `gamma`, `sigma` and those of the network."""
    made: dict[str, torch.Tensor] = {}
    for meaning, pattern in (("gamma", r"(gamma_k|stepsize)\.\d+$"), ("sigma", r"(sigma_k|g_param)\.\d+$")):
        made[meaning] = torch.stack([g for n, g in gradients.items() if re.search(pattern, n)])
    return made | {n.rpartition("network.")[2]: g for n, g in gradients.items() if "network." in n}


def on_one_process(case: Case, norm_sq: float, batches: Sequence[Sequence[Sequence[int]]]) -> Answer:
    """The whole image at once.

    :param norm_sq: what A^T y is divided by at the start.
    :param batches: per rank, the tiles of each of its calls.
    """
    physics = build_physics(case.spec("sharded"), torch.device("cpu"), torch.float64).physics_list
    denoiser = network(len(case.shape), case.channels, case.dropout)
    gammas, sigmas = (
        [torch.tensor(value, dtype=torch.float64, requires_grad=True) for _ in range(STEPS)]
        for value in (case.step_size, SIGMA)
    )
    adjoint_y = sum(operator.A_adjoint(case.image(seed=10 + i)) for i, operator in enumerate(physics))
    x = adjoint_y / norm_sq
    draws = [torch.Generator().manual_seed(seed_of(rank)).get_state() for rank in range(len(batches))]
    with torch.random.fork_rng():
        for gamma, sigma in zip(gammas, sigmas, strict=True):
            gradient = sum(operator.A_adjoint(operator.A(x)) for operator in physics) - adjoint_y
            x = denoise(case, denoiser, x - gamma * gradient, sigma, batches, draws)
    loss = torch.nn.functional.mse_loss(x, case.image(seed=1))
    loss.backward()  # type: ignore[no-untyped-call]
    scalars = {
        name: torch.stack([gradient_of(v) for v in values]) for name, values in (("gamma", gammas), ("sigma", sigmas))
    }
    weights = {name: gradient_of(p) for name, p in denoiser.named_parameters()}
    return Answer(x=x.detach(), loss=float(loss.detach()), gradients=scalars | weights)


def denoise(
    case: Case,
    network: torch.nn.Module,
    x: torch.Tensor,
    sigma: torch.Tensor,
    batches: Sequence[Sequence[Sequence[int]]],
    draws: list[torch.Tensor],
) -> torch.Tensor:
    """Every tile of the reflect-padded image; `draws` are the ranks' states of the random generator, before and after."""
    halo = case.halo
    tiles = TileGrid(case.shape, case.patch, halo).tiles()
    keep = (slice(None), slice(None))
    padded = reflect_pad(x, halo) if halo else x
    out = torch.zeros_like(x)
    for rank, calls in enumerate(batches):
        torch.set_rng_state(draws[rank])
        for call in calls:
            windows = [padded[(*keep, *(slice(a.start + halo, a.stop + halo) for a in tiles[i]))] for i in call]
            made = network(torch.cat(windows), sigma.reshape(1).expand(len(call) * case.images))
            for i, window in zip(call, made.chunk(len(call)), strict=True):
                crop = (*keep, *(slice(a.core_start - a.start, a.core_stop - a.start) for a in tiles[i]))
                out[(*keep, *(slice(a.core_start, a.core_stop) for a in tiles[i]))] = window[crop]
        draws[rank] = torch.get_rng_state()
    return out


def gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def check(ranks: RankPool, case: Case) -> None:
    """Outputs to 1e-12, gradients to 1e-10, every tile on one rank."""
    answers = ranks.run(case.world_size, on_ranks, case, "sharded")
    executed = [[i for call in answer.batches for i in call] for answer in answers]
    assert sorted(itertools.chain(*executed)) == list(range(len(TileGrid(case.shape, case.patch, case.halo))))
    expected = on_one_process(case, answers[0].norm_sq, [answer.batches for answer in answers])
    assert answers[0].x is not None and all(answer.x is None for answer in answers[1:])
    compare(answers, expected)
    if case.replicated_too:
        compare(ranks.run(case.world_size, on_ranks, case, "replicated"), expected)


def compare(answers: Sequence[Answer], expected: Answer) -> None:
    for answer in answers:
        if answer.x is not None:
            torch.testing.assert_close(answer.x, expected.x, rtol=0, atol=1e-12)
        assert abs(answer.loss - expected.loss) <= 1e-12 * abs(expected.loss)
        assert answer.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            error = (answer.gradients[name] - gradient).norm()
            assert error <= 1e-10 * gradient.norm() + 1e-15, (name, float(error), float(gradient.norm()))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Odd and thin images, patches from two pixels to more than an axis, one to six ranks."""
    if draw(st.booleans()):
        shape = tuple(draw(st.lists(st.integers(3, 11), min_size=3, max_size=3)))
    else:
        shape = tuple(draw(st.lists(st.integers(3, 26), min_size=2, max_size=2)))
    # deepinv's answer too in some cases: as many operators as ranks, patches below every axis.
    patch = draw(st.integers(2, 14) if draw(st.booleans()) else st.integers(2, max(2, min(shape) - 1)))
    return Case(
        shape=shape,
        patch=patch,
        halo=draw(st.integers(0, min(min(shape) - 1, 4))),
        world_size=draw(st.integers(1, 6)),
        boundaries=tuple(draw(st.lists(st.sampled_from(BOUNDARIES), min_size=1, max_size=4))),
        channels=draw(st.sampled_from([1, 3])),
        images=draw(st.integers(1, 2)),
        batch=draw(st.integers(1, 3)),
        checkpoint=draw(st.sampled_from(["always", "auto", "never"])),
        dropout=draw(st.sampled_from([0.0, 0.3])),
    )
