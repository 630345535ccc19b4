"""Plan: what one run will be, before it is. `train` and `infer` are literally `make_plan`, then a submission of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from dptrain.errors import PlanRefused
from dptrain.geometry.tiles import Counts, TileGrid, tile_grid
from dptrain.plan import advice, checks, layouts, remedies
from dptrain.plan.choices import Choice
from dptrain.plan.disk import Disk, disk_of
from dptrain.plan.fitting import decide_step, forecast_choices
from dptrain.plan.forecast import forecast
from dptrain.plan.history import save_notes
from dptrain.plan.inputs import freeze_weights, missing_modules
from dptrain.plan.memory import Memory, empty_json
from dptrain.plan.patches import decide_patch
from dptrain.plan.ranks import decide_gpus
from dptrain.plan.receptive import Receptive, known
from dptrain.records.paths import runs_root
from dptrain.scheduler.requests import ArrayRequest, JobRequest, nodes_and_tasks
from dptrain.scheduler.sbatch import sbatch_script
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, Override
from dptrain.spec.schema import PROXIMAL, Denoise, Factory, Spec, Task
from dptrain.spec.sweep import fingerprint


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything decided before submission."""

    task: Task
    spec: Spec
    """With every value decided that the ranks read from it: they see no `patch: fit`."""
    profile: ClusterProfile
    overrides: tuple[Override, ...]
    fingerprint: str
    """Of the spec as it was written but for the patch, see `dptrain.spec.sweep`; what a sweep knows its runs by."""
    grid: TileGrid
    steps: int
    choices: tuple[Choice, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    receptive: Receptive | None
    """How far the denoiser sees; None: not measured yet, see `dptrain.plan.receptive`."""
    disk: Disk
    memory: Memory | None
    """None: not asked for."""
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
        if self.refusals:
            return False
        return None if self.memory is None else self.memory.fits

    @property
    def reasons(self) -> list[str]:
        """Why plan refuses, or what it wants to be known."""
        return [*self.refusals, *self.notes]

    @property
    def tiles_per_rank(self) -> Counts:
        """Tiles of the ranks."""
        return layouts.tiles_per_rank(self.spec, self.grid)

    @property
    def bytes_per_step(self) -> int | None:
        """Bytes a rank sends per iteration (inference) or optimiser step (training); None: not known."""
        return layouts.bytes_per_step(self.spec, self.task, self.grid)

    def choice(self, key: str) -> int | str:
        """The decided value of a spec key."""
        return next(c.value for c in self.choices if c.key == key)

    def to_json(self) -> dict[str, Any]:
        """The contract of `plan --json` and plan.json."""
        counts = self.tiles_per_rank
        capacity_gib = self.profile.gpu_memory_gib
        return {
            "task": self.task,
            "fits": self.fits,
            "reasons": self.reasons,
            "layout": self.spec.resources.layout,
            "world_size": self.world_size,
            "mesh": {"replicas": self.spec.resources.replicas, "spatial": self.spec.resources.ranks_per_replica},
            "steps": self.steps,
            "tiles": len(self.grid),
            "tiles_per_rank_max": counts.most,
            "tiles_per_rank_mean": counts.mean,
            "idle_ranks": counts.idle,
            "work_multiplier": self.grid.work_multiplier,
            "halo_needed": self.receptive.radius if self.receptive else None,
            "receptive": self.receptive.to_json() if self.receptive else None,
            "disk": asdict(self.disk),
            "memory": empty_json(capacity_gib) if self.memory is None else self.memory.to_json(),
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
        sent = self.bytes_per_step
        size = " x ".join(map(str, spec.problem.image_size))
        page = [
            f"{self.task} {spec.name}: {size} pixels, {spec.problem.channels} channels, {self.steps} steps",
            f"ranks: {self.world_size}{_mesh(spec)}, layout {spec.resources.layout}, cluster {self.profile.name}"
            + (f" ({self.job.nodes} nodes x {self.job.tasks_per_node})" if self.job else ""),
            f"tiles: {len(self.grid)} ({' x '.join(map(str, self.grid.counts))}) of window "
            f"{' x '.join(map(str, self.grid.window_shape))}; per rank at most {counts.most}, on average "
            f"{counts.mean:.2f}; idle ranks: {counts.idle}",
            f"work: {self.grid.work_multiplier:.4g} times the pixels, balance {counts.mean / counts.most:.2f}",
            f"sent per rank and step: {'not known' if sent is None else f'{sent / 1e6:.1f} MB'}",
            advice.seen(spec, self.grid, self.receptive)
            if self.receptive
            else "how far the denoiser sees is not measured",
            self.disk.line(),
        ]
        page += self.memory.lines() if self.memory is not None else []
        page += [f"{c.key} = {c.value}: {c.reason}" for c in self.choices]
        page += [f"override {o.key} = {o.value} (from {o.origin})" for o in self.overrides]
        page += [f"refused: {reason}" for reason in self.refusals]
        page += [f"note: {note}" for note in self.notes]
        return page

    def check(self) -> None:
        """:raises PlanRefused: with every reason, where plan refuses."""
        if self.refusals:
            raise PlanRefused("plan refuses:\n" + "\n".join(f"  {reason}" for reason in self.refusals))


def make_plan(
    loaded: LoadedSpec,
    task: Task,
    profile: ClusterProfile,
    array: ArrayRequest | None = None,
    *,
    forecast_memory: bool = False,
    fixed: Collection[str] | None = None,
) -> Plan:
    """Decide everything about one run; nothing is written but the cache of forecasts, no torch is loaded.

    :raises PlanRefused: where `resources.gpus: fit` has no answer, or weights named by a run are not there.
    :param array: for the script of several runs of this shape.
    :param forecast_memory: also where the memory of a card is not known, so that nothing can be refused for it.
    :param fixed: where memory is refused, look for the cheapest change of other keys than these with which it fits; None: do not.
    """
    loaded, gpus = decide_gpus(loaded, task, profile)
    spec, patch = decide_patch(freeze_weights(loaded.spec))
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
    counts = layouts.tiles_per_rank(spec, grid)
    receptive, images = known(spec), checks.image_count(spec, task)
    runs = runs_root(profile.runs)
    disk = disk_of(spec, task, images, receptive, runs)
    refusals += disk.refusals(task)
    capacity_gib, memory = profile.gpu_memory_gib, None
    decided = decide_step(spec, task, None if refusals else capacity_gib)
    if not refusals and (forecast_memory or capacity_gib is not None):
        answer = decided.forecast or forecast([decided.request])[0]
        memory = Memory(request=decided.request, forecast=answer, capacity_gib=capacity_gib)
        if memory.refusal is not None:
            able = () if fixed is None else remedies.cheapest_change(loaded.spec, task, profile, fixed)
            refusals.append(memory.refusal + ("" if fixed is None else f"; {remedies.advice(able)}"))
    return Plan(
        task=task,
        spec=spec,
        profile=profile,
        overrides=loaded.overrides,
        fingerprint=fingerprint(replace(loaded.spec, tiling=spec.tiling), task),
        grid=grid,
        steps=spec.train.steps if task == "train" and spec.train is not None else spec.algorithm.iterations * images,
        choices=(*gpus, patch, decided.batch, decided.mode),
        refusals=tuple(refusals),
        notes=(
            *_notes(spec, grid, counts),
            *_solver_notes(spec, task, grid),
            *_machine_notes(spec, profile),
            *_memory_notes(memory),
            *advice.sentences(spec, task, grid, counts, receptive),
            *disk.notes(),
            # Without a scheduler nothing is warned in advance.
            *(save_notes(spec, runs) if profile.launcher == "slurm" else ()),
        ),
        receptive=receptive,
        disk=disk,
        memory=memory,
        job=job,
        sbatch=sbatch_script(profile, job) if job is not None else None,
    )


def _mesh(spec: Spec) -> str:
    replicas, each = spec.resources.replicas, spec.resources.ranks_per_replica
    return f" = {replicas} replicas x {each} rank{'s' * (each != 1)}" if replicas > 1 else ""


def forecast_all(specs: Sequence[Spec], task: Task, capacity_gib: float | None) -> None:
    """Work out in few processes what the plans of these specs will ask of their memory; they then find it kept."""
    able = []
    for spec in specs:
        # What plan refuses it refuses again, with its reason, when its turn comes.
        with suppress(PlanRefused):
            decided, _ = decide_patch(freeze_weights(spec))
            able += [] if any(checks.refusals(decided, task)) else [decided]
    forecast_choices(able, task, capacity_gib)


def _memory_notes(memory: Memory | None) -> list[str]:
    return [memory.note] if memory is not None and memory.note is not None else []


def _notes(spec: Spec, grid: TileGrid, counts: Counts) -> list[str]:
    notes = []
    each, operators = spec.resources.ranks_per_replica, checks.operators(spec)
    if counts.idle:
        where = "in each replica " if spec.resources.replicas > 1 else ""
        cause = (
            f"tiles < {each} ranks; write: resources.gpus={spec.resources.replicas * len(grid)}, or a smaller tiling.patch"
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


def _solver_notes(spec: Spec, task: Task, grid: TileGrid) -> list[str]:
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
