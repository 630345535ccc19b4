"""The application: every command, and the one place that turns an error into a message and an exit code.

Command modules import what they call inside the functions, so that `--help`, completion and `status` load no numerics.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dptrain import __version__
from dptrain.cli import control, runs, specs, watch
from dptrain.cli.output import print_error
from dptrain.errors import DptrainError


class Commands(TyperGroup):
    """Commands in the order of their registration; a `DptrainError` prints as one message and sets the exit code."""

    def invoke(self, ctx: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a message may hold what the terminal's encoding cannot
                stream.reconfigure(errors="backslashreplace")
        _show_progress()
        try:
            return super().invoke(ctx)
        except DptrainError as error:
            print_error(error)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            # `dptrain status | head`: the reader has left. What is still buffered must not fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)


def _show_progress() -> None:
    """What the library says of work that takes long goes to stderr, as it is."""
    log = logging.getLogger("dptrain")
    log.setLevel(logging.INFO)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)


# Plain help: the boxed one imports a markdown parser and takes twice as long to appear.
app = typer.Typer(
    cls=Commands,
    name="dptrain",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dptrain {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Reconstruct, or train networks on, images and volumes too large for one GPU.

    One YAML spec becomes a multi-rank job, on this machine or through SLURM.
    Start with `dptrain init NAME`, then `dptrain plan NAME.yaml` and `dptrain infer NAME.yaml`.
    """


for command in (
    specs.init,
    specs.plan,
    specs.prepare,
    runs.train,
    runs.infer,
    runs.sweep,
    runs.resume,
    runs.rehearse,
    watch.status,
    watch.logs,
    watch.report,
    control.cancel,
    control.clean,
    control.doctor,
):
    app.command()(command)


if __name__ == "__main__":
    app()
