"""What plan wants to be known of a run that it does not refuse: ranks without work, costs that nobody knows, this machine."""

from __future__ import annotations

import os

from dptrain.geometry.tiles import Counts, TileGrid
from dptrain.plan import checks, layouts
from dptrain.plan.memory import Memory
from dptrain.plan.timing import StepTime, walltime_note
from dptrain.scheduler.submit import TestOnly
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.schema import PROXIMAL, Denoise, Factory, Spec, Task


def time_notes(step_time: StepTime | None, steps: int, spec: Spec, profile: ClusterProfile) -> list[str]:
    """Whether the job may take as long as its steps will."""
    # A local run has no limit.
    note = walltime_note(step_time, steps, spec) if profile.launcher == "slurm" else None
    return [] if note is None else [note]


def scheduler_notes(said: TestOnly | None) -> list[str]:
    """Where SLURM was asked and nobody answered."""
    return [f"SLURM was asked and did not answer: {said.words}"] if said is not None and said.accepted is None else []


def memory_notes(memory: Memory | None) -> list[str]:
    """Why the memory is not known."""
    return [memory.note] if memory is not None and memory.note is not None else []


def rank_notes(spec: Spec, grid: TileGrid, counts: Counts) -> list[str]:
    """Ranks that have nothing to do."""
    notes = []
    each, operators = spec.resources.ranks_per_replica, checks.operators(spec)
    if counts.idle:
        where = "in each replica " if spec.resources.replicas > 1 else ""
        cause = (
            f"tiles < {each} ranks; write: --set resources.gpus={spec.resources.replicas * len(grid)}, or a smaller tiling.patch"
            if len(grid) < each
            else "tiles lie in the boxes of the others"
        )
        notes.append(f"{counts.idle} of {spec.resources.gpus} ranks have no tile: {where}{len(grid)} {cause}")
    if spec.resources.layout == "sharded":
        return notes + _sharded_notes(spec, grid)
    if operators is not None and operators < spec.resources.gpus:
        notes.append(
            f"layout replicated deals whole operators: {operators} operators on {spec.resources.gpus} ranks, "
            f"{spec.resources.gpus - operators} ranks wait during the data step"
        )
    return notes


def solver_notes(spec: Spec, task: Task, grid: TileGrid) -> list[str]:
    """Why the bytes per step are not known of an algorithm with a proximal step."""
    if spec.algorithm.name not in PROXIMAL or spec.resources.ranks_per_replica == 1:
        return []
    sent = layouts.bytes_per_normal(spec, task, grid)
    cost = "" if sent is None else f", {sent / 1e6:.3g} MB per rank and iteration of the solver"
    return [
        f"{spec.algorithm.name} solves a linear system in every step{cost}; how many iterations it takes depends on the data, "
        "so what is sent per step is not known"
    ]


def _sharded_notes(spec: Spec, grid: TileGrid) -> list[str]:
    if not isinstance(spec.problem.physics, Factory):
        without = layouts.boxless(spec, grid)
        return [without] if without else []
    return [
        "what the physics of a factory sends in layout sharded is not known; the tiles per rank are those of boxes that may "
        "be cut anywhere"
    ]


def machine_notes(spec: Spec, profile: ClusterProfile) -> list[str]:
    """What a local run should know of this machine."""
    notes = []
    cores = len(os.sched_getaffinity(0))
    if profile.launcher == "local" and spec.resources.gpus > cores:
        notes.append(
            f"{spec.resources.gpus} local ranks share {cores} cores, so that their times say nothing of scaling, and take about "
            "1 GiB of memory each for libraries"
        )
    physics = spec.problem.physics
    if (
        isinstance(physics, Denoise)
        and spec.algorithm.sigma != "noise"
        and spec.algorithm.sigma < min(physics.noise_std) / 2
    ):
        notes.append(
            f"algorithm.sigma {spec.algorithm.sigma:g} is far below noise_std {min(physics.noise_std):g}: "
            "little will be removed; write: --set algorithm.sigma=noise"
        )
    return notes
