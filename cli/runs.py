"""Commands that start runs: train, infer, sweep, resume, rehearse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dptrain.cli.options import (
    AnyTask,
    AsJson,
    Cluster,
    Detach,
    DryRun,
    Force,
    FromBenchopt,
    MaybeSpecFile,
    Overrides,
    ParallelConfig,
    Run,
    RunName,
    SpecFile,
    Timeout,
    Wait,
    checked_task,
)
from dptrain.errors import UsageError

if TYPE_CHECKING:
    from dptrain.cli.start import Options


def train(
    spec: SpecFile,
    overrides: Overrides = None,
    cluster: Cluster = None,
    name: RunName = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    wait: Wait = False,
    timeout: Timeout = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train the unrolled network."""
    from dptrain.cli.start import start

    options = _options(overrides, cluster, name, dry_run, detach, wait, timeout, force, as_json)
    start(spec, "train", options)


def infer(
    spec: SpecFile,
    overrides: Overrides = None,
    cluster: Cluster = None,
    name: RunName = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    wait: Wait = False,
    timeout: Timeout = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Reconstruct."""
    from dptrain.cli.start import start

    options = _options(overrides, cluster, name, dry_run, detach, wait, timeout, force, as_json)
    start(spec, "infer", options)


def sweep(
    spec: MaybeSpecFile = None,
    from_benchopt: FromBenchopt = None,
    parallel_config: ParallelConfig = None,
    overrides: Overrides = None,
    cluster: Cluster = None,
    max_parallel: Annotated[
        int | None,
        typer.Option("--max-parallel", min=1, metavar="N", help="Runs at once; default: 1 locally, no limit on SLURM."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Also run again what failed or was cancelled.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run and what is done, start nothing.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run every combination of the spec's `sweep`, skipping what is done."""
    from dptrain.cli import sweeping

    options = _options(overrides, cluster, None, dry_run, False, wait, timeout, force, as_json)
    if from_benchopt is not None:
        from dptrain.cli import benchopt

        if spec is not None:
            raise UsageError("a spec and --from-benchopt: which of the two?\n    write: one of them")
        spec = from_benchopt
        options = replace(options, converted=benchopt.read(from_benchopt, parallel_config, cluster, dry_run))
    elif parallel_config is not None:
        raise UsageError(
            "--parallel-config goes with --from-benchopt; a spec has its cluster profile\n"
            "    write: dptrain sweep --from-benchopt FILE --parallel-config FILE, or dptrain sweep SPEC --cluster NAME"
        )
    elif spec is None:
        raise UsageError("which sweep?\n    write: dptrain sweep SPEC, or dptrain sweep --from-benchopt FILE")
    sweeping.sweep(spec, options, max_parallel=max_parallel, retry=retry)


def resume(
    run: Run,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=1, help="On another number of ranks than before.")
    ] = None,
    overrides: Overrides = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Cluster profile. Default: the run's.")
    ] = None,
    detach: Detach = False,
    wait: Wait = False,
    timeout: Timeout = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Start although the plan says that it does not fit, or although nobody knows how the run stands.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that has ended before it was done, or start one that was never started."""
    from dptrain.cli import resuming
    from dptrain.records.index import resolve_run

    options = _options(overrides, cluster, None, False, detach, wait, timeout, force, as_json)
    resuming.resume(resolve_run(run), options, gpus)


def rehearse(
    spec: SpecFile,
    task: AnyTask = None,
    overrides: Overrides = None,
    cluster: Cluster = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up after so long (exit 124) and end both runs."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run a small copy of the problem, stop and continue another one, and say whether both end alike."""
    from dptrain.cli import rehearsing

    options = _options(overrides, cluster, None, False, False, False, timeout, force, as_json)
    rehearsing.rehearse(spec, checked_task(task), options)


def _options(
    overrides: list[str] | None,
    cluster: str | None,
    name: str | None,
    dry_run: bool,
    detach: bool,
    wait: bool,
    timeout_s: float | None,
    force: bool,
    as_json: bool,
) -> Options:
    from dptrain.cli.start import Options

    return Options(
        overrides=tuple(overrides or ()),
        cluster=cluster,
        name=name,
        dry_run=dry_run,
        detach=detach,
        wait=wait,
        timeout_s=timeout_s,
        force=force,
        as_json=as_json,
    )
