"""Small problems for engine tests, built the way the engine builds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dptrain.engine.build import build
from dptrain.engine.context import RankContext, RankEnvironment
from dptrain.engine.pnp import PlugAndPlay
from dptrain.engine.problems import RankPhysics, Sample, build_data
from dptrain.spec.schema import (
    Algorithm,
    Denoiser,
    MultiframeSuperres,
    Problem,
    Resources,
    SourceData,
    Spec,
    Tiling,
    Train,
)

SMALL = Spec(
    name="small",
    problem=Problem(
        image_size=(40, 36), channels=3, physics=MultiframeSuperres(frames=4), data=SourceData(source="synthetic")
    ),
    denoiser=Denoiser(weights="random", nc=(4, 4, 8, 8), nb=1),
    algorithm=Algorithm(iterations=3),
    tiling=Tiling(patch=16, halo=4),
    resources=Resources(precision="float64", layout="replicated"),
    train=Train(steps=3, images=2, held_out=1),
)


class Network(torch.nn.Module):
    """Two convolutions that know the noise level, each a stage; 2-D or 3-D, float64, the same weights everywhere."""

    def __init__(self, axes: int, channels: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        convolution: Any = torch.nn.Conv2d if axes == 2 else torch.nn.Conv3d
        with torch.random.fork_rng():
            torch.manual_seed(3)
            first = convolution(channels + 1, 4, 3, padding=1)
            self.second = convolution(4, channels, 3, padding=1)
        self.first = torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Dropout(dropout))
        self.double()

    def checkpoint_stages(self) -> list[torch.nn.Module]:
        return [self.first, self.second]

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        level = sigma.reshape(-1, *(1,) * (x.ndim - 1)).expand_as(x[:, :1])
        out: torch.Tensor = x + self.second(self.first(torch.cat([x, level], 1)))
        return out


def single() -> RankEnvironment:
    """One process without a process group."""
    return RankEnvironment(
        rank=0, world_size=1, local_rank=0, local_world_size=1, job_id="test", attempt=1, launcher="none"
    )


def context(env: RankEnvironment, replicas: int = 1) -> RankContext:
    """An entered context of this rank."""
    ctx = RankContext(env, seed=0, replicas=replicas)
    ctx.__enter__()
    return ctx


def algorithm_of(
    spec: Spec, ctx: RankContext, *, checkpoint: str = "always", batch: int = 1, trainable: tuple[str, ...] = ()
) -> tuple[PlugAndPlay, RankPhysics]:
    """The algorithm in the layout replicated and the physics of a spec, as `engine.build` makes them."""
    built = build(spec, ctx, max_batch_size=batch, checkpoint=checkpoint, trainable=trainable)
    assert isinstance(built.algorithm, PlugAndPlay)
    return built.algorithm, built.physics


def sample_of(spec: Spec, physics: RankPhysics) -> Sample:
    """This rank's part of the first image of a spec."""
    return build_data(spec, physics, role="infer")[0]


def whole_of(physics: RankPhysics, x: torch.Tensor) -> torch.Tensor | None:
    """The whole image (B, C, ...) on rank 0, of every rank's part (B, C, *box)."""
    images = [[slab for _, slab in physics.slabs(image[None])] for image in x]
    first = [[slab for slab in slabs if slab is not None] for slabs in images]
    return torch.stack([torch.cat(slabs, 1) for slabs in first]) if physics.first else None


def reconstruct(env: RankEnvironment, spec: Spec) -> tuple[torch.Tensor, list[int], int]:
    """(x_K, tiles executed, bytes sent) of one rank."""
    ctx = context(env)
    algorithm, physics = algorithm_of(spec, ctx)
    with torch.no_grad():
        x = algorithm(sample_of(spec, physics).measurements)
    return x, sorted(algorithm.executed), ctx.bytes_sent


def first_gradient(
    env: RankEnvironment, spec: Spec, checkpoint: str = "always", batch: int = 1
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of every trainable parameter at the start of training."""
    ctx = context(env)
    algorithm, physics = algorithm_of(
        spec, ctx, checkpoint=checkpoint, batch=batch, trainable=("denoiser", "step_size", "sigma")
    )
    sample = sample_of(spec, physics)
    loss = torch.nn.functional.mse_loss(algorithm(sample.measurements), truth_of(sample))
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: p.grad.clone() for name, p in algorithm.named_parameters() if p.requires_grad and p.grad is not None
    }
    assert len(gradients) == sum(p.requires_grad for p in algorithm.parameters())
    return float(loss.detach()), gradients


def truth_of(sample: Sample) -> torch.Tensor:
    """Its truth, which it has."""
    assert sample.truth is not None
    return sample.truth


def with_tiling(spec: Spec, **changes: Any) -> Spec:
    """The spec with another tiling."""
    return replace(spec, tiling=replace(spec.tiling, **changes))
