"""A sweep: which of its runs are done, under way or missing, and starting the missing ones.

On SLURM one job array per distinct resource request; locally a queue with a limit on how many run at once. What `done` means is
the caller's to say (`is_done` and `is_over`): this layer knows of no states.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dptrain.errors import PlanRefused, StateUnknown, SubmissionRejected
from dptrain.launch.lanes import Busy, lanes
from dptrain.launch.local import start_local
from dptrain.launch.slurm import submit_slurm
from dptrain.launch.snapshot import create_run, new_run_id
from dptrain.records.intent import read_intent
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
    others: tuple[str, ...] = ()
    """Names of further members that are the same run."""


def plan_members(
    loaded: LoadedSpec, task: Task, profile: ClusterProfile, *, ask_scheduler: bool = False
) -> tuple[list[PlannedMember], list[tuple[str, str]]]:
    """Every run of the grid, planned on its own; two that differ in nothing that matters are one.

    :param ask_scheduler: have SLURM look at the scripts.
    :return: the members, and (name, reason) of those for which there is no plan at all, such as `gpus: fit` without an answer.
    """
    from dptrain.plan.plan import forecast_all, make_plan

    planned: dict[str, PlannedMember] = {}
    unplanned: list[tuple[str, str]] = []
    members = expand(loaded.spec, task)
    # With `gpus: fit` every member looks for a number of its own.
    if profile.gpu_memory_gib is not None and not loaded.fit_gpus:
        forecast_all([member.spec for member in members], task, profile)
    for member in members:
        own = replace(loaded, spec=member.spec)
        refused = any(known.plan.refusals for known in planned.values())
        # One piece of advice: looking for it takes forecasts of its own.
        fixed = None if refused else tuple(member.values)
        try:
            plan = make_plan(own, task, profile, fixed=fixed, ask_scheduler=ask_scheduler)
        except PlanRefused as error:
            unplanned.append((member.spec.name, str(error)))
            continue
        # Plan knows what `patch: fit` is; the same run may have been asked for by its number.
        mark = plan.fingerprint
        if (first := planned.get(mark)) is not None:
            planned[mark] = replace(first, others=(*first.others, member.spec.name))
        else:
            planned[mark] = PlannedMember(member=replace(member, fingerprint=mark), loaded=own, plan=plan)
    return list(planned.values()), unplanned


@dataclass(frozen=True, kw_only=True)
class Starter:
    """Makes the run directories of a sweep's members."""

    profile: ClusterProfile
    sweep: str
    again: Mapping[str, RunPaths]
    """Fingerprint -> a run that was made and never submitted: its folder is used again."""

    def create(self, planned: PlannedMember, refusal: str | None = None) -> RunPaths:
        """The run directory of one member.

        :param refusal: why it will not be submitted.
        """
        mark = planned.member.fingerprint
        return create_run(
            planned.plan,
            planned.loaded,
            self.profile,
            sweep=self.sweep,
            fingerprint=mark,
            refusal=refusal,
            again=self.again.get(mark),
        )


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """What became of the members of one resource request; their intents name their jobs."""

    runs: list[RunPaths]
    error: SubmissionRejected | StateUnknown | None
    """Why some or all of them have no job, or may have one."""


def submit_arrays(
    members: Sequence[PlannedMember],
    task: Task,
    starter: Starter,
    max_parallel: int | None,
    busy: Sequence[Busy] = (),
) -> Iterator[Submitted]:
    """Submit the members, those of one resource request together, and tell of each request before the next one.

    A request that SLURM refuses keeps no other from being submitted. Where SLURM does not answer nothing further is tried, and the
    members of later requests have no run.

    :param max_parallel: at most so many runs at once, over all arrays.
    :param busy: lanes of the sweep that an earlier command submitted and that are not over: they have their shares of the limit.
    """
    groups = list(group_by_request(members).values())
    for lane in lanes([len(group) for group in groups], max_parallel, busy):
        heads: list[str] = []
        name = None if lane.max_parallel is None else new_run_id(f"{starter.sweep}-lane")
        for group in (groups[number] for number in lane.groups):
            paths = [starter.create(planned) for planned in group]
            plan = group[0].plan if len(group) == 1 else _array_plan(group, task, starter, lane.max_parallel)
            folder = paths[0].dir.parent / new_run_id(f"{starter.sweep}-arrays")
            error: SubmissionRejected | StateUnknown | None = None
            try:
                submit_slurm(
                    paths,
                    plan,
                    starter.profile,
                    max_parallel=lane.max_parallel,
                    folder=folder,
                    heads=heads,
                    after=lane.after,
                    lane=name,
                )
            except (SubmissionRejected, StateUnknown) as refused:
                error = refused
            yield Submitted(runs=paths, error=error)
            if isinstance(error, StateUnknown):
                return


def group_by_request(members: Sequence[PlannedMember]) -> Mapping[JobRequest, list[PlannedMember]]:
    """Members by what they ask the scheduler for, whatever they are called."""
    groups: dict[JobRequest, list[PlannedMember]] = {}
    for planned in members:
        assert planned.plan.job is not None
        groups.setdefault(replace(planned.plan.job, name=""), []).append(planned)
    return groups


def _array_plan(group: Sequence[PlannedMember], task: Task, starter: Starter, max_parallel: int | None) -> Plan:
    from dptrain.plan.plan import make_plan

    first = group[0].loaded
    array = ArrayRequest(count=len(group), max_parallel=max_parallel)
    return make_plan(replace(first, spec=replace(first.spec, name=starter.sweep)), task, starter.profile, array)


class LocalQueue:
    """Starts local runs, at most so many at once."""

    def __init__(
        self,
        members: Sequence[PlannedMember],
        starter: Starter,
        max_parallel: int | None,
        run_of: Callable[[str], RunPaths | None],
        running: Sequence[RunPaths] = (),
        known: Mapping[str, RunPaths] | None = None,
    ) -> None:
        """
        :param run_of: the run that stands for a fingerprint now; None: there is none.
        :param running: runs of the sweep that an earlier command has started: they take places, and are waited for.
        :param known: fingerprint -> the run that there was when the members were chosen.
        """
        self.waiting = list(members)
        self.starter = starter
        self.max_parallel = max_parallel or 1
        self.started: list[RunPaths] = []
        self.run_of = run_of
        self.running = list(running)
        self.known = known or {}

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
        if (other := self._started_elsewhere(planned.member.fingerprint)) is not None:
            self.running.append(other)
            return
        paths = self.starter.create(planned)
        self.started.append(paths)
        self.running.append(paths)
        start_local(paths, self.starter.profile)

    def _started_elsewhere(self, mark: str) -> RunPaths | None:
        """A run of the member that another command has started since the members were chosen: a queue may wait for hours."""
        now = self.run_of(mark)
        if now is None or now != self.known.get(mark):
            return now
        return now if mark in self.starter.again and read_intent(now).job_id is not None else None


def sweep_root(profile: ClusterProfile) -> Path:
    """The folder that holds the runs and the sweep's CSV."""
    return runs_root(profile.runs)
