"""Plan: what one run will be, before it is. `train` and `infer` are literally `make_plan`, then a submission of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dptrain.errors import PlanRefused
from dptrain.geometry.tiles import TileGrid, tile_grid
from dptrain.plan import checks, choices
from dptrain.plan.choices import Choice
from dptrain.scheduler.requests import ArrayRequest, JobRequest, nodes_and_tasks
from dptrain.scheduler.sbatch import sbatch_script
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, Override
from dptrain.spec.schema import Spec, Task

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
    def tiles_per_rank(self) -> list[int]:
        """Tiles of each rank."""
        return [len(ids) for ids in self.grid.deal(self.world_size)]

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
            "tiles_per_rank_max": max(counts),
            "tiles_per_rank_mean": sum(counts) / len(counts),
            "idle_ranks": counts.count(0),
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
            f"{' x '.join(map(str, self.grid.window_shape))}; per rank at most {max(counts)}, on average "
            f"{sum(counts) / len(counts):.2f}; idle ranks: {counts.count(0)}",
            f"work: {self.grid.work_multiplier:.4g} times the pixels, balance {sum(counts) / len(counts) / max(counts):.2f}",
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
    spec = loaded.spec
    grid = tile_grid(spec.problem.image_size, spec.tiling)
    refusals = list(checks.refusals(spec, task))
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
    counts = [len(ids) for ids in grid.deal(spec.resources.gpus)]
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
            choices.max_batch_size(spec, max(counts)),
            choices.checkpoint(spec, task),
        ),
        refusals=tuple(refusals),
        notes=tuple(_notes(spec, grid, counts)),
        job=job,
        sbatch=sbatch_script(profile, job) if job is not None else None,
    )


def _notes(spec: Spec, grid: TileGrid, counts: list[int]) -> list[str]:
    notes = []
    idle, operators = counts.count(0), checks.operators(spec)
    if idle:
        notes.append(f"{idle} of {len(counts)} ranks have no tile: {len(grid)} tiles < {len(counts)} ranks")
    if operators is not None and operators < spec.resources.gpus:
        notes.append(
            f"layout replicated deals whole operators: {operators} operators on {spec.resources.gpus} ranks, "
            f"{spec.resources.gpus - operators} ranks wait during the data step"
        )
    return notes
