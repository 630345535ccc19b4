"""Plan: what one run will be, before it is. `train` and `infer` are literally `make_plan`, then a submission of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from dptrain.errors import PlanRefused
from dptrain.geometry.tiles import Counts, TileGrid, tile_grid
from dptrain.plan import advice, checks, layouts, notes, remedies
from dptrain.plan.cards import KEY as ALLOWANCE_KEY
from dptrain.plan.cards import card_of
from dptrain.plan.choices import Choice
from dptrain.plan.disk import Disk, disk_of
from dptrain.plan.fitting import decide_step, forecast_choices
from dptrain.plan.forecast import Request, forecast
from dptrain.plan.history import save_notes
from dptrain.plan.inputs import freeze_weights, missing_modules
from dptrain.plan.memory import Memory, empty_json
from dptrain.plan.patches import decide_patch
from dptrain.plan.pilot import NotTimed, time_step
from dptrain.plan.ranks import decide_gpus
from dptrain.plan.receptive import Receptive, known
from dptrain.plan.timing import StepTime, recorded, step_key, time_line
from dptrain.records.paths import runs_root
from dptrain.scheduler.requests import ArrayRequest, JobRequest, nodes_and_tasks
from dptrain.scheduler.sbatch import sbatch_script
from dptrain.scheduler.submit import TestOnly, test_only
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, Override
from dptrain.spec.schema import Spec, Task
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
    step_time: StepTime | None
    """None: nobody has measured it."""
    job: JobRequest | None
    """None for a local run, and where the ranks cannot be asked for."""
    sbatch: str | None
    """The exact text that is submitted."""
    scheduler: TestOnly | None
    """What SLURM says of that text; None: it was not asked."""

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
            "step_time_s": self.step_time.seconds if self.step_time else None,
            "gpu_hours": self.step_time.gpu_hours(self.steps, self.world_size) if self.step_time else None,
            "step_time_source": self.step_time.source if self.step_time else None,
            "cluster": self.profile.name,
            "nodes": self.job.nodes if self.job else None,
            "sbatch": self.sbatch,
            "scheduler": asdict(self.scheduler) if self.scheduler else None,
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
        page.append(time_line(self.step_time, self.steps, self.world_size))
        page += [f"SLURM: {self.scheduler.words}"] if self.scheduler is not None and self.scheduler.accepted else []
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
    pilot: bool = False,
    ask_scheduler: bool = False,
) -> Plan:
    """Decide everything about one run; nothing is written but the cache of forecasts, no torch is loaded.

    :raises PlanRefused: where `resources.gpus: fit` has no answer, or weights named by a run are not there.
    :param array: for the script of several runs of this shape.
    :param forecast_memory: also where the memory of a card is not known, so that nothing can be refused for it.
    :param pilot: where no earlier run says how long a step takes, time one call of the denoiser on this machine.
    :param ask_scheduler: have SLURM look at the script.
    :param fixed: where memory is refused, look for the cheapest change of other keys than these with which it fits; None: do not.
    """
    loaded, gpus = decide_gpus(loaded, task, profile)
    spec, patch = decide_patch(freeze_weights(loaded.spec))
    grid = tile_grid(spec.problem.image_size, spec.tiling)
    refusals = list(checks.refusals(spec, task))
    if profile.python is None and not profile.setup:
        # Another interpreter or a module load may bring packages that are not here.
        refusals += missing_modules(spec)
    try:
        job = _job(spec, profile, array)
    except ValueError as error:
        job = None
        refusals.append(str(error))
    counts = layouts.tiles_per_rank(spec, grid)
    receptive, images = known(spec), checks.image_count(spec, task)
    runs = runs_root(profile.runs)
    disk = disk_of(spec, task, images, receptive, runs)
    refusals += disk.refusals(task)
    card, memory = card_of(profile), None
    decided = decide_step(spec, task, None if refusals else card)
    allowance: tuple[Choice, ...] = ()
    if not refusals and (forecast_memory or card.capacity_gib is not None):
        answer = decided.forecast or forecast([decided.request])[0]
        memory = Memory(request=decided.request, forecast=answer, card=card)
        allowance = (Choice(key=ALLOWANCE_KEY, value=f"{card.allowance:.1%}", reason=card.reason),)
        if memory.refusal is not None:
            able = () if fixed is None else remedies.cheapest_change(loaded.spec, task, profile, fixed)
            refusals.append(memory.refusal + ("" if fixed is None else f"; {remedies.advice(able, loaded.spec)}"))
    sbatch = sbatch_script(profile, job) if job is not None else None
    said = _scheduler(sbatch) if ask_scheduler and sbatch is not None and not refusals else None
    refusals += [f"SLURM: {said.words}"] if said is not None and said.accepted is False else []
    steps = spec.train.steps if task == "train" and spec.train is not None else spec.algorithm.iterations * images
    step_time, untimed = _step_time(decided.request, profile, counts.most, pilot=pilot and not refusals)
    return Plan(
        task=task,
        spec=spec,
        profile=profile,
        overrides=loaded.overrides,
        fingerprint=fingerprint(replace(loaded.spec, tiling=spec.tiling), task),
        grid=grid,
        steps=steps,
        choices=(*gpus, patch, decided.batch, decided.mode, *allowance),
        refusals=tuple(refusals),
        notes=(
            *checks.step_size_notes(spec),
            *notes.rank_notes(spec, grid, counts),
            *notes.solver_notes(spec, task, grid),
            *notes.machine_notes(spec, profile),
            *notes.memory_notes(memory),
            *advice.sentences(spec, task, grid, counts, receptive),
            *disk.notes(),
            # Without a scheduler nothing is warned in advance.
            *(save_notes(spec, runs) if profile.launcher == "slurm" else ()),
            *notes.time_notes(step_time, steps, spec, profile),
            *untimed,
            *notes.scheduler_notes(said),
        ),
        receptive=receptive,
        disk=disk,
        memory=memory,
        step_time=step_time,
        job=job,
        sbatch=sbatch,
        scheduler=said,
    )


def _job(spec: Spec, profile: ClusterProfile, array: ArrayRequest | None) -> JobRequest | None:
    """What the scheduler is asked for; None for a local run. Raises ValueError where the ranks do not divide over nodes."""
    if profile.launcher == "local":
        return None
    nodes, tasks = nodes_and_tasks(spec.resources.gpus, profile)
    return JobRequest(
        name=spec.name,
        nodes=nodes,
        tasks_per_node=tasks,
        world_size=spec.resources.gpus,
        time_min=spec.resources.time_min,
        signal_lead_s=spec.run.signal_lead_s,
        array=array,
    )


def _step_time(
    request: Request, profile: ClusterProfile, most_tiles: int, *, pilot: bool
) -> tuple[StepTime | None, list[str]]:
    """What earlier runs say, else a pilot where one is wanted; and why that has no answer."""
    key = step_key(request.spec, request.task, request.max_batch_size, request.checkpoint)
    found = recorded(key, profile)
    if found is not None or not pilot:
        return found, []
    try:
        return time_step(request, profile, most_tiles), []
    except NotTimed as error:
        return None, [f"the pilot has no answer: {error}"]


def _mesh(spec: Spec) -> str:
    replicas, each = spec.resources.replicas, spec.resources.ranks_per_replica
    return f" = {replicas} replicas x {each} rank{'s' * (each != 1)}" if replicas > 1 else ""


def forecast_all(specs: Sequence[Spec], task: Task, profile: ClusterProfile) -> None:
    """Work out in few processes what the plans of these specs will ask of their memory; they then find it kept."""
    able = []
    for spec in specs:
        # What plan refuses it refuses again, with its reason, when its turn comes.
        with suppress(PlanRefused):
            decided, _ = decide_patch(freeze_weights(spec))
            able += [] if any(checks.refusals(decided, task)) else [decided]
    forecast_choices(able, task, card_of(profile))


_JOB_NAME = re.compile(r"^#SBATCH --job-name=.*\n", re.MULTILINE)


def _scheduler(script: str) -> TestOnly:
    """What SLURM says; members of a sweep that differ in their name alone are asked about once."""
    return _asked(_JOB_NAME.sub("", script))


_asked = lru_cache(maxsize=256)(test_only)
