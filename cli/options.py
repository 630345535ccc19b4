"""Arguments and options that several commands share; each is declared once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dptrain.errors import UsageError

if TYPE_CHECKING:
    from dptrain.spec.schema import Task


def complete_runs(incomplete: str) -> list[str]:
    """Names of sweeps and run ids, newest first, for shell completion."""
    from dptrain.records.index import find_runs
    from dptrain.records.sweeps import sweep_names

    names = [*sweep_names(), *(paths.run_id for paths in reversed(find_runs()))]
    return [name for name in ["last", *names] if name.startswith(incomplete)]


def checked_task(text: str | None) -> Task | None:
    """What `--task` says. Raises UsageError for anything but a task."""
    if text not in (None, "train", "infer"):
        raise UsageError(f"--task is {text!r}\n    write: --task train, or --task infer")
    return cast("Task | None", text)


SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="The YAML spec.")]
MaybeSpecFile = Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="The YAML spec.")]
FromBenchopt = Annotated[
    Path | None,
    typer.Option("--from-benchopt", metavar="FILE", help="Make the spec from a benchopt experiment file."),
]
ParallelConfig = Annotated[
    Path | None,
    typer.Option(
        "--parallel-config", metavar="FILE", help="With --from-benchopt: make a cluster profile from this file."
    ),
]
AnyTask = Annotated[str | None, typer.Option("--task", metavar="train|infer", help="Default: train if the spec can.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Replace a value of the spec, e.g. algorithm.iterations=20. Repeatable."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Cluster profile. Default: DPTRAIN_CLUSTER, the spec's, SLURM if it answers, else local.",
    ),
]
RunName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run instead of the spec's.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write the run folder and the script, submit nothing.")]
Detach = Annotated[bool, typer.Option("--detach", help="Local runs: return at once instead of following.")]
Wait = Annotated[bool, typer.Option("--wait", help="SLURM runs: return when the run has ended, with its exit code.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Stop waiting after so long (exit 124); the run goes on."),
]
Force = Annotated[bool, typer.Option("--force", help="Start although the plan says that it does not fit.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run id, run directory, unique prefix, or `last`; in another folder of runs: FOLDER/NAME.",
        autocompletion=complete_runs,
    ),
]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Run ids, directories, unique prefixes, `last`, or names of sweeps; in another folder of runs: FOLDER/NAME.",
        autocompletion=complete_runs,
    ),
]
MaybeRuns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN...]",
        help="Run ids, directories, unique prefixes, `last`, or names of sweeps, also as FOLDER/NAME; default: all.",
        autocompletion=complete_runs,
    ),
]
RunsOrFlag = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        help="Run ids, directories, unique prefixes, `last`, or names of sweeps; in another folder of runs: FOLDER/NAME.",
        autocompletion=complete_runs,
    ),
]
