"""Commands that start runs: train, infer, sweep."""

from __future__ import annotations

from typing import Annotated

import typer

from dptrain.cli.options import AsJson, Cluster, Detach, DryRun, Force, Overrides, RunName, SpecFile, Timeout, Wait


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
    raise NotImplementedError


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
    raise NotImplementedError


def sweep(
    spec: SpecFile,
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
    raise NotImplementedError
