"""Plan: what one run will be, before it is. `train` and `infer` are literally `make_plan`, then a submission of it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from dptrain.errors import PlanRefused
from dptrain.geometry.tiles import Counts, TileGrid, tile_grid
from dptrain.plan import checks, choices
from dptrain.plan.choices import Choice
from dptrain.plan.inputs import freeze_weights, missing_modules
from dptrain.scheduler.requests import ArrayRequest, JobRequest, nodes_and_tasks
from dptrain.scheduler.sbatch import sbatch_script
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, Override
from dptrain.spec.schema import Denoise, Spec, Task

ELEMENT_BYTES = {"float32": 4, "float64": 8, "bf16": 4}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything decided before submission."""

    task: Task
    spec: Spec
    profile: ClusterProfile
    overrides: tuple[Override, ...]
    grid: TileGrid
    steps: int
    choices: tuple[Choice, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    job: JobRequest | None
    """None for a local run, and where the ranks cannot be asked for."""
    sbatch: str | None
    """The exact text that is submitted."""

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.spec.resources.gpus

    @property
    def fits(self) -> bool | None:
        """False where plan refuses; None: the memory is not known."""
        return False if self.refusals else None

    @property
    def reasons(self) -> list[str]:
        """Why plan refuses, or what it wants to be known."""
        return [*self.refusals, *self.notes]

    @property
    def tiles_per_rank(self) -> Counts:
        """Tiles of the ranks."""
        return self.grid.deal_counts(self.world_size)

    @property
    def bytes_per_step(self) -> int:
        """Bytes each rank sends per iteration (inference) or optimiser step (training), layout replicated, as a ring sends them.

        The image is summed over ranks once per data step and once per denoiser call. Training adds A^T y before the first step,
        and a backward pass that repeats both sums and one more for the input of every data step but the first: 5 K - 1 images
        with deepinv 0.5. The gradients of the weights come on top.
        """
        ranks = self.world_size
        image = self.spec.problem.channels * ELEMENT_BYTES[self.spec.resources.precision]
        for length in self.spec.problem.image_size:
            image *= length
        if self.spec.train is not None and self.task == "train":
            image *= self.spec.train.batch_size
            return (5 * self.spec.algorithm.iterations - 1) * 2 * (ranks - 1) * image // ranks
        return 2 * 2 * (ranks - 1) * image // ranks

    def choice(self, key: str) -> int | str:
        """The decided value of a spec key."""
        return next(c.value for c in self.choices if c.key == key)

    def to_json(self) -> dict[str, Any]:
        """The contract of `plan --json` and plan.json."""
        counts = self.tiles_per_rank
        memory = {"forward_gib": None, "backward_gib": None, "peak_gib": None, "allowance_gib": None}
        return {
            "task": self.task,
            "fits": self.fits,
            "reasons": self.reasons,
            "layout": self.spec.resources.layout,
            "world_size": self.world_size,
            "steps": self.steps,
            "tiles": len(self.grid),
            "tiles_per_rank_max": counts.most,
            "tiles_per_rank_mean": counts.mean,
            "idle_ranks": counts.idle,
            "work_multiplier": self.grid.work_multiplier,
            "halo_needed": None,
            "memory": {**memory, "capacity_gib": self.profile.gpu_memory_gib, "terms": {}},
            "bytes_per_step": self.bytes_per_step,
            "max_batch_size": self.choice("tiling.max_batch_size"),
            "checkpoint": self.choice("tiling.checkpoint"),
            "patch": self.choice("tiling.patch"),
            "step_time_s": None,
            "gpu_hours": None,
            "cluster": self.profile.name,
            "nodes": self.job.nodes if self.job else None,
            "sbatch": self.sbatch,
            "choices": [asdict(c) for c in self.choices],
            "overrides": [asdict(o) for o in self.overrides],
        }

    def lines(self) -> list[str]:
        """One readable page, without the script."""
        spec, counts = self.spec, self.tiles_per_rank
        size = " x ".join(map(str, spec.problem.image_size))
        page = [
            f"{self.task} {spec.name}: {size} pixels, {spec.problem.channels} channels, {self.steps} steps",
            f"ranks: {self.world_size}, layout {spec.resources.layout}, cluster {self.profile.name}"
            + (f" ({self.job.nodes} nodes x {self.job.tasks_per_node})" if self.job else ""),
            f"tiles: {len(self.grid)} ({' x '.join(map(str, self.grid.counts))}) of window "
            f"{' x '.join(map(str, self.grid.window_shape))}; per rank at most {counts.most}, on average "
            f"{counts.mean:.2f}; idle ranks: {counts.idle}",
            f"work: {self.grid.work_multiplier:.4g} times the pixels, balance {counts.mean / counts.most:.2f}",
            f"sent per rank and step: {self.bytes_per_step / 1e6:.1f} MB",
        ]
        page += [f"{c.key} = {c.value}: {c.reason}" for c in self.choices]
        page += [f"override {o.key} = {o.value} (from {o.origin})" for o in self.overrides]
        page += [f"refused: {reason}" for reason in self.refusals]
        page += [f"note: {note}" for note in self.notes]
        return page

    def check(self) -> None:
        """:raises PlanRefused: with every reason, where plan refuses."""
        if self.refusals:
            raise PlanRefused("plan refuses:\n" + "\n".join(f"  {reason}" for reason in self.refusals))


def make_plan(loaded: LoadedSpec, task: Task, profile: ClusterProfile, array: ArrayRequest | None = None) -> Plan:
    """Decide everything about one run; nothing is written, no torch is loaded.

    :param array: for the script of several runs of this shape.
    """
    spec = freeze_weights(loaded.spec)
    grid = tile_grid(spec.problem.image_size, spec.tiling)
    refusals = list(checks.refusals(spec, task))
    if profile.python is None and not profile.setup:
        # Another interpreter or a module load may bring packages that are not here.
        refusals += missing_modules(spec)
    job = None
    if profile.launcher == "slurm":
        try:
            nodes, tasks = nodes_and_tasks(spec.resources.gpus, profile)
            job = JobRequest(
                name=spec.name,
                nodes=nodes,
                tasks_per_node=tasks,
                world_size=spec.resources.gpus,
                time_min=spec.resources.time_min,
                signal_lead_s=spec.run.signal_lead_s,
                array=array,
            )
        except ValueError as error:
            refusals.append(str(error))
    counts = grid.deal_counts(spec.resources.gpus)
    infer_steps = spec.algorithm.iterations * checks.image_count(spec, task)
    return Plan(
        task=task,
        spec=spec,
        profile=profile,
        overrides=loaded.overrides,
        grid=grid,
        steps=spec.train.steps if task == "train" and spec.train is not None else infer_steps,
        choices=(
            choices.patch(spec, grid),
            choices.max_batch_size(spec, counts.most),
            choices.checkpoint(spec, task),
        ),
        refusals=tuple(refusals),
        notes=(*_notes(spec, grid, counts), *_machine_notes(spec, profile)),
        job=job,
        sbatch=sbatch_script(profile, job) if job is not None else None,
    )


def _notes(spec: Spec, grid: TileGrid, counts: Counts) -> list[str]:
    notes = []
    ranks, operators = spec.resources.gpus, checks.operators(spec)
    if counts.idle:
        notes.append(f"{counts.idle} of {ranks} ranks have no tile: {len(grid)} tiles < {ranks} ranks")
    if operators is not None and operators < spec.resources.gpus:
        notes.append(
            f"layout replicated deals whole operators: {operators} operators on {spec.resources.gpus} ranks, "
            f"{spec.resources.gpus - operators} ranks wait during the data step"
        )
    return notes


def _machine_notes(spec: Spec, profile: ClusterProfile) -> list[str]:
    """What a local run should know of this machine."""
    notes = []
    cores = len(os.sched_getaffinity(0))
    if profile.launcher == "local" and spec.resources.gpus > cores:
        notes.append(
            f"{spec.resources.gpus} local ranks share {cores} cores, and take about 1 GiB of memory each for libraries"
        )
    physics = spec.problem.physics
    if (
        isinstance(physics, Denoise)
        and spec.algorithm.sigma != "noise"
        and spec.algorithm.sigma < min(physics.noise_std) / 2
    ):
        notes.append(
            f"algorithm.sigma {spec.algorithm.sigma:g} is far below noise_std {min(physics.noise_std):g}: "
            "little will be removed; write: algorithm.sigma=noise"
        )
    return notes
