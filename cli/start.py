"""From a spec to a running job: what train and infer share. Plan, then submit that plan; a dry run stops in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dptrain.cli.output import note, print_json, say
from dptrain.errors import PlanRefused, UsageError
from dptrain.records.paths import RunPaths
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.schema import Task

if TYPE_CHECKING:
    from dptrain.plan.plan import Plan
    from dptrain.spec.benchopt.convert import Converted
    from dptrain.spec.load import LoadedSpec


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to start a run: the flags of train, infer and sweep."""

    overrides: tuple[str, ...] = ()
    cluster: str | None = None
    name: str | None = None
    dry_run: bool = False
    detach: bool = False
    wait: bool = False
    timeout_s: float | None = None
    force: bool = False
    as_json: bool = False
    converted: Converted | None = None
    """The spec comes from here instead of a file."""

    def __post_init__(self) -> None:
        if self.detach and (self.wait or self.timeout_s is not None):
            raise UsageError("--detach returns at once, --wait and --timeout wait: use one of them")

    def check_waiting(self, slurm: bool) -> None:
        """Refuse a limit of a waiting that nobody asked for."""
        if slurm and self.timeout_s is not None and not self.wait:
            raise UsageError("--timeout limits the waiting for a SLURM job: write --wait too")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan and what it was made from."""

    loaded: LoadedSpec
    profile: ClusterProfile
    cluster_reason: str
    plan: Plan


def plan_spec(
    path: Path,
    task: Task | None,
    options: Options,
    *,
    forecast_memory: bool = False,
    pilot: bool = False,
    ask_scheduler: bool = False,
) -> Planned:
    """Read the spec, choose the cluster, plan.

    :param forecast_memory: also where nothing depends on it, for people to read.
    :param pilot: time one call of the denoiser where no earlier run says how long a step takes.
    :param ask_scheduler: have SLURM look at the script.
    """
    from dptrain.launch.cluster import choose_cluster
    from dptrain.plan.plan import make_plan

    loaded = read_spec(path, options)
    profile, reason = choose_cluster(options.cluster, loaded.spec)
    task = task or ("infer" if loaded.spec.train is None else "train")
    plan = make_plan(
        loaded, task, profile, forecast_memory=forecast_memory, fixed=(), pilot=pilot, ask_scheduler=ask_scheduler
    )
    return Planned(loaded=loaded, profile=profile, cluster_reason=reason, plan=plan)


def plan_page(planned: Planned) -> list[str]:
    """The plan for people, then the exact script."""
    page = [f"cluster {planned.profile.name}: {planned.cluster_reason}", *planned.plan.lines()]
    if planned.loaded.spec.sweep:
        page.append("the spec has a sweep; this is its plan without one (dptrain sweep --dry-run lists the members)")
    if planned.plan.sbatch is not None:
        page += ["", planned.plan.sbatch.rstrip("\n")]
    return page


def read_spec(path: Path, options: Options) -> LoadedSpec:
    """The spec with every flag that replaces a value in its list of overrides."""
    from dptrain.spec.load import Override, load_spec

    named = (f"name={json.dumps(options.name)}",) if options.name is not None else ()
    texts = (*options.overrides, *named)
    loaded = load_spec(path, texts) if options.converted is None else options.converted.load(texts)
    overrides = [replace(o, origin="--name") if named and o.key == "name" else o for o in loaded.overrides]
    if options.cluster is not None and options.cluster != loaded.spec.cluster:
        overrides.append(
            Override(key="cluster", value=options.cluster, origin="--cluster", replaces=loaded.origins.get("cluster"))
        )
    return replace(loaded, overrides=tuple(overrides))


def start(path: Path, task: Task, options: Options) -> None:
    """Plan the spec, submit the plan, and follow it where that was asked for."""
    from dptrain.cli.follow import conclude, follow
    from dptrain.records.intent import read_intent

    planned = plan_spec(path, task, options, ask_scheduler=options.dry_run)
    if planned.loaded.spec.sweep:
        raise UsageError(f"{path} has a sweep\n    write: dptrain sweep {path}")
    slurm = planned.profile.launcher == "slurm"
    options.check_waiting(slurm)
    note(f"cluster {planned.profile.name}: {planned.cluster_reason}")
    check([planned.plan], options.force)
    paths = make_run(planned)
    if (faults := read_intent(paths).faults) is not None:
        note(f"injected on purpose: {faults}")
    if options.dry_run:
        _dry_run(planned, paths, options)
        return
    waits = options.wait if slurm else not options.detach
    follow(paths, lambda: launch(planned, paths), waits=waits, timeout_s=options.timeout_s)
    conclude(paths, as_json=options.as_json, waited=waits)


def check(plans: Sequence[Plan], force: bool) -> None:
    """Stop here where a plan refuses, unless that was overruled; what cannot even be asked for cannot be forced.

    :raises PlanRefused: with every reason of every plan.
    """
    for text in dict.fromkeys(text for plan in plans for text in plan.notes):
        note(f"note: {text}")
    possible = all(plan.job is not None or plan.profile.launcher == "local" for plan in plans)
    refused = [(plan.spec.name, reason) for plan in plans for reason in plan.refusals]
    if not refused:
        return
    if force and possible:
        for name, reason in refused:
            note(f"forced although {name}: {reason}")
        return
    raise PlanRefused("plan refuses:\n" + "\n".join(f"  {name}: {reason}" for name, reason in refused))


def make_run(planned: Planned) -> RunPaths:
    """The run directory."""
    from dptrain.launch.snapshot import create_run

    return create_run(planned.plan, planned.loaded, planned.profile, fingerprint=planned.plan.fingerprint)


def launch(planned: Planned, paths: RunPaths) -> None:
    if planned.profile.launcher == "slurm":
        from dptrain.launch.slurm import submit_slurm

        (job_id,) = submit_slurm([paths], planned.plan, planned.profile)
        note(f"{paths.run_id}: job {job_id}")
    else:
        from dptrain.launch.local import start_local

        pid = start_local(paths, planned.profile)
        note(f"{paths.run_id}: {planned.plan.world_size} local ranks, supervisor {pid}")


def _dry_run(planned: Planned, paths: RunPaths, options: Options) -> None:
    from dptrain.records.intent import update_intent

    update_intent(paths, submission="dry-run")
    if options.as_json:
        print_json({"run": paths.run_id, "run_dir": str(paths.dir), "sbatch": planned.plan.sbatch})
        return
    if planned.plan.sbatch is not None:
        say(planned.plan.sbatch.rstrip("\n"))
    say(f"nothing submitted; run folder: {paths.dir}")
