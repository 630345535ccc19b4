"""The proximal step on boxes, on real gloo ranks: the solution of the whole image's linear system, and its derivatives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from deepinv.physics import Inpainting, LinearPhysics, stack

from dptrain.engine import proximal as module
from dptrain.engine.context import RankEnvironment
from dptrain.engine.fidelity import DataFidelity, operators_stride
from dptrain.engine.proximal import Proximal
from dptrain.errors import UsageError
from dptrain.geometry.boxes import slices, split_boxes, whole
from tests.engine.helpers import context, single
from tests.engine.test_fidelity import CHANNELS, blur, operators, random
from tests.ranks import RankPool

SHAPE = (8, 9)


def gamma_of(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def dense(parts: list[LinearPhysics]) -> torch.Tensor:
    """A^T A of an image of SHAPE as a matrix."""
    unit = torch.eye(CHANNELS * math.prod(SHAPE), dtype=torch.float64).reshape(-1, CHANNELS, *SHAPE)
    image: torch.Tensor = sum(p.A_adjoint(p.A(unit)) for p in parts)
    return image.flatten(1).T


def on_boxes(
    env: RankEnvironment, name: str, gamma: float, image: torch.Tensor, adjoint_y: torch.Tensor, direction: torch.Tensor
) -> tuple[Any, torch.Tensor, torch.Tensor, float, int, int]:
    """(slices of the box, x, gradient of <x, direction> in z, this rank's share of that in gamma, solver's, tensors kept)."""
    physics = stack(*operators(name, SHAPE))
    owned = split_boxes(SHAPE, env.world_size, operators_stride(physics, SHAPE))
    fidelity = DataFidelity(physics, (CHANNELS, *SHAPE), owned, env.rank)
    applied = [0]

    def normal(x: torch.Tensor) -> torch.Tensor:
        applied[0] += 1
        return fidelity.normal(x)

    proximal = Proximal(normal, context(env).summed)
    here = slices(owned[env.rank], whole(SHAPE), lead=2)
    z, step = image[here].clone().requires_grad_(), gamma_of(gamma)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        proximal(z, adjoint_y[here], step.detach())
    kept = sum(t.ndim > 0 for t in saved)
    applied[0] = 0
    x = proximal(z, adjoint_y[here], step)
    iterations = applied[0] - 1
    to_z, to_gamma = torch.autograd.grad(x, (z, step), direction[here])
    return here, x.detach(), to_z, float(to_gamma), iterations, kept


NAMES = [("frames", 1), ("frames", 4), ("chains", 3), ("mixed", 2), ("global", 3), ("masks", 5), ("identity", 6)]


@pytest.mark.parametrize(("name", "world_size"), NAMES)
def test_equals_the_dense_solution(ranks: RankPool, name: str, world_size: int) -> None:
    gamma, count = 0.3, 2
    z, adjoint_y, direction = (random(count, CHANNELS, *SHAPE, seed=i) for i in range(3))
    matrix = dense(operators(name, SHAPE))
    system = torch.eye(len(matrix), dtype=torch.float64) + gamma * matrix

    def solved(b: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = torch.linalg.solve(system, b.flatten(1).T).T
        return x.reshape(b.shape)

    expected, back = solved(z + gamma * adjoint_y), solved(direction)
    slope = float((back * (adjoint_y - (expected.flatten(1) @ matrix).reshape(z.shape))).sum())
    results = ranks.run(world_size, on_boxes, name, gamma, z, adjoint_y, direction)
    for here, x, to_z, *_ in results:
        torch.testing.assert_close(x, expected[here], rtol=0, atol=1e-10)
        torch.testing.assert_close(to_z, back[here], rtol=0, atol=1e-10)
    assert sum(share for _, _, _, share, *_ in results) == pytest.approx(slope, rel=1e-9)
    assert {kept for *_, kept in results} == {0}
    iterations = {number for *_, number, _ in results}
    assert len(iterations) == 1 and (name != "identity" or iterations == {1})


def test_iterations_do_not_depend_on_the_number_of_ranks(ranks: RankPool) -> None:
    given = [random(1, CHANNELS, *SHAPE, seed=i) for i in range(3)]
    numbers = [ranks.run(n, on_boxes, "mixed", 0.1, *given)[0][4] for n in (1, 2, 5)]
    assert len(set(numbers)) == 1 and numbers[0] > 5


def test_derivatives_are_those_of_finite_differences() -> None:
    fidelity = DataFidelity(blur("reflect", 3, 3), (1, 4, 5), [whole((4, 5))], 0)
    proximal = Proximal(fidelity.normal, lambda t: t)
    z, adjoint_y = (random(2, 1, 4, 5, seed=i).requires_grad_() for i in range(2))
    assert torch.autograd.gradcheck(proximal, (z, adjoint_y, gamma_of(0.4)), atol=1e-7)


def one_process(physics: LinearPhysics, *shape: int) -> Proximal:
    return Proximal(DataFidelity(physics, shape, [whole(shape[1:])], 0).normal, context(single()).summed)


def test_a_mask_of_zeros_and_ones_takes_one_iteration_and_a_batch_is_its_images() -> None:
    pixels = (random(1, 6, 7) > 0).double()
    proximal = one_process(Inpainting(img_size=(1, 6, 7), mask=pixels), 1, 6, 7)
    calls = [0]
    inner = proximal.normal

    def normal(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return inner(x)

    proximal.normal = normal
    gamma = gamma_of(3.0)
    # The second image is nothing at all, the third is solved already.
    z = torch.cat([random(1, 1, 6, 7), torch.zeros(1, 1, 6, 7), pixels[None], 1e6 * random(1, 1, 6, 7, seed=1)])
    adjoint_y = torch.cat([random(1, 1, 6, 7, seed=2) * pixels, torch.zeros(1, 1, 6, 7), pixels[None], z[3:]])
    together = proximal(z, adjoint_y, gamma)
    assert calls[0] == 2
    expected = (z + 3 * adjoint_y) / (1 + 3 * pixels)
    torch.testing.assert_close(together, expected, rtol=1e-11, atol=1e-14)
    assert torch.equal(together[1:3], z[1:3])
    alone = torch.cat([proximal(z[i : i + 1], adjoint_y[i : i + 1], gamma) for i in range(4)])
    assert torch.equal(together, alone)


def test_small_gradients_are_not_lost_in_float32() -> None:
    proximal = one_process(blur("circular", 3, 3).float(), 1, 6, 7)
    b = random(2, 1, 6, 7).float()
    gamma = torch.tensor(0.5)
    small = proximal.solve(1e-25 * b, gamma, relative_to=1e-25 * b)
    torch.testing.assert_close(small / 1e-25, proximal.solve(b, gamma, relative_to=b), rtol=0, atol=1e-5)


def test_what_is_not_solved_is_said_and_what_is_not_finite_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    proximal = one_process(blur("circular", 3, 3), 1, 6, 7)
    z = random(1, 1, 6, 7)
    broken = z.clone()
    broken[0, 0, 0, 0] = math.nan
    assert bool(proximal(broken, z, gamma_of(0.5)).isnan().any() and proximal(z, broken, gamma_of(0.5)).isnan().any())
    assert bool(proximal.solve(broken, gamma_of(0.5), relative_to=z).isnan().any())
    assert bool(proximal(z / 0, z, gamma_of(0.5)).isnan().any())
    monkeypatch.setattr(module, "MOST_ITERATIONS", 3)
    with pytest.raises(UsageError, match=r"gamma 0\.5 is not solved after 3 iterations.*\n *write: a smaller"):
        proximal(z, z, gamma_of(0.5))
