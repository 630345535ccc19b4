"""The collectives of the engine: every one passes here, or through `exchange.py`, and is shown to whoever observes (`observe.py`).

What deepinv calls by itself comes by `RankContext`, which shows it too.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dptrain.engine.observe import communicating

T = TypeVar("T")


def all_reduce(x: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None) -> None:
    """Sum, or another reduction, over the ranks of a group, in place."""
    with communicating("all_reduce", group):
        dist.all_reduce(x, op, group=group)


def gathered(mine: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """An object of every rank, in rank order; of one process without a group its own."""
    if not dist.is_initialized():
        return [mine]
    every: list[Any] = [None] * dist.get_world_size(group)
    with communicating("gather_objects", group):
        dist.all_gather_object(every, mine, group=group)
    return every


def told_by_first(mine: T) -> T:
    """Rank 0's object, on every rank."""
    said: list[Any] = [mine]
    if dist.is_initialized():
        with communicating("broadcast_object"):
            dist.broadcast_object_list(said)
    told: T = said[0]
    return told


def meet() -> None:
    """No rank goes on before all are here."""
    if dist.is_initialized():
        with communicating("barrier"):
            dist.barrier()
