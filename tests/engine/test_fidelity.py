"""Physics on boxes, on real gloo ranks: equal to deepinv's operators on the whole image."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from deepinv.physics import Blur, BlurFFT, Denoising, Downsampling, Inpainting, LinearPhysics, ZeroNoise, stack
from deepinv.physics.forward import ComposedLinearPhysics
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptrain.engine.context import RankEnvironment
from dptrain.engine.fidelity import DataFidelity, operators_stride
from dptrain.engine.local_physics import filter_banks, local_stages
from dptrain.engine.stages import LocalStage
from dptrain.geometry.boxes import cells, slices, split_boxes, whole
from dptrain.geometry.footprints import Footprint
from tests.ranks import RankPool

CHANNELS = 3
BOUNDARIES = ["circular", "reflect", "replicate", "constant"]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def blur(boundary: str, *kernel: int, channels: int = 1, fft: bool = False, seed: int = 0) -> LinearPhysics:
    return Blur(filter=random(1, channels, *kernel, seed=seed + sum(kernel)), padding=boundary, use_fft=fft)


def decimation(shape: tuple[int, ...], factor: int, **more: Any) -> LinearPhysics:
    return Downsampling(img_size=(CHANNELS, *shape), filter=more.pop("filter", None), factor=factor, **more)


def mask(shape: tuple[int, ...], channels: int = 1) -> LinearPhysics:
    return Inpainting(img_size=(CHANNELS, *shape), mask=random(channels, *shape, seed=5))


def chain(*parts: LinearPhysics) -> LinearPhysics:
    return ComposedLinearPhysics(*parts)


class Difference(LinearPhysics):  # type: ignore[misc]
    """A user's operator along the first axis, x[2i + 1] - x[2i], that says how it runs on boxes."""

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return x[:, :, 1::2] - x[:, :, ::2]

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.stack([-y, y], 3).flatten(2, 3)

    def local_stages(self, shape: tuple[int, ...]) -> list[LocalStage]:
        return [_DifferenceStage(len(shape))]


class RowSums(LinearPhysics):  # type: ignore[misc]
    """A global operator whose measurements are no image: (B, C H)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return x.sum(3).flatten(1)

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return y.reshape(len(y), CHANNELS, -1, 1).expand(-1, -1, -1, self.width)


class _DifferenceStage(LocalStage):
    def __init__(self, axes: int) -> None:
        super().__init__(Footprint(halo=((0, 0),) * axes, stride=(2, *(1,) * (axes - 1)), boundary="none"))

    def A(self, window: torch.Tensor) -> torch.Tensor:
        return Difference().A(window)

    def A_adjoint(self, out: torch.Tensor) -> torch.Tensor:
        return Difference().A_adjoint(out)


def operators(name: str, shape: tuple[int, ...]) -> list[LinearPhysics]:
    """Operators on images of `shape`, by name, the same on every rank."""
    odd, even = ((5, 3), (4, 5)) if len(shape) == 2 else ((3, 5, 3), (4, 3, 3))
    if name.startswith("blur"):
        boundary = name.split("-")[1]
        return [blur(boundary, *odd), blur(boundary, *even, channels=CHANNELS)]
    match name:
        case "identity":
            return [Denoising(noise_model=ZeroNoise())]
        case "masks":
            return [mask(shape), mask(shape, channels=CHANNELS)]
        case "decimation":
            return [decimation(shape, 2), decimation(shape, 3)]
        case "frames":
            return [chain(blur("circular", k, k), decimation(shape, 2)) for k in (3, 5)]
        case "banks":
            alike = [chain(blur("circular", 4, 5, seed=i), decimation(shape, 3)) for i in range(3)]
            # Neither of another kind nor with filters per channel: these are not joined to them.
            other = [blur("constant", 4, 5), blur("circular", 4, 5, channels=CHANNELS)]
            return [*alike, *(chain(part, decimation(shape, 3)) for part in other)]
        case "filtered":
            return [decimation(shape, 2, filter=random(1, 1, 3, 4, seed=8), padding="reflect")]
        case "chains":
            return [
                chain(blur("reflect", *odd), mask(shape), blur("constant", *even)),
                chain(blur("replicate", *even), blur("reflect", *odd)),
                chain(blur("circular", *odd), mask(shape), blur("circular", *even)),
            ]
        case "fft":
            return [blur("circular", *odd, fft=True), blur("reflect", *odd, fft=True)]
        case "global":
            return [BlurFFT(img_size=(CHANNELS, *shape), filter=random(1, 1, 3, 3)), RowSums(shape[1])]
        case "mixed":
            return [blur("reflect", *odd), blur("valid", 3, 3), blur("circular", *odd), blur("valid", 3, 5)]
        case "coarse":
            coarse = tuple(n // 2 for n in shape)
            return [chain(decimation(shape, 2), blur("circular", *odd), mask(coarse))]
        case "user":
            return [Difference(), blur("circular", *odd)]
    raise KeyError(name)


def errors(env: RankEnvironment, name: str, shape: tuple[int, ...], images: int) -> dict[str, float]:
    """Largest differences to the operators on the whole image, relative to the largest value."""
    parts = operators(name, shape)
    physics = stack(*parts)
    owned = split_boxes(shape, env.world_size, operators_stride(physics, shape))
    fidelity = DataFidelity(physics, (CHANNELS, *shape), owned, env.rank)
    here = slices(owned[env.rank], whole(shape), lead=2)
    full = random(images, CHANNELS, *shape)
    x = full[here].clone().requires_grad_()
    measured = physics.A(full)
    given_y = [random(*y.shape, seed=i + 1) for i, y in enumerate(measured)]
    adjoint = sum(p.A_adjoint(y) for p, y in zip(parts, given_y, strict=True))
    normal = sum(p.A_adjoint(p.A(full)) for p in parts)
    direction = random(*full.shape, seed=77)
    back = sum(p.A_adjoint(p.A(direction)) for p in parts)

    y = fidelity.A(x)
    mine = [fidelity.take(i, value) for i, value in enumerate(given_y)]
    to_y = [fidelity.take(i, value) for i, value in enumerate(measured)]
    adjoint_y = fidelity.A_adjoint(mine)
    gradient = fidelity.gradient(x, adjoint_y)
    (derivative,) = torch.autograd.grad(gradient, x, direction[here])
    found = {f"A {i}": _error(a, b, measured[i]) for i, (a, b) in enumerate(zip(y, to_y, strict=True))}
    found["adjoint"] = _error(adjoint_y, adjoint[here], adjoint)
    found["gradient"] = _error(gradient, (normal - adjoint)[here], normal)
    found["derivative"] = _error(derivative, back[here], back)
    found["<Ax, y>"] = sum(float((a.detach() * b).sum()) for a, b in zip(y, mine, strict=True))
    found["<x, A'y>"] = float((x.detach() * adjoint_y).sum())
    return found


def _error(got: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> float:
    assert got.shape == expected.shape, (got.shape, expected.shape)
    return float((got - expected).abs().max() / scale.abs().max()) if got.numel() else 0.0


def check(ranks: RankPool, name: str, shape: tuple[int, ...], world_size: int, images: int = 1) -> None:
    results = ranks.run(world_size, errors, name, shape, images)
    left, right = (sum(found.pop(key) for found in results) for key in ("<Ax, y>", "<x, A'y>"))
    assert abs(left - right) <= 1e-12 * (abs(left) + math.prod(shape))
    for rank, found in enumerate(results):
        assert max(found.values()) <= 1e-12, (rank, found)


FLAT = [f"blur-{b}" for b in BOUNDARIES] + [
    *("identity", "masks", "decimation", "frames", "banks", "filtered", "chains", "fft", "global", "mixed")
]


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("world_size", [1, 4, 6])
def test_equals_the_operators_on_the_whole_image(ranks: RankPool, name: str, world_size: int) -> None:
    check(ranks, name, (17, 22), world_size, images=2 if name in ("frames", "mixed") else 1)


@pytest.mark.parametrize("name", [f"blur-{b}" for b in BOUNDARIES] + ["masks", "chains", "user"])
def test_volumes(ranks: RankPool, name: str) -> None:
    check(ranks, name, (8, 9, 10), 5)


@pytest.mark.parametrize("world_size", [2, 5])
def test_a_circular_blur_of_a_decimated_image_and_users_own(ranks: RankPool, world_size: int) -> None:
    check(ranks, "coarse", (24, 20), world_size)
    check(ranks, "user", (24, 21), world_size)


@pytest.mark.parametrize("name", ["blur-circular", "blur-reflect", "chains", "mixed", "decimation"])
def test_ranks_that_own_nothing_and_halos_thicker_than_boxes(ranks: RankPool, name: str) -> None:
    # Six ranks: boxes of a pixel or two under halos of two; at stride 6 most ranks own nothing.
    check(ranks, name, (6, 7), 6)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FLAT), height=st.integers(6, 19), width=st.integers(6, 19), world_size=st.integers(1, 6))
def test_any_size(ranks: RankPool, name: str, height: int, width: int, world_size: int) -> None:
    check(ranks, name, (height, width), world_size)


def test_what_is_local() -> None:
    shape = (12, 14)
    for name in FLAT:
        local = [local_stages(operator, shape) is not None for operator in operators(name, shape)]
        assert local == {"global": [False, False], "mixed": [True, False, True, False]}.get(name, [True] * len(local))
    # The reflection of the first would be needed on the other side of the image.
    assert local_stages(chain(blur("reflect", 3, 3), blur("circular", 3, 3)), shape) is None
    # The period of 13 pixels is not one of every second pixel.
    assert local_stages(chain(decimation((13, 14), 2), blur("circular", 3, 3)), (13, 14)) is None
    assert local_stages(chain(decimation(shape, 2), blur("circular", 3, 3)), shape) is not None


def test_filters_of_one_kind_become_one_convolution() -> None:
    chains = [local_stages(operator, (12, 15)) for operator in operators("banks", (12, 15))]
    assert [len(stages) for stages in chains if stages] == [1, 1, 1, 1, 2]
    banks, single = filter_banks({i: stages for i, stages in enumerate(chains) if stages})
    assert [(len(bank.filters), bank.footprint.boundary) for bank in banks] == [(3, "circular"), (1, "constant")]
    assert single == [4]


def test_the_stride_is_that_of_all_local_operators() -> None:
    shape = (24, 24)
    assert operators_stride(stack(*operators("decimation", shape)), shape) == (6, 6)
    assert operators_stride(blur("reflect", 3, 3), shape) == (1, 1)
    assert operators_stride(stack(*operators("user", shape)), shape) == (2, 1)


def saved_by_a_step(env: RankEnvironment, name: str) -> tuple[int, int, int]:
    """(tensors kept by one data step, bytes it sent, bytes planned)."""
    shape = (16, 16)
    physics = stack(*operators(name, shape))
    owned = split_boxes(shape, env.world_size, operators_stride(physics, shape))
    fidelity = DataFidelity(physics, (CHANNELS, *shape), owned, env.rank)
    x = torch.ones(1, CHANNELS, *(b - a for a, b in owned[env.rank]), requires_grad=True).double()
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        fidelity.A_adjoint_A(x)
    plan, cell = fidelity.plan, 8 * CHANNELS
    return len(saved), fidelity.bytes_sent, plan.bytes_sent(env.rank, cell) + plan.bytes_received(env.rank, cell)


@pytest.mark.parametrize("name", ["frames", "mixed"])
def test_a_step_keeps_nothing_and_sends_what_is_planned(ranks: RankPool, name: str) -> None:
    for saved, sent, planned in ranks.run(4, saved_by_a_step, name):
        assert saved == 0 and sent == planned > 0


def test_one_rank_sends_nothing() -> None:
    shape = (9, 8)
    fidelity = DataFidelity(blur("circular", 3, 3), (1, *shape), [whole(shape)], 0)
    x = random(1, 1, *shape)
    torch.testing.assert_close(fidelity.A(x)[0], blur("circular", 3, 3).A(x), rtol=0, atol=1e-13)
    assert fidelity.bytes_sent == 0 and cells(fidelity.plan.wanted[0][0]) == 11 * 10
