"""`resume`: the next attempt of a run that has ended, or the first one of a run that was never started."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from dptrain.cli.follow import conclude, follow
from dptrain.cli.output import note, print_json, say
from dptrain.cli.start import Options, Planned, check, launch, read_spec
from dptrain.errors import StateUnknown, UsageError
from dptrain.records.intent import Intent, read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.reading import problem_of
from dptrain.spec.changes import longer, refusals
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, Override, load_spec
from dptrain.spec.schema import Spec
from dptrain.status.model import RunStatus, first_word
from dptrain.status.state import run_status


def resume(paths: RunPaths, options: Options, gpus: int | None) -> None:
    """Plan again, keep what was planned before, launch and follow; nothing to do where the run is completed.

    :param gpus: `resources.gpus`, where it is another number than before.
    :raises UsageError: for a run that is under way, or a change with which its result would be another one.
    """
    from dptrain.launch.locks import run_lock
    from dptrain.launch.resume import renewed

    with ExitStack() as held:
        held.enter_context(run_lock(paths))
        (status,) = run_status([paths])
        if status.state != "completed":
            _check_over(status, options.force)
        intent = read_intent(paths)
        old, loaded = _read(paths, options, gpus)
        if status.state == "completed" and not longer(old, loaded.spec, intent.task):
            _say_completed(status, options.as_json)
            return
        _check_over(status, options.force)
        planned = _plan(loaded, intent, options)
        slurm = planned.profile.launcher == "slurm"
        options.check_waiting(slurm)
        note(f"cluster {planned.profile.name}: {planned.cluster_reason}")
        check([planned.plan], options.force)
        _say_where(paths, status)

        def start() -> None:
            with renewed(paths, planned.plan, planned.loaded, planned.profile, old):
                launch(planned, paths)
            held.close()

        waits = options.wait if slurm else not options.detach
        follow(paths, start, waits=waits, timeout_s=options.timeout_s)
    conclude(paths, as_json=options.as_json, waited=waits)


def _check_over(status: RunStatus, force: bool) -> None:
    """
    :param force: the user says that nothing of a run runs about which nobody here knows.
    :raises UsageError: where something of the run may still be going on.
    :raises StateUnknown: where nobody knows.
    """
    if status.ended:
        return
    job = f" (job {status.job_id})" if status.job_id is not None else ""
    nobody_knows = {
        "unknown": status.reason or status.state,
        "submitting": "its submission was not confirmed: squeue --me shows whether there is a job",
    }
    why = nobody_knows.get(first_word(status.state))
    if why is None:
        raise UsageError(
            f"{status.run} is {status.state}{job}: a run is resumed when it has ended\n"
            f"    write: dptrain cancel {status.called}"
        )
    if not force:
        raise StateUnknown(
            f"{status.run}{job}: {why}; it may still run\n"
            f"    if you know that it does not, write: dptrain resume {status.called} --force"
        )
    note(f"forced although {why}")


def _read(paths: RunPaths, options: Options, gpus: int | None) -> tuple[Spec, LoadedSpec]:
    """The spec so far, and with the changes asked for."""
    texts = options.overrides
    if gpus is not None:
        if any(text.partition("=")[0].strip() == "resources.gpus" for text in texts):
            raise UsageError("--gpus and --set resources.gpus say the same thing: use one of them")
        texts = (*texts, f"resources.gpus={gpus}")
    try:
        old = load_spec(paths.spec).spec
    except OSError as error:
        raise StateUnknown(f"{paths.run_id}: {problem_of(error, paths.dir)}") from None
    loaded = read_spec(paths.spec, replace(options, overrides=texts))
    overrides = tuple(_origin(o, gpus) for o in loaded.overrides)
    if wrong := refusals(old, loaded.spec):
        raise UsageError(
            "\n".join([f"{paths.run_id} cannot be resumed with these changes:", *(f"  {w}" for w in wrong)])
        )
    return old, replace(loaded, overrides=overrides)


def _origin(override: Override, gpus: int | None) -> Override:
    return replace(override, origin="--gpus") if gpus is not None and override.key == "resources.gpus" else override


def _plan(loaded: LoadedSpec, intent: Intent, options: Options) -> Planned:
    from dptrain.plan.plan import make_plan

    profile, reason = _cluster(loaded.spec, intent, options)
    plan = make_plan(loaded, intent.task, profile)
    return Planned(loaded=loaded, profile=profile, cluster_reason=reason, plan=plan)


def _cluster(spec: Spec, intent: Intent, options: Options) -> tuple[ClusterProfile, str]:
    from dptrain.launch.cluster import choose_cluster
    from dptrain.spec.profiles import load_profile

    if options.cluster is not None:
        return choose_cluster(options.cluster, spec)
    return load_profile(intent.cluster), "the run was made for it"


def _say_completed(status: RunStatus, as_json: bool) -> None:
    if as_json:
        print_json(status.to_json(ranks=True))
    else:
        say(f"{status.run} is completed: {status.step} of {status.steps} steps; there is nothing to resume")


def _say_where(paths: RunPaths, status: RunStatus) -> None:
    """How the run stands, and from where it goes on."""
    from dptrain.records.saves import save_steps

    saves = save_steps(paths)
    where = f"goes on from the save of step {saves[-1]}" if saves else "has no save and begins at the beginning"
    note(f"{status.run} was {status.state} at step {status.step} of {status.steps}; it {where}")
