"""`rehearse`: a small copy of the problem, run without a stop and run again with one, and whether both end alike."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrain.cli.follow import Bars, ending_signals
from dptrain.cli.output import note, print_json, print_table, say
from dptrain.cli.start import Options, Planned, check, launch, plan_spec, read_spec
from dptrain.errors import DptrainError, Interrupted, RunFailed, UsageError, WaitTimeout
from dptrain.records.faults import Fault, declared_faults
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.saves import long_save
from dptrain.spec.schema import Task
from dptrain.status.model import RunStatus
from dptrain.status.show import failure_text, number

if TYPE_CHECKING:
    from dptrain.plan.rehearsal import Change
    from dptrain.report.rehearsal import Comparison, Phase

SLOW_S = {"local": 2.0, "slurm": 10.0}
"""Seconds of each step after which the warning is due, so that it arrives before the last one: files are seen late on network disks."""
_STEPS_KEY = {"train": "train.steps", "infer": "algorithm.iterations"}
HEADER = ("RUN", "PHASE", "SECONDS")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is rehearsed."""

    whole: Planned
    """The problem of the spec."""
    small: Planned
    """The one that runs."""
    changes: tuple[Change, ...]

    @property
    def warned_after(self) -> int:
        from dptrain.plan.rehearsal import warned_after

        return warned_after(self.small.plan.steps)


@dataclass(kw_only=True)
class Pair:
    """The two runs."""

    whole: RunPaths
    stopped: RunPaths
    asked_s: dict[str, float] = field(default_factory=dict)
    """Run id -> when it was submitted."""
    warned_s: float | None = None
    """When the warning was sent."""


def rehearse(path: Path, task: Task | None, options: Options) -> None:
    """Shrink, run, run again with a stop, compare, and say how it went.

    :raises RunFailed: where a run did not end well, was not stopped, or ended with other numbers.
    """
    stage = plan_rehearsal(path, task, options)
    note(f"cluster {stage.small.profile.name}: {stage.small.cluster_reason}")
    check([stage.whole.plan], options.force)
    check([stage.small.plan], options.force)
    if stage.warned_after < 1:
        steps = stage.small.plan.steps
        raise UsageError(
            f"{steps} steps have no middle to stop in\n    write: --set {_STEPS_KEY[stage.small.plan.task]}=8"
        )
    for change in stage.changes:
        note(f"rehearsed with {change.key}: {change.value} ({change.reason})")
    pair = _make_runs(stage)
    statuses = _run(stage, pair, options)
    _conclude(stage, pair, statuses, options.as_json)


def plan_rehearsal(path: Path, task: Task | None, options: Options) -> Stage:
    """The plan of the spec, and that of its small copy; a sweep's values are left out."""
    from dptrain.plan.plan import make_plan
    from dptrain.plan.rehearsal import changes

    if read_spec(path, options).spec.sweep:
        note("the spec has a sweep; this is a rehearsal without one")
        options = replace(options, overrides=(*options.overrides, "sweep=null"))
    whole = plan_spec(path, task, options)
    made = tuple(changes(whole.loaded, whole.plan))
    loaded = read_spec(path, replace(options, overrides=(*options.overrides, *(c.override for c in made))))
    keys = {change.key for change in made}
    overrides = tuple(replace(o, origin="rehearse") if o.key in keys else o for o in loaded.overrides)
    loaded = replace(loaded, overrides=overrides)
    plan = make_plan(loaded, whole.plan.task, whole.profile)
    return Stage(whole=whole, small=replace(whole, loaded=loaded, plan=plan), changes=made)


def _make_runs(stage: Stage) -> Pair:
    from dptrain.launch.snapshot import create_run

    plan, profile = stage.small.plan, stage.small.profile
    if (own := declared_faults(os.environ, plan.world_size)) is not None:
        raise UsageError(
            f"a rehearsal stops its run by itself, and DPTRAIN_FAULT says {own}\n    write: unset DPTRAIN_FAULT"
        )
    # Without it a run of milliseconds would be over before the warning reaches it.
    seconds = min(SLOW_S[profile.launcher], plan.spec.run.stall_timeout_s / 2)
    slow = str(Fault(kind="slow", step=stage.warned_after + 1, seconds=seconds))
    made = [
        create_run(plan, stage.small.loaded, profile, name=f"{plan.spec.name}-{kind}", faults=faults)
        for kind, faults in (("whole", None), ("stopped", slow))
    ]
    return Pair(whole=made[0], stopped=made[1])


def _run(stage: Stage, pair: Pair, options: Options) -> list[RunStatus]:
    """Both runs to their ends: on SLURM both in the queue at once, on this machine one after the other."""
    from dptrain.status.wait import wait_for

    slurm = stage.small.profile.launcher == "slurm"
    deadline = None if options.timeout_s is None else time.monotonic() + options.timeout_s
    statuses = []
    started: list[RunPaths] = []
    with _ended_afterwards(started, options.timeout_s):
        for group in [[pair.whole, pair.stopped]] if slurm else [[pair.whole], [pair.stopped]]:
            for paths in group:
                started.append(paths)
                pair.asked_s[paths.run_id] = time.time()
                launch(stage.small, paths)
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            with Bars.or_lines() as shown:

                def update(seen: list[RunStatus], shown: Any = shown) -> None:
                    shown.update(seen)
                    _warn_when_due(pair, seen, stage.warned_after)

                statuses += wait_for(group, timeout_s=left_s, on_update=update)
            if any(status.state != "completed" for status in statuses):
                break
    return statuses


def _warn_when_due(pair: Pair, seen: Sequence[RunStatus], after: int) -> None:
    from dptrain.launch.warning import warn

    status = next((s for s in seen if s.run == pair.stopped.run_id), None)
    if status is None or pair.warned_s is not None or status.ended or status.step < after:
        return
    pair.warned_s = time.time()
    warn(pair.stopped)
    note(f"{status.run}: step {status.step} is made; warned, as the scheduler warns before it takes the nodes away")


@contextmanager
def _ended_afterwards(started: Sequence[RunPaths], timeout_s: float | None) -> Iterator[None]:
    """Whatever goes wrong, nothing of a rehearsal is left running."""
    try:
        with ending_signals():
            yield
    except BaseException as error:
        said = "; ".join(_end(paths) for paths in started)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; {said}") from None
        if isinstance(error, WaitTimeout):
            raise WaitTimeout(f"the rehearsal was not over after {timeout_s:.0f} s; {said}") from None
        note(said)
        raise


def _end(paths: RunPaths) -> str:
    from dptrain.launch.cancel import cancel

    try:
        if read_intent(paths).job_id is None:
            return f"{paths.run_id}: nothing was started"
        return cancel(paths)
    except (DptrainError, OSError, ValueError) as error:
        return str(error)


def _conclude(stage: Stage, pair: Pair, statuses: Sequence[RunStatus], as_json: bool) -> None:
    """Print what was found.

    :raises RunFailed: where anything is not as it should be.
    """
    from dptrain.report.rehearsal import compare, phases

    made = {status.run: status for status in statuses}
    runs = [paths for paths in (pair.whole, pair.stopped) if paths.run_id in made]
    failed = [failure_text(made[p.run_id], p) for p in runs if made[p.run_id].state != "completed"]
    problem = "\n".join(failed) or _not_stopped(pair)
    comparison = None if failed else compare(pair.whole, pair.stopped, stage.small.plan.spec.resources.precision)
    spent = [
        phase
        for paths, run, warned_s in ((pair.whole, "uninterrupted", None), (pair.stopped, "preempted", pair.warned_s))
        if paths.run_id in pair.asked_s
        for phase in phases(paths, run, pair.asked_s[paths.run_id], warned_s)
    ]
    equal = comparison is not None and comparison.equal and problem is None
    if as_json:
        print_json(_to_json(stage, pair, comparison, spent, equal, problem))
    else:
        _print(stage, pair, comparison, spent)
        if equal and comparison is not None:
            bits = (
                "to the bit"
                if comparison.same_bits
                else f"to rounding (closer than {comparison.tolerance:g}, relative)"
            )
            say(f"equal {bits}: stopped and continued, the run ends as without a stop")
    if problem is not None:
        raise RunFailed(f"the rehearsal failed: {problem}")
    if not equal:
        raise RunFailed(
            "the rehearsal failed: stopped and continued, the run ends with other numbers than without a stop"
        )


def _not_stopped(pair: Pair) -> str | None:
    """Why the second run is no rehearsal of a stop; None: it was stopped and went on."""
    from dptrain.report.rehearsal import was_warned

    if len(pair.stopped.attempts()) > 1:
        return None
    if pair.warned_s is None:
        return f"{pair.stopped.run_id} was over before it could be warned"
    if not was_warned(pair.stopped):
        return f"{pair.stopped.run_id}: the warning was sent, and no rank has seen it; what stands between srun and Python?"
    return f"{pair.stopped.run_id} was warned, and was not started again"


def _save_line(stage: Stage, pair: Pair) -> tuple[str, dict[str, float | None]]:
    """The save against the time that a warning leaves for it, in words and in numbers."""
    from dptrain.plan.rehearsal import save_ratio
    from dptrain.report.rehearsal import save_seconds

    lead_s = stage.whole.plan.spec.run.signal_lead_s
    took_s, ratio = save_seconds(pair.stopped), save_ratio(stage.whole.plan, stage.small.plan)
    expected_s = None if took_s is None else took_s * ratio
    numbers = {"seconds": took_s, "ratio": ratio, "expected_s": expected_s, "signal_lead_s": float(lead_s)}
    if took_s is None or expected_s is None:
        return "save: none was made", numbers
    line = f"save: {took_s:.3g} s; run.signal_lead_s leaves {lead_s} s"
    if ratio > 1:
        line += f"; that of the whole image has {ratio:.3g} times the bytes, about {expected_s:.3g} s"
    warning = long_save(expected_s, lead_s)
    return line + (f"\nwarning: {warning}" if warning else ""), numbers


def _print(stage: Stage, pair: Pair, comparison: Comparison | None, spent: Sequence[Phase]) -> None:
    plan = stage.small.plan
    say(
        f"{plan.task} {stage.whole.plan.spec.name}, rehearsed on {plan.world_size} rank{'s' * (plan.world_size != 1)}, "
        f"layout {plan.spec.resources.layout}, cluster {stage.small.profile.name}"
    )
    print_table(HEADER, [(phase.run, phase.phase, number(phase.seconds, ".2f")) for phase in spent])
    say(_save_line(stage, pair)[0])
    for item in comparison.items if comparison is not None else ():
        say(item.line())
    say(f"kept: {pair.whole.dir}")
    say(f"kept: {pair.stopped.dir}")


def _to_json(
    stage: Stage, pair: Pair, comparison: Comparison | None, spent: Sequence[Phase], equal: bool, problem: str | None
) -> dict[str, Any]:
    compared = (
        comparison.to_json() if comparison is not None else {"to_the_bit": None, "tolerance": None, "compared": []}
    )
    return {
        **compared,
        "equal": equal,
        "problem": problem,
        "task": stage.small.plan.task,
        "cluster": stage.small.profile.name,
        "world_size": stage.small.plan.world_size,
        "warned_after": stage.warned_after,
        "changes": [asdict(change) for change in stage.changes],
        "phases": [asdict(phase) for phase in spent],
        "save": _save_line(stage, pair)[1],
        "runs": {"uninterrupted": str(pair.whole.dir), "preempted": str(pair.stopped.dir)},
    }
