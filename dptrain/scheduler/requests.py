"""What one job asks the scheduler for, in numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dptrain.spec.cluster import ClusterProfile


@dataclass(frozen=True, kw_only=True)
class ArrayRequest:
    """Several runs of one shape in one job array."""

    count: int
    """Members, at least 2: an array of one is an ordinary job."""
    max_parallel: int | None = None
    """At most so many members at once; None: as many as there is room for."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job. Together with the cluster profile it determines the submitted script."""

    name: str
    nodes: int
    tasks_per_node: int
    """Ranks per node, the same on every node."""
    world_size: int
    """All ranks: nodes x tasks_per_node."""
    time_min: int
    """Wall time in minutes."""
    signal_lead_s: int
    """Seconds before the time limit at which the ranks get SIGUSR2."""
    array: ArrayRequest | None = None

    def __post_init__(self) -> None:
        if self.nodes * self.tasks_per_node != self.world_size:
            raise ValueError(
                f"{self.nodes} nodes x {self.tasks_per_node} tasks per node = {self.nodes * self.tasks_per_node}, "
                f"but the world size is {self.world_size}"
            )
        assert self.time_min >= 1 and self.signal_lead_s >= 1
        assert self.array is None or self.array.count >= 2


def nodes_and_tasks(world_size: int, profile: ClusterProfile) -> tuple[int, int]:
    """(nodes, ranks per node) on the fewest nodes, the same number of ranks on each.

    :raises ValueError: where the ranks do not divide evenly; the message names the nearest numbers that do.
    """
    assert world_size >= 1 and profile.gpus_per_node >= 1
    nodes = math.ceil(world_size / profile.gpus_per_node)
    if world_size % nodes == 0:
        return nodes, world_size // nodes
    below = next(n for n in range(world_size - 1, 0, -1) if _even(n, profile))
    above = next(n for n in range(world_size + 1, world_size + profile.gpus_per_node + 1) if _even(n, profile))
    raise ValueError(
        f"{world_size} ranks do not divide evenly over {nodes} nodes of {profile.gpus_per_node} "
        f"(profile {profile.name}); the nearest numbers that do are {below} and {above}"
    )


def _even(world_size: int, profile: ClusterProfile) -> bool:
    return world_size % math.ceil(world_size / profile.gpus_per_node) == 0
