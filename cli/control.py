"""Commands that act on runs and on this machine: cancel, clean, doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dptrain.cli.options import AsJson, Cluster, Runs, RunsOrFlag
from dptrain.cli.output import console, print_json, say

if TYPE_CHECKING:
    from dptrain.status.doctor import Finding


def cancel(runs: Runs) -> None:
    """End runs; of a sweep, all that have not ended, and what it was still going to start."""
    from dptrain.cli.cancelling import cancel as end

    end(runs)


def clean(
    runs: RunsOrFlag = None,
    all_completed: Annotated[bool, typer.Option("--all-completed", help="Every completed run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, remove nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what runs that have ended no longer need; results, logs, output and the newest save stay."""
    from dptrain.cli.cleaning import clean as tidy

    tidy(runs or [], all_completed=all_completed, dry_run=dry_run, as_json=as_json)


def doctor(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Check this machine and the cluster profile before the first submission."""
    from dptrain.status.doctor import examine

    findings = examine(cluster)
    if as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        print_findings(findings)
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)


def print_findings(findings: list[Finding]) -> None:
    """One line each, coloured in a terminal."""
    styles = {"ok": "green", "warn": "yellow", "fail": "red"}
    for finding in findings:
        text = f"{finding.level:<5} {finding.name}: {finding.found}"
        console().print(text, style=styles[finding.level], soft_wrap=True)
        if finding.advice:
            say(f"      {finding.advice}")
