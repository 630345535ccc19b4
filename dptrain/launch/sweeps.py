"""A sweep: which of its runs are done, under way or missing, and starting the missing ones.

On SLURM one job array per distinct resource request; locally a queue with a limit on how many run at once. What `done` means is
the caller's to say (`is_done` and `is_over`): this layer knows of no states.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dptrain.launch.local import start_local
from dptrain.launch.slurm import submit_slurm
from dptrain.launch.snapshot import create_run, new_run_id
from dptrain.records.paths import RunPaths, runs_root
from dptrain.scheduler.requests import ArrayRequest, JobRequest
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec
from dptrain.spec.schema import Task
from dptrain.spec.sweep import Member, expand

if TYPE_CHECKING:
    from dptrain.plan.plan import Plan

POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class PlannedMember:
    """One run of the sweep and its plan."""

    member: Member
    loaded: LoadedSpec
    plan: Plan


def plan_members(loaded: LoadedSpec, task: Task, profile: ClusterProfile) -> list[PlannedMember]:
    """Every run of the grid, planned on its own; two that differ in nothing that matters are one."""
    from dptrain.plan.plan import forecast_all, make_plan

    planned: dict[str, PlannedMember] = {}
    members = expand(loaded.spec, task)
    if profile.gpu_memory_gib is not None:
        forecast_all([member.spec for member in members], task, profile.gpu_memory_gib)
    for member in members:
        own = replace(loaded, spec=member.spec)
        refused = any(known.plan.refusals for known in planned.values())
        # One piece of advice: looking for it takes forecasts of its own.
        plan = make_plan(own, task, profile, fixed=None if refused else tuple(member.values))
        # Plan knows what `patch: fit` is; the same run may have been asked for by its number.
        known = replace(member, fingerprint=plan.fingerprint)
        planned.setdefault(plan.fingerprint, PlannedMember(member=known, loaded=own, plan=plan))
    return list(planned.values())


def create_member(planned: PlannedMember, profile: ClusterProfile, sweep: str) -> RunPaths:
    """The run directory of one member."""
    mark = planned.member.fingerprint
    return create_run(planned.plan, planned.loaded, profile, sweep=sweep, fingerprint=mark)


def submit_arrays(
    members: Sequence[PlannedMember], task: Task, profile: ClusterProfile, sweep: str, max_parallel: int | None
) -> list[RunPaths]:
    """Submit the members, those of one resource request together.

    :raises SubmissionRejected: by the first request that SLURM refuses; what is submitted stays, and the message lists it.
    """
    runs: list[RunPaths] = []
    for group in group_by_request(members).values():
        paths = [create_member(planned, profile, sweep) for planned in group]
        root = paths[0].dir.parent
        plan = group[0].plan if len(group) == 1 else _array_plan(group, task, profile, sweep, max_parallel)
        submit_slurm(paths, plan, profile, max_parallel=max_parallel, folder=root / new_run_id(f"{sweep}-arrays"))
        runs += paths
    return runs


def group_by_request(members: Sequence[PlannedMember]) -> Mapping[JobRequest, list[PlannedMember]]:
    """Members by what they ask the scheduler for, whatever they are called."""
    groups: dict[JobRequest, list[PlannedMember]] = {}
    for planned in members:
        assert planned.plan.job is not None
        groups.setdefault(replace(planned.plan.job, name=""), []).append(planned)
    return groups


def _array_plan(
    group: Sequence[PlannedMember], task: Task, profile: ClusterProfile, sweep: str, max_parallel: int | None
) -> Plan:
    from dptrain.plan.plan import make_plan

    first = group[0].loaded
    array = ArrayRequest(count=len(group), max_parallel=max_parallel)
    return make_plan(replace(first, spec=replace(first.spec, name=sweep)), task, profile, array)


class LocalQueue:
    """Starts local runs, at most so many at once."""

    def __init__(
        self, members: Sequence[PlannedMember], profile: ClusterProfile, sweep: str, max_parallel: int | None
    ) -> None:
        self.waiting = list(members)
        self.profile, self.sweep = profile, sweep
        self.max_parallel = max_parallel or 1
        self.started: list[RunPaths] = []
        self.running: list[RunPaths] = []

    def run(self, is_over: Callable[[RunPaths], bool]) -> None:
        """Start the members in turn and return when the last has ended.

        :param is_over: whether a started run has ended; asked twice a second.
        """
        while self.waiting or self.running:
            self.running = [paths for paths in self.running if not is_over(paths)]
            while self.waiting and len(self.running) < self.max_parallel:
                self._start(self.waiting.pop(0))
            if self.running:
                time.sleep(POLL_S)

    def _start(self, planned: PlannedMember) -> None:
        paths = create_member(planned, self.profile, self.sweep)
        self.started.append(paths)
        self.running.append(paths)
        start_local(paths, self.profile)


def sweep_root(profile: ClusterProfile) -> Path:
    """The folder that holds the runs and the sweep's CSV."""
    return runs_root(profile.runs)
