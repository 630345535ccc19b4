"""One rank of a world that is not there: tensors without memory, a process group without other processes.

torch's fake tensors (on the device cpu: fake cuda without a GPU fails in backward passes) and its `fake` process group, whose
collectives return at once. What cannot run that way is replaced for the time being, each by what needs no number: two helpers of
deepinv.distributed that read the results of collectives on the host, the same in the solvers of proximal steps, ours and deepinv's,
the random mask, and the moving of modules, which swaps tensors where fake ones cannot be swapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import deepinv.distributed.framework.distributed_utils as deepinv_utils
import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from dptrain.engine import proximal
from dptrain.engine.context import RankContext, RankEnvironment
from dptrain.engine.problems import inpaint

_LEAST_SQUARES, _CONJUGATE_GRADIENT = (
    import_module(f"deepinv.optim.linear.{name}") for name in ("least_squares", "conjugate_gradient")
)


@contextmanager
def fake_rank(rank: int, world_size: int, replicas: int = 1) -> Iterator[RankContext]:
    """Inside, every tensor is fake, and this process is rank `rank` of `world_size`."""
    env = RankEnvironment(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        job_id="forecast",
        attempt=1,
        launcher="fake",
    )
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        with ExitStack() as stack:
            for target, name, stand_in in _STAND_INS:
                stack.enter_context(patch.object(target, name, stand_in))
            # Operators of a factory may hold tensors that it made without torch's knowledge, from numpy.
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            ctx = RankContext(env, seed=0, replicas=replicas)
            ctx.__enter__()
            yield ctx
    finally:
        dist.destroy_process_group()


@torch.no_grad()
def fake_copy(module: torch.nn.Module) -> torch.nn.Module:
    """The same module with fake tensors for real ones; inside `fake_rank`."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = torch.nn.Parameter(_empty(parameter), requires_grad=parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = _empty(buffer)
    return module


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
    """`Module._apply` that replaces parameters instead of swapping what they hold."""
    for child in self.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
    for name, parameter in self._parameters.items():
        if parameter is not None and (made := fn(parameter)) is not parameter:
            self._parameters[name] = torch.nn.Parameter(made.detach(), requires_grad=parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _any_rank_requires_grad(ctx: Any, local_tensors: Sequence[torch.Tensor]) -> bool:
    return any(tensor.requires_grad for tensor in local_tensors)


def _reduce_local_results(
    ctx: Any, local_results: list[torch.Tensor], reduce_op: str = "sum", reduce_globally: bool = True, **kwargs: Any
) -> torch.Tensor:
    """On a rank that has operators: the shapes need not be asked of rank 0."""
    assert local_results and reduce_op == "sum"
    total = torch.stack(local_results, dim=0).sum(dim=0)
    total = deepinv_utils._ensure_functional_collective_input(ctx, total, local_results)
    reduced: torch.Tensor = ctx.all_reduce(total, op=dist.ReduceOp.SUM) if reduce_globally else total
    return reduced


def _mask_box(seed: int, keep: float, box: Sequence[tuple[int, int]]) -> torch.Tensor:
    return torch.empty((1, *(stop - start for start, stop in box)), dtype=torch.bool)


def _any_left(left: torch.Tensor) -> bool:
    """One more iteration of a solver, in turn with none: its memory is that of one iteration."""
    return next(_TURNS)


_TURNS = itertools.cycle((True, False))


class _Unread:
    """torch for one module of deepinv, but for the question by which its solver decides from numbers."""

    def __init__(self, **answers: Callable[[torch.Tensor], bool]) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return self._answers.get(name) or getattr(torch, name)


_STAND_INS: tuple[tuple[Any, str, Any], ...] = (
    (torch.nn.Module, "_apply", _apply),
    (deepinv_utils, "_any_rank_requires_grad", _any_rank_requires_grad),
    (deepinv_utils, "reduce_local_results", _reduce_local_results),
    (inpaint, "mask_box", _mask_box),
    (proximal, "any_left", _any_left),
    # Is gamma negative? Is it solved?
    (_LEAST_SQUARES, "torch", _Unread(any=lambda _: False)),
    (_CONJUGATE_GRADIENT, "torch", _Unread(all=lambda _: not next(_TURNS))),
)
