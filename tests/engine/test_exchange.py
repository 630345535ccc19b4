"""The exchange on real gloo ranks: equal to slicing the full tensor, and its adjoint exactly its adjoint."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptrain.engine.context import RankEnvironment
from dptrain.engine.exchange import Exchange
from dptrain.geometry.boxes import Box, shape_of, split_boxes, whole
from dptrain.geometry.messages import ExchangePlan, exchange_plan
from tests.geometry.boxes import boxes_in, shapes
from tests.ranks import RankPool

LEAD = (2, 3)
"""B, C."""
Wanted = list[list[Box]]


def plan_of(shape: tuple[int, ...], periodic: tuple[bool, ...], wanted: Wanted) -> ExchangePlan:
    owned = split_boxes(shape, len(wanted), (1,) * len(shape))
    return exchange_plan([[box] for box in owned], wanted, shape, periodic)


def full_image(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*LEAD, *shape, dtype=torch.float64, generator=generator)


def cut(x: torch.Tensor, box: Box) -> torch.Tensor:
    """A box of a full tensor, wrapping around every axis."""
    for axis, (start, stop) in enumerate(box, 2):
        x = x.index_select(axis, torch.arange(start, stop) % x.shape[axis])
    return x


def exchange_both_ways(
    env: RankEnvironment, shape: tuple[int, ...], periodic: tuple[bool, ...], wanted: Wanted
) -> tuple[bool, list[float], bool]:
    """(gathered equals slicing, the inner products <gather(x), g> and <x, scatter_add(g)>, bytes as planned)."""
    plan = plan_of(shape, periodic, wanted)
    exchange = Exchange(plan, env.rank)
    x = full_image(shape)
    held = [cut(x, box) for box in exchange.held]
    got = exchange.gather(*held)
    equal = all(torch.equal(tensor, cut(x, box)) for tensor, box in zip(got, exchange.wanted, strict=True))
    g = [torch.randn(t.shape, dtype=t.dtype, generator=torch.Generator().manual_seed(env.rank + 1)) for t in got]
    back = exchange.scatter_add(*g)
    left = sum(float((a * b).sum()) for a, b in zip(got, g, strict=True))
    right = sum(float((a * b).sum()) for a, b in zip(held, back, strict=True))
    sent = plan.bytes_sent(env.rank, 8 * math.prod(LEAD)) + plan.bytes_received(env.rank, 8 * math.prod(LEAD))
    return equal, [left, right], exchange.bytes_sent == sent


def check(ranks: RankPool, shape: tuple[int, ...], periodic: tuple[bool, ...], wanted: Wanted) -> None:
    results = ranks.run(len(wanted), exchange_both_ways, shape, periodic, wanted)
    assert all(equal and planned for equal, _, planned in results)
    left, right = (sum(products[side] for _, products, _ in results) for side in (0, 1))
    assert abs(left - right) <= 1e-12 * (math.prod(shape) + abs(left))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), shape=shapes(longest=9), world_size=st.integers(1, 6))
def test_any_boxes(ranks: RankPool, data: st.DataObject, shape: tuple[int, ...], world_size: int) -> None:
    periodic = tuple(data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape))))
    wanted = [data.draw(st.lists(boxes_in(shape, periodic), max_size=3)) for _ in range(world_size)]
    check(ranks, shape, periodic, wanted)


@pytest.mark.parametrize("world_size", [1, 2, 4, 6])
@pytest.mark.parametrize("shape", [(13, 17), (3, 40), (5, 7, 6)])
@pytest.mark.parametrize("halo", [1, 4])
def test_periodic_halo(ranks: RankPool, shape: tuple[int, ...], world_size: int, halo: int) -> None:
    # A halo of 4 is thicker than most of these boxes, and wraps a rank into its own neighbour.
    owned = split_boxes(shape, world_size, (1,) * len(shape))
    wanted = [[tuple((a - halo, b + halo) for a, b in box)] for box in owned]
    check(ranks, shape, (True,) * len(shape), wanted)


def test_whole_image_to_one_rank_and_ranks_that_own_nothing(ranks: RankPool) -> None:
    # Six ranks on two by two pixels: two of them own nothing, one of those wants everything.
    check(ranks, (2, 2), (False, False), [[], [], [], [], [], [whole((2, 2))]])


def second_derivative(
    env: RankEnvironment, shape: tuple[int, ...], halo: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradient and Hessian-vector product of sum(w * gather(x)^3) on this rank's box, and of the same on the full tensor."""
    owned = split_boxes(shape, env.world_size, (1,) * len(shape))
    haloed = [tuple((a - halo, b + halo) for a, b in box) for box in owned]
    plan = plan_of(shape, (True,) * len(shape), [[box] for box in haloed])
    exchange = Exchange(plan, env.rank)
    full, direction = full_image(shape), full_image(shape, seed=9)
    x = cut(full, owned[env.rank]).requires_grad_()
    (out,) = exchange.gather(x)
    (first,) = torch.autograd.grad((out**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * cut(direction, owned[env.rank])).sum(), x)
    reference = full.clone().requires_grad_()
    loss = torch.stack([(cut(reference, box) ** 3).sum() for box in haloed]).sum()
    (f1,) = torch.autograd.grad(loss, reference, create_graph=True)
    (f2,) = torch.autograd.grad((f1 * direction).sum(), reference)
    expected = torch.stack([cut(f1.detach(), owned[env.rank]), cut(f2, owned[env.rank])])
    return torch.stack([first.detach(), second]), expected, full


@pytest.mark.parametrize("world_size", [1, 3, 6])
def test_differentiable_twice(ranks: RankPool, world_size: int) -> None:
    for got, expected, _ in ranks.run(world_size, second_derivative, (9, 8), 3):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_gradcheck_on_one_rank() -> None:
    owned = ((0, 3), (0, 2))
    plan = exchange_plan([[owned]], [[((-2, 4), (-1, 3)), ((0, 2), (1, 2))]], (3, 2), (True, True))
    exchange = Exchange(plan, 0)
    x = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    g = [torch.randn(1, 2, *shape_of(box), dtype=torch.float64, requires_grad=True) for box in exchange.wanted]
    assert torch.autograd.gradcheck(exchange.gather, (x,)) and torch.autograd.gradgradcheck(exchange.gather, (x,))
    assert torch.autograd.gradcheck(exchange.scatter_add, g) and torch.autograd.gradgradcheck(exchange.scatter_add, g)


def several_held_boxes(env: RankEnvironment) -> bool:
    """Tiles held by ranks, wanted as boxes: the return of cores."""
    shape = (8, 6)
    tiles = [((a, a + 2), (b, b + 3)) for a, b in itertools.product(range(0, 8, 2), (0, 3))]
    held = [tiles[rank :: env.world_size] for rank in range(env.world_size)]
    owned = split_boxes(shape, env.world_size, (1, 1))
    exchange = Exchange(exchange_plan(held, [[box] for box in owned], shape), env.rank)
    x = full_image(shape)
    (got,) = exchange.gather(*(cut(x, box) for box in exchange.held))
    back = exchange.scatter_add(got)
    return torch.equal(got, cut(x, owned[env.rank])) and all(
        torch.equal(t, cut(x, box)) for t, box in zip(back, exchange.held, strict=True)
    )


@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_several_held_boxes(ranks: RankPool, world_size: int) -> None:
    assert all(ranks.run(world_size, several_held_boxes))


def nothing_saved(env: RankEnvironment) -> tuple[int, list[int]]:
    """Tensors saved by an exchange for its backward; bytes told to the callback."""
    saved: list[torch.Tensor] = []
    told: list[int] = []
    plan = plan_of((8, 8), (True, True), [[((-1, 5), (-1, 9))], [((3, 9), (-1, 9))]])
    exchange = Exchange(plan, env.rank, on_sent=told.append)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        (out,) = exchange.gather(torch.ones(1, 1, *shape_of(exchange.held[0]), requires_grad=True))
        exchange.scatter_add(out)
    return len(saved), told


def test_saves_nothing_and_tells_its_bytes(ranks: RankPool) -> None:
    for saved, told in ranks.run(2, nothing_saved):
        assert saved == 0
        assert told == [4 * 2 * 10, 4 * 2 * 10]


def in_a_subgroup(env: RankEnvironment) -> bool:
    """Two pairs of ranks, each exchanging within its own group: peers are ranks of the group."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for group in groups:
        # Every group meets in a collective before its first message.
        if dist.get_rank(group) >= 0:
            dist.barrier(group)
    pair, rank = env.rank % 2, env.rank // 2
    plan = plan_of((6, 4), (False, False), [[whole((6, 4))], [whole((6, 4))]])
    exchange = Exchange(plan, rank, groups[pair])
    x = full_image((6, 4), seed=pair)
    (got,) = exchange.gather(cut(x, exchange.held[0]))
    return torch.equal(got, x)


def test_ranks_of_a_plan_are_those_of_the_group(ranks: RankPool) -> None:
    assert all(ranks.run(4, in_a_subgroup))


def test_what_does_not_move_is_not_copied() -> None:
    owned = whole((4, 4))
    exchange = Exchange(exchange_plan([[owned]], [[owned]], (4, 4)), 0)
    x = torch.ones(1, 1, 4, 4)
    assert exchange.gather(x)[0] is x and exchange.scatter_add(x)[0] is x
