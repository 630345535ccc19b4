"""What `sweep` does: find out what is missing, run that, and write one CSV of all results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrain.cli.follow import Bars, end_after_interrupt
from dptrain.cli.output import note, print_json, print_table, say
from dptrain.cli.start import Options, read_spec
from dptrain.errors import (
    Interrupted,
    PlanRefused,
    RunFailed,
    StateUnknown,
    SubmissionRejected,
    UsageError,
    WaitTimeout,
)
from dptrain.records.index import called
from dptrain.records.paths import RunPaths
from dptrain.records.sweeps import SweepMember, SweepRecord, write_sweep
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.schema import Task
from dptrain.status.model import RunStatus, first_word

if TYPE_CHECKING:
    from dptrain.launch.sweeps import PlannedMember, Starter


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The members of a sweep and the run of each that counts."""

    name: str
    task: Task
    profile: ClusterProfile
    members: list[PlannedMember]
    unplanned: list[tuple[str, str]]
    """(name, reason) of members for which there is no plan."""
    known: dict[str, tuple[RunPaths, RunStatus]]
    """Fingerprint -> its run, as `runs_of` chooses it."""

    def missing(self, retry: bool) -> list[PlannedMember]:
        """Members to run now: never run, only with injected faults, or, with `retry`, failed."""
        return [m for m in self.members if self._is_missing(m.member.fingerprint, retry)]

    def _is_missing(self, fingerprint: str, retry: bool) -> bool:
        found = self.known.get(fingerprint)
        if found is None or first_word(found[1].state) == "never-submitted":
            return True
        if found[1].ended and found[1].faults is not None:
            return True
        return retry and found[1].bad and found[1].over

    @property
    def called(self) -> str:
        """The sweep as commands take it."""
        from dptrain.launch.sweeps import sweep_root

        return called(sweep_root(self.profile) / self.name)

    def starter(self) -> Starter:
        """What makes their run directories; those that were never submitted are used again."""
        from dptrain.launch.sweeps import Starter

        never = {f: p for f, (p, s) in self.known.items() if first_word(s.state) == "never-submitted"}
        return Starter(profile=self.profile, sweep=self.name, again=never)

    def found(self) -> list[tuple[RunPaths, RunStatus]]:
        """The runs there are, in the order of the members."""
        return [self.known[f] for m in self.members if (f := m.member.fingerprint) in self.known]


def sweep(path: Path, options: Options, *, max_parallel: int | None, retry: bool) -> None:
    """Run what is missing of the sweep. A member that cannot run is skipped with its reason, and harms no other."""
    from dptrain.launch.locks import sweep_lock
    from dptrain.launch.sweeps import sweep_root

    grid = _read_grid(path, options)
    slurm = grid.profile.launcher == "slurm"
    options.check_waiting(slurm)
    root = sweep_root(grid.profile)
    if options.dry_run:
        grid = _refresh(grid)
        able, unable = _divide(grid, grid.missing(retry), options.force)
        _print_members(grid, able, unable, options)
        _check_refused(grid, unable)
        if unable:
            raise RunFailed(f"plan refuses {len(unable)} of {len(grid.members)} members; the others would run")
        return
    with sweep_lock(root, grid.name, note, options.timeout_s):
        write_sweep(root, _record(grid))
        grid = _adopt(_refresh(grid)) if slurm else _refresh(grid)
        able, unable = _divide(grid, grid.missing(retry), options.force)
        _check_refused(grid, unable)
        starter = grid.starter()
        for planned in unable:
            starter.create(planned, "plan refuses: " + "; ".join(planned.plan.refusals))
        if slurm and able:
            _submit(grid, starter, able, max_parallel)
        elif not slurm:
            _run_queue(grid, starter, able, max_parallel, options.timeout_s)
    if options.wait and slurm:
        _wait(grid, options)
    _conclude(_refresh(grid), options)


def _read_grid(path: Path, options: Options) -> Grid:
    from dptrain.launch.cluster import choose_cluster
    from dptrain.launch.sweeps import plan_members

    loaded = read_spec(path, options)
    if not loaded.spec.sweep:
        raise UsageError(f"{path} has no sweep\n    write: sweep: {{resources.gpus: [1, 2]}}")
    own = options.converted.own_profile if options.converted is not None else None
    if own is not None and own.name == loaded.spec.cluster:
        profile, reason = own, "made from the parallel-config"
    else:
        profile, reason = choose_cluster(options.cluster, loaded.spec)
    note(f"cluster {profile.name}: {reason}")
    task: Task = "infer" if loaded.spec.train is None else "train"
    members, unplanned = plan_members(loaded, task, profile, ask_scheduler=options.dry_run)
    if not members:
        raise PlanRefused("plan refuses every run of the sweep:\n" + "\n".join(f"  {n}: {r}" for n, r in unplanned))
    for name, why in unplanned:
        note(f"skipped:  {name}: {why}")
    for planned in members:
        for other in planned.others:
            note(f"{other} is the same run as {planned.member.spec.name}: it runs once")
    return Grid(name=loaded.spec.name, task=task, profile=profile, members=members, unplanned=unplanned, known={})


def _record(grid: Grid) -> SweepRecord:
    members = [SweepMember(name=m.member.spec.name, fingerprint=m.member.fingerprint) for m in grid.members]
    return SweepRecord(sweep=grid.name, members=tuple(members))


def _refresh(grid: Grid) -> Grid:
    """Look again at the runs of the grid's members."""
    from dptrain.launch.sweeps import sweep_root
    from dptrain.status.state import Scheduler, run_status
    from dptrain.status.sweeps import runs_of

    # `_adopt` judges of what was not confirmed, and a dry run writes nothing.
    scheduler = Scheduler(confirms=False)
    runs = runs_of([m.member.fingerprint for m in grid.members], sweep_root(grid.profile), scheduler, grid.name)
    statuses = run_status(list(runs.values()), Scheduler(confirms=False))
    return replace(grid, known=dict(zip(runs, zip(runs.values(), statuses, strict=True), strict=True)))


def _adopt(grid: Grid) -> Grid:
    """Find the jobs of members whose command was killed while it submitted them; the sweep's lock must be held."""
    from dptrain.launch.adopt import adopt, left_behind
    from dptrain.records.intent import read_intent

    readable = [paths for paths, status in grid.known.values() if first_word(status.state) != "unknown"]
    lost = [p for p in readable if (i := read_intent(p)).unconfirmed and left_behind(p, i, grid.name)]
    if not lost:
        return grid
    found = adopt(lost)
    note(f"{len(lost)} runs were left by a command that was killed: {len(found)} of them have a job")
    return _refresh(grid)


def _divide(
    grid: Grid, missing: Sequence[PlannedMember], force: bool
) -> tuple[list[PlannedMember], list[PlannedMember]]:
    """(to run, to skip), once said; with `force` only what cannot even be asked for is skipped."""
    able: list[PlannedMember] = []
    unable: list[PlannedMember] = []
    for planned in missing:
        possible = planned.plan.job is not None or grid.profile.launcher == "local"
        (able if not planned.plan.refusals or (force and possible) else unable).append(planned)
    _say_counts(grid, able, unable)
    for text in dict.fromkeys(text for planned in able for text in planned.plan.notes):
        note(f"note: {text}")
    for planned in able:
        for reason in planned.plan.refusals:
            note(f"forced although {planned.member.spec.name}: {reason}")
    for planned in unable:
        note(f"skipped:{_refusal_line(planned)}")
    return able, unable


def _check_refused(grid: Grid, unable: Sequence[PlannedMember]) -> None:
    """:raises PlanRefused: where no member can run."""
    if unable and len(unable) == len(grid.members):
        raise PlanRefused("plan refuses every run of the sweep:\n" + "\n".join(map(_refusal_line, unable)))


def _refusal_line(planned: PlannedMember) -> str:
    return f"  {planned.member.spec.name}: " + "; ".join(planned.plan.refusals)


def _say_counts(grid: Grid, able: Sequence[PlannedMember], unable: Sequence[PlannedMember]) -> None:
    now = {m.member.fingerprint for m in [*able, *unable]}
    others = [status for fingerprint, (_, status) in grid.known.items() if fingerprint not in now]
    done = sum(status.state == "completed" for status in others)
    failed = sum(status.bad for status in others)
    text = f"sweep {grid.name}: {len(grid.members)} runs, {done} completed, {len(others) - done - failed} under way"
    text += f", {failed} failed or cancelled (again with --retry)" if failed else ""
    text += f", {len(unable)} refused by plan" if unable else ""
    note(f"{text}, {len(able)} to run")


def _print_members(
    grid: Grid, able: Sequence[PlannedMember], unable: Sequence[PlannedMember], options: Options
) -> None:
    new = dict.fromkeys((m.member.fingerprint for m in able), "to run")
    new |= dict.fromkeys((m.member.fingerprint for m in unable), "refused by plan")
    rows = []
    for planned in grid.members:
        mark = planned.member.fingerprint
        state = new.get(mark) or (grid.known[mark][1].state if mark in grid.known else "-")
        rows.append((planned.member.spec.name, str(planned.plan.world_size), str(planned.plan.steps), state))
    if options.as_json:
        reasons = {m.member.spec.name: list(m.plan.refusals) for m in grid.members}
        members = [
            {"member": m, "ranks": int(r), "steps": int(s), "state": state, "refusals": reasons[m]}
            for m, r, s, state in rows
        ]
        print_json(members if options.converted is None else {"members": members, **_of_source(options)})
    else:
        print_table(("MEMBER", "RANKS", "STEPS", "STATE"), rows)


def _of_source(options: Options) -> dict[str, Any]:
    """What a spec made from another file does not have."""
    return {} if options.converted is None else {"unmapped": options.converted.unmapped}


def _submit(grid: Grid, starter: Starter, able: Sequence[PlannedMember], max_parallel: int | None) -> None:
    """Submit, saying after each request which job every member has: what is said stays true whatever comes after it.

    :raises SubmissionRejected: where SLURM took none of them.
    :raises StateUnknown: where SLURM did not answer; the members after it were not tried.
    """
    from dptrain.launch.lanes import busy_lanes
    from dptrain.launch.sweeps import submit_arrays

    busy = busy_lanes(
        [paths for paths, status in grid.known.values() if status.launcher == "slurm" and not status.ended]
    )
    tried: list[RunPaths] = []
    with_job = 0
    rejected: list[str] = []
    for submitted in submit_arrays(able, grid.task, starter, max_parallel, busy):
        tried += submitted.runs
        with_job += sum(_say_job(paths) for paths in submitted.runs)
        if isinstance(submitted.error, StateUnknown):
            raise StateUnknown(_unknown_text(submitted.error, with_job, len(tried), len(able)))
        if submitted.error is not None:
            rejected.append(str(submitted.error))
    if rejected and not with_job:
        raise SubmissionRejected("\n".join(dict.fromkeys(rejected)))


def _say_job(paths: RunPaths) -> bool:
    """Say which job a run has; whether it has one for certain."""
    from dptrain.records.intent import read_intent

    intent = read_intent(paths)
    if intent.job_id is not None:
        note(f"{paths.run_id}: job {intent.job_id}")
    elif intent.submission == "submitting" and intent.comment is not None:
        note(f"{paths.run_id}: not known whether it has a job (comment {intent.comment})")
    else:
        note(f"{paths.run_id}: not submitted")
    return intent.job_id is not None


def _unknown_text(error: StateUnknown, with_job: int, tried: int, able: int) -> str:
    return (
        f"{error}\n    of {able} members {with_job} have a job, {tried - with_job} have none or may have one, "
        f"{able - tried} were not tried\n"
        "    write the same command again when SLURM answers: it finds jobs that were accepted and submits the rest, none twice"
    )


def _run_queue(
    grid: Grid, starter: Starter, able: Sequence[PlannedMember], max_parallel: int | None, timeout_s: float | None
) -> None:
    """Run the members here, following them; Ctrl-C cancels those that run and starts no other."""
    from dptrain.cli.follow import ending_signals
    from dptrain.launch.sweeps import LocalQueue, sweep_root
    from dptrain.status.state import run_status
    from dptrain.status.sweeps import runs_of

    under_way = [paths for paths, status in grid.known.values() if _runs_here(status)]
    _say_shared(able, min(max_parallel or 1, len(able) + len(under_way)))
    known = {fingerprint: paths for fingerprint, (paths, _) in grid.known.items()}
    root = sweep_root(grid.profile)

    def run_of(mark: str) -> RunPaths | None:
        return runs_of([mark], root, sweep=grid.name).get(mark)

    queue = LocalQueue(able, starter, max_parallel, run_of, under_way, known)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with Bars.or_lines() as shown, ending_signals():

        def is_over(paths: RunPaths) -> bool:
            (status,) = run_status([paths])
            shown.update([status])
            if deadline is not None and time.monotonic() > deadline:
                going = ", ".join(p.run_id for p in queue.running)
                raise WaitTimeout(f"waited {timeout_s:.0f} s; going on: {going}; not started: {len(queue.waiting)}")
            return status.ended or not paths.dir.is_dir()

        try:
            queue.run(is_over)
        except KeyboardInterrupt:
            words = [end_after_interrupt(paths) for paths in queue.running]
            words.append(
                f"not started: {len(queue.waiting)}; the same command starts them, with --retry the cancelled ones too"
            )
            raise Interrupted("interrupted; " + "; ".join(words)) from None


def _say_shared(able: Sequence[PlannedMember], at_once: int) -> None:
    """Say it where members will share this machine, so that their times cannot be compared."""
    if able and at_once > 1:
        shared = f"{at_once} runs at once share this machine: their times say nothing of scaling"
        note(f"note: {shared}; for times write --max-parallel 1")


def _runs_here(status: RunStatus) -> bool:
    """Whether it takes a place here, as a stalled run does, and one whose last ranks are ending; of an unknown one nobody will hear."""
    return status.launcher == "local" and not status.ended and first_word(status.state) != "unknown"


def _wait(grid: Grid, options: Options) -> None:
    from dptrain.cli.follow import watch

    runs = [paths for paths, status in _refresh(grid).known.values() if not status.ended]
    if not runs:
        return
    try:
        watch(runs, options.timeout_s)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; the {len(runs)} submitted runs go on\n"
            f"    look: dptrain status {grid.called}    end: dptrain cancel {grid.called}"
        ) from None


def _conclude(grid: Grid, options: Options) -> None:
    """Write the CSV of every member that has a run, and say what is not completed.

    :raises RunFailed: where a run did not do what it was asked for.
    """
    from dptrain.launch.sweeps import sweep_root
    from dptrain.report.rows import result_rows
    from dptrain.report.tables import write_csv

    found = grid.found()
    path = sweep_root(grid.profile) / f"sweep-{grid.name}.csv"
    rows = result_rows([paths for paths, _ in found], [status for _, status in found])
    write_csv(path, rows)
    if options.as_json:
        runs = [status.to_json() for _, status in found]
        print_json({"sweep": grid.name, "csv": str(path), "runs": runs, **_of_source(options)})
    else:
        done = sum(status.state == "completed" and status.faults is None for _, status in found)
        say(f"{done} of {len(grid.members)} completed; results: {path}")
        if faulty := sum(status.faults is not None for _, status in found):
            say(f"{faulty} with injected faults do not count: the same command without DPTRAIN_FAULT runs them")
        if any(not status.ended for _, status in found):
            say(f"look: dptrain status {grid.called}    end: dptrain cancel {grid.called}")
    bad = [_why(status) for _, status in found if status.bad]
    bad += [f"{name}: not planned: {reason}" for name, reason in grid.unplanned]
    if bad:
        raise RunFailed("\n".join(bad))


def _why(status: RunStatus) -> str:
    """How a run ended, and why as far as one line says it."""
    why = status.failure.message if status.failure else status.reason
    first = (why or "").partition("\n")[0]
    return f"{status.run}: {status.state}" + (f": {first}" if first else "")
