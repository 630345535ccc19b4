"""The ranks of a run as a mesh, replicas x spatial: replicas train on images of their own, the ranks of one share every image.

The spatial axis is the fast one: rank = replica x spatial_size + spatial_rank. Ranks of a replica are neighbours in number, hence on
one node where they fit, and what is exchanged most often stays on the fast network; between replicas only gradients and single
numbers travel, once per step.

Beside the group of all ranks there is one group per rank, that of its replica (each NCCL group costs device memory): sums over
replicas of what was summed over boxes are one sum over all ranks. Without replicas there is no second group.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from dptrain.engine.communication import all_reduce


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Where this rank is."""

    replicas: int
    replica: int
    """Of this rank, from 0."""
    spatial_size: int
    """Ranks that share an image."""
    spatial_rank: int
    """This rank among them, from 0."""
    spatial_group: dist.ProcessGroup | None
    """Their process group; None: that of all ranks, or no other rank to talk to."""


def form_mesh(rank: int, world_size: int, replicas: int, device: torch.device, timeout: timedelta | None) -> Mesh:
    """Make the groups, and use each once, all ranks together; a collective.

    Exchanges between some ranks only must not be the first thing a group does: NCCL connects all of its ranks at first use.

    :param replicas: divides `world_size`.
    :param timeout: limit for any one collective of the group; None: torch's.
    """
    assert world_size % replicas == 0, "the loader refuses it"
    spatial_size = world_size // replicas
    group = None
    if replicas > 1 and spatial_size > 1:
        group, _ = dist.new_subgroups(spatial_size, timeout=timeout)
    if world_size > 1:
        for each in (None,) if group is None else (None, group):
            all_reduce(torch.zeros(1, device=device), group=each)
    return Mesh(
        replicas=replicas,
        replica=rank // spatial_size,
        spatial_size=spatial_size,
        spatial_rank=rank % spatial_size,
        spatial_group=group,
    )
