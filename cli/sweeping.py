"""What `sweep` does: find out what is missing, run that, and write one CSV of all results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dptrain.cli.follow import Bars, end_after_interrupt
from dptrain.cli.output import note, print_json, print_table, say
from dptrain.cli.start import Options, check, read_spec
from dptrain.errors import Interrupted, RunFailed, UsageError, WaitTimeout
from dptrain.records.paths import RunPaths
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.schema import Task
from dptrain.status.model import RunStatus, first_word

if TYPE_CHECKING:
    from dptrain.launch.sweeps import PlannedMember


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The members of a sweep and the newest run of each that counts."""

    name: str
    task: Task
    profile: ClusterProfile
    members: list[PlannedMember]
    known: dict[str, tuple[RunPaths, RunStatus]]
    """Fingerprint -> its newest run, completed ones first."""

    def missing(self, retry: bool) -> list[PlannedMember]:
        """Members to run now: never run, or, with `retry`, failed."""
        return [m for m in self.members if self._is_missing(m.member.fingerprint, retry)]

    def _is_missing(self, fingerprint: str, retry: bool) -> bool:
        found = self.known.get(fingerprint)
        if found is None or first_word(found[1].state) == "never-submitted":
            return True
        return retry and found[1].bad and found[1].over


def sweep(path: Path, options: Options, *, max_parallel: int | None, retry: bool) -> None:
    """Run what is missing of the sweep."""
    from dptrain.launch.locks import sweep_lock
    from dptrain.launch.sweeps import sweep_root

    grid = _read_grid(path, options)
    options.check_waiting(grid.profile.launcher == "slurm")
    if options.dry_run:
        grid = _refresh(grid)
        missing = _missing(grid, retry, options.force)
        _print_members(grid, missing, options.as_json)
        return
    with sweep_lock(sweep_root(grid.profile), grid.name, note, options.timeout_s):
        grid = _refresh(grid)
        missing = _missing(grid, retry, options.force)
        if missing and grid.profile.launcher == "slurm":
            _submit(grid, missing, max_parallel)
        elif missing:
            _run_queue(grid, missing, max_parallel, options.timeout_s)
    if options.wait and grid.profile.launcher == "slurm":
        _wait(grid, options)
    _conclude(_refresh(grid), options)


def _missing(grid: Grid, retry: bool, force: bool) -> list[PlannedMember]:
    """Members to run now, once said and checked."""
    missing = grid.missing(retry)
    _say_counts(grid, missing)
    check([planned.plan for planned in missing], force)
    return missing


def _read_grid(path: Path, options: Options) -> Grid:
    from dptrain.launch.cluster import choose_cluster
    from dptrain.launch.sweeps import plan_members

    loaded = read_spec(path, options)
    if not loaded.spec.sweep:
        raise UsageError(f"{path} has no sweep\n    write: sweep: {{resources.gpus: [1, 2]}}")
    profile, reason = choose_cluster(options.cluster, loaded.spec)
    note(f"cluster {profile.name}: {reason}")
    task: Task = "infer" if loaded.spec.train is None else "train"
    members = plan_members(loaded, task, profile)
    return Grid(name=loaded.spec.name, task=task, profile=profile, members=members, known={})


def _refresh(grid: Grid) -> Grid:
    """Look again at the runs of the grid's members."""
    from dptrain.launch.sweeps import sweep_root
    from dptrain.records.index import find_runs
    from dptrain.records.intent import read_intent
    from dptrain.status.state import run_status

    wanted = {m.member.fingerprint for m in grid.members}
    candidates = []
    for paths in find_runs(sweep_root(grid.profile)):
        try:
            intent = read_intent(paths)
        except (OSError, ValueError):  # a damaged run is none of ours to judge; status names it
            continue
        if intent.fingerprint in wanted and intent.submission != "dry-run":
            candidates.append((intent.fingerprint, paths))
    statuses = run_status([paths for _, paths in candidates])
    known: dict[str, tuple[RunPaths, RunStatus]] = {}
    for (fingerprint, paths), status in zip(candidates, statuses, strict=True):
        assert fingerprint is not None
        before = known.get(fingerprint)
        if before is None or before[1].state != "completed":
            known[fingerprint] = (paths, status)
    return Grid(name=grid.name, task=grid.task, profile=grid.profile, members=grid.members, known=known)


def _say_counts(grid: Grid, missing: Sequence[PlannedMember]) -> None:
    run_now = {m.member.fingerprint for m in missing}
    others = [
        s
        for m in grid.members
        if (f := m.member.fingerprint) in grid.known and f not in run_now
        for _, s in [grid.known[f]]
    ]
    done = sum(s.state == "completed" for s in others)
    failed = sum(s.bad for s in others)
    text = f"sweep {grid.name}: {len(grid.members)} runs, {done} completed, {len(others) - done - failed} under way"
    note(text + (f", {failed} failed (again with --retry)" if failed else "") + f", {len(missing)} to run")


def _print_members(grid: Grid, missing: Sequence[PlannedMember], as_json: bool) -> None:
    run_now = {m.member.fingerprint for m in missing}
    rows = []
    for planned in grid.members:
        known = grid.known.get(planned.member.fingerprint)
        state = "to run" if planned.member.fingerprint in run_now else known[1].state if known else "-"
        rows.append((planned.member.spec.name, str(planned.plan.world_size), str(planned.plan.steps), state))
    if as_json:
        print_json([{"member": m, "ranks": int(r), "steps": int(s), "state": state} for m, r, s, state in rows])
    else:
        print_table(("MEMBER", "RANKS", "STEPS", "STATE"), rows)


def _submit(grid: Grid, missing: Sequence[PlannedMember], max_parallel: int | None) -> None:
    from dptrain.launch.sweeps import submit_arrays
    from dptrain.records.intent import read_intent

    for paths in submit_arrays(missing, grid.task, grid.profile, grid.name, max_parallel):
        note(f"{paths.run_id}: job {read_intent(paths).job_id}")


def _run_queue(grid: Grid, missing: Sequence[PlannedMember], max_parallel: int | None, timeout_s: float | None) -> None:
    """Run the members here, following them; Ctrl-C cancels those that run and starts no other."""
    from dptrain.cli.follow import ending_signals
    from dptrain.launch.sweeps import LocalQueue
    from dptrain.status.state import run_status

    queue = LocalQueue(missing, grid.profile, grid.name, max_parallel)
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
            words.append(f"not started: {len(queue.waiting)}; the same command goes on with them")
            raise Interrupted("interrupted; " + "; ".join(words)) from None


def _wait(grid: Grid, options: Options) -> None:
    from dptrain.cli.follow import watch

    runs = [paths for paths, status in _refresh(grid).known.values() if not status.ended]
    if not runs:
        return
    try:
        watch(runs, options.timeout_s)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; the {len(runs)} submitted runs go on\n    look: dptrain sweep, dptrain status"
        ) from None


def _conclude(grid: Grid, options: Options) -> None:
    """Write the CSV of every member that has a run, and say what is not completed."""
    from dptrain.launch.sweeps import sweep_root
    from dptrain.report.results import result_rows, write_csv

    found = [grid.known[f] for m in grid.members if (f := m.member.fingerprint) in grid.known]
    path = sweep_root(grid.profile) / f"sweep-{grid.name}.csv"
    rows = result_rows([paths for paths, _ in found], [status for _, status in found])
    write_csv(path, rows)
    if options.as_json:
        print_json({"sweep": grid.name, "csv": str(path), "runs": [status.to_json() for _, status in found]})
    else:
        say(
            f"{sum(status.state == 'completed' for _, status in found)} of {len(grid.members)} completed; results: {path}"
        )
    bad = [status for _, status in found if status.bad]
    if bad:
        raise RunFailed("\n".join(f"{status.run}: {status.state}" for status in bad))
