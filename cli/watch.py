"""Commands that look at runs: status, logs, report. They write nothing into a run directory; report notes beside them what plan can use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dptrain.cli.options import AsJson, MaybeRuns, Run, Runs
from dptrain.cli.output import note, print_json, say
from dptrain.errors import UsageError


def status(
    runs: MaybeRuns = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="One line per rank.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until every run has ended.")] = False,
    why: Annotated[bool, typer.Option("--why", help="What happened first, and what to type.")] = False,
    as_json: AsJson = False,
) -> None:
    """One truthful line per run."""
    from dptrain.cli import live, looking
    from dptrain.records.index import find_runs
    from dptrain.records.sweeps import is_sweep
    from dptrain.status.sweeps import each_once, resolve_all

    if why and (not runs or watch or ranks):
        raise UsageError("--why is about named runs as they stand\n    write: dptrain status --why RUN")
    named = {} if watch else resolve_all(runs or ())
    chosen = [] if watch else each_once(named) if runs else find_runs()
    statuses = live.watch(live.finder(runs), ranks, quiet=as_json) if watch else looking.look(chosen)
    if why:
        looking.print_why(chosen, statuses, as_json)
    elif as_json:
        print_json([status.to_json(ranks) for status in statuses])
    elif not watch:
        looking.print_statuses(statuses, ranks)
    if not why:
        # Members may have got runs while they were watched.
        sweeps = resolve_all(filter(is_sweep, runs or ())) if watch else named
        looking.print_sweeps(sweeps, statuses, note if as_json else say)
    if runs:
        raise typer.Exit(looking.exit_code(statuses))


def logs(
    run: Run,
    rank: Annotated[int | None, typer.Option("--rank", metavar="R", min=0, help="Only this rank.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Start with the earliest failing rank.")] = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the logs grow.")] = False,
) -> None:
    """Print the logs of the ranks."""
    from dptrain.cli import looking
    from dptrain.records.index import resolve_run

    looking.print_logs(resolve_run(run), rank=rank, failed=failed, follow=follow)


def report(
    runs: Runs,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write every column there, also those of spec and plan; `-`: print them."
        ),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="The same as a Parquet file (needs pyarrow).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page with tables and figures there.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Two runs: the same result, the same speed, what differs?")
    ] = False,
    seams: Annotated[
        bool, typer.Option("--seams", help="One reconstruction: do the borders of its tiles show?")
    ] = False,
    untiled: Annotated[
        str | None,
        typer.Option(
            "--untiled", metavar="RUN", help="With --seams: the untiled run. Default: one found beside the run."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How runs went: a table, files of every number, a page of figures. A folder of runs stands for all of them."""
    from dptrain.cli import reporting

    chosen, remarks = reporting.chosen(runs)
    asked = {"--csv": csv, "--parquet": parquet, "--html": html}
    reporting.check_options(
        compare, seams, untiled, {name: str(value) for name, value in asked.items() if value is not None}
    )
    if compare:
        reporting.compare(chosen, as_json)
    elif seams:
        reporting.seams(chosen, untiled, as_json)
    else:
        reporting.report(chosen, remarks, csv=csv, parquet=parquet, html=html, as_json=as_json)
