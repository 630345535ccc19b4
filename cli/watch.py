"""Commands that look at runs: status, logs, report. They write nothing into a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dptrain.cli.options import AsJson, MaybeRuns, Run, Runs


def status(
    runs: MaybeRuns = None,
    ranks: Annotated[bool, typer.Option("--ranks", help="One line per rank.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until every run has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """One truthful line per run."""
    raise NotImplementedError


def logs(
    run: Run,
    rank: Annotated[int | None, typer.Option("--rank", metavar="R", min=0, help="Only this rank.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Start with the earliest failing rank.")] = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the logs grow.")] = False,
) -> None:
    """Print the logs of the ranks."""
    raise NotImplementedError


def report(
    runs: Runs,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the rows there instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """One row per run: its spec, its numbers."""
    raise NotImplementedError
