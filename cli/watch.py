"""Commands that look at runs: status, logs, report. They write nothing into a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dptrain.cli.options import AsJson, MaybeRuns, Run, Runs
from dptrain.cli.output import print_json, say
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
    from dptrain.records.sweeps import resolve_all

    if why and (not runs or watch or ranks):
        raise UsageError("--why is about named runs as they stand\n    write: dptrain status --why RUN")
    chosen = [] if watch else resolve_all(runs) if runs else find_runs()
    statuses = live.watch(live.finder(runs), ranks, quiet=as_json) if watch else looking.look(chosen)
    if why:
        looking.print_why(chosen, statuses, as_json)
    elif as_json:
        print_json([status.to_json(ranks) for status in statuses])
    elif not watch:
        looking.print_statuses(statuses, ranks)
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
            "--csv", metavar="FILE", help="Write every column there, also those of the spec; `-`: print them."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """One row per run: how it went, and with --csv or --json everything that is known of it."""
    from dptrain.cli.looking import print_report
    from dptrain.records.sweeps import resolve_all
    from dptrain.report.results import result_rows, to_csv, write_csv
    from dptrain.status.state import run_status

    chosen = resolve_all(runs)
    rows = result_rows(chosen, run_status(chosen))
    if csv is not None and str(csv) == "-":
        say(to_csv(rows).rstrip("\n"))
    elif csv is not None:
        write_csv(csv, rows)
        say(f"{len(rows)} rows: {csv}")
    elif as_json:
        print_json(rows)
    else:
        print_report(rows)
