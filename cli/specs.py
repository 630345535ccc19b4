"""Commands about a spec before anything runs: init, plan, prepare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dptrain.cli.options import AsJson, Cluster, Overrides, SpecFile
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
    list_: Annotated[bool, typer.Option("--list", help="List templates and profiles and exit.")] = False,
) -> None:
    """Write a commented spec from a template."""
    from dptrain.cli import scaffold
    from dptrain.cli.output import say

    if list_:
        say(scaffold.listing())
        return
    if name is None:
        raise UsageError("a name is missing; write: dptrain init NAME [--template T]")
    for path in scaffold.write(name, template, cluster_profile, Path.cwd()):
        say(f"wrote {path}")
    say(f"next: dptrain plan {name}.yaml")


def plan(
    spec: SpecFile,
    task: Annotated[
        str | None, typer.Option("--task", metavar="train|infer", help="Default: train if the spec can.")
    ] = None,
    overrides: Overrides = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Say before the queue what will happen, and print the exact script."""
    raise NotImplementedError


def prepare(spec: SpecFile, overrides: Overrides = None, cluster: Cluster = None) -> None:
    """Fetch here what compute nodes cannot: pretrained weights and data."""
    raise NotImplementedError
