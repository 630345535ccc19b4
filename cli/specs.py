"""Commands about a spec before anything runs: init, plan, prepare."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dptrain.cli.options import (
    AnyTask,
    AsJson,
    Cluster,
    FromBenchopt,
    Overrides,
    ParallelConfig,
    SpecFile,
    checked_task,
)
from dptrain.errors import UsageError


def init(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the spec: NAME.yaml is written here.")
    ] = None,
    template: Annotated[str, typer.Option("--template", metavar="T", help="Which template; see --list.")] = "demo",
    cluster_profile: Annotated[
        str | None,
        typer.Option("--cluster-profile", metavar="P", help="Also write this built-in profile as your own."),
    ] = None,
    from_benchopt: FromBenchopt = None,
    parallel_config: ParallelConfig = None,
    list_: Annotated[bool, typer.Option("--list", help="List templates and profiles and exit.")] = False,
) -> None:
    """Write a commented spec from a template, or from a benchopt experiment file."""
    from dptrain.cli import benchopt, scaffold
    from dptrain.cli.output import say

    if list_:
        say(scaffold.listing())
        return
    if parallel_config is not None and from_benchopt is None:
        raise UsageError("--parallel-config goes with --from-benchopt FILE")
    if from_benchopt is not None:
        for path in benchopt.write(name, from_benchopt, parallel_config, Path.cwd()):
            say(f"wrote {path}")
        return
    if name is None:
        raise UsageError("a name is missing; write: dptrain init NAME [--template T]")
    for path in scaffold.write(name, template, cluster_profile, Path.cwd()):
        say(f"wrote {path}")
    say(f"next: dptrain plan {name}.yaml")


def plan(
    spec: SpecFile,
    task: AnyTask = None,
    overrides: Overrides = None,
    cluster: Cluster = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="1,2,4", help="Also one row per number of ranks, and the knee.")
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes", metavar="1024,2048", help="Also one row per edge of a square or cubic image, in pixels."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="With --gpus: draw efficiency and memory over ranks.")
    ] = None,
    no_probe: Annotated[
        bool,
        typer.Option(
            "--no-probe",
            help="Leave out what takes seconds once: how far the denoiser sees, and the memory where no card is to be fitted.",
        ),
    ] = False,
    pilot: Annotated[
        bool,
        typer.Option(
            "--pilot",
            help="Time one call of the denoiser on this machine, where no earlier run says how long a step takes.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say before the queue what will happen, and print the exact script."""
    from dptrain.cli import planning
    from dptrain.cli.output import note, print_json, say
    from dptrain.cli.start import Options, plan_page, plan_spec

    wanted = checked_task(task)
    if plot is not None and gpus is None:
        raise UsageError("--plot draws over numbers of ranks\n    write: --gpus 1,2,4,8 too")
    # What cannot work is refused before anything takes time.
    counts = None if gpus is None else planning.whole_numbers(gpus, "--gpus")
    edges = None if sizes is None else planning.whole_numbers(sizes, "--sizes")
    if plot is not None:
        planning.check_place(plot)
    options = Options(overrides=tuple(overrides or ()), cluster=cluster, as_json=as_json)
    if not no_probe:
        planning.probe(spec, options)
    if pilot:
        note("timing one call of the denoiser, unless an earlier run has measured the step ...")
    planned = plan_spec(
        spec,
        wanted,
        options,
        forecast_memory=not no_probe,
        pilot=pilot,
        ask_scheduler=True,
    )
    rows = planning.table(spec, planned, options, counts, edges, forecast_memory=not no_probe)
    if as_json:
        table = {"rows": [asdict(row) for row in rows]} if rows else {}
        print_json({**planned.plan.to_json(), "cluster_reason": planned.cluster_reason, **table})
    else:
        say("\n".join(plan_page(planned)))
        planning.print_rows(rows)
    if plot is not None:
        planning.draw(rows, plot)
    planned.plan.check()


def prepare(spec: SpecFile, overrides: Overrides = None, cluster: Cluster = None) -> None:
    """Fetch here what compute nodes cannot: pretrained weights and data."""
    from dptrain.cli.output import say
    from dptrain.cli.start import Options, read_spec
    from dptrain.launch.prepare import prepare as fetch

    loaded = read_spec(spec, Options(overrides=tuple(overrides or ()), cluster=cluster))
    for line in fetch(loaded) or ["nothing to fetch: the spec needs no download"]:
        say(line)
