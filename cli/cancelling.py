"""`cancel`: says of every run what was done; of a sweep, first ends the command that would start its other members."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence

import typer

from dptrain.cli.output import print_error, say
from dptrain.errors import DptrainError, UsageError
from dptrain.launch.cancel import cancel_all
from dptrain.launch.locks import Holder, sweep_holder
from dptrain.records.index import place_of, resolve_run
from dptrain.records.paths import RunPaths
from dptrain.records.sweeps import is_sweep
from dptrain.status.state import run_status
from dptrain.status.sweeps import runs_of_sweep

QUEUE_WAIT_S = 40.0
"""The command cancels what it has started before it leaves; that takes 25 s at most."""


def cancel(texts: Sequence[str]) -> None:
    """Cancel the runs; the exit code is that of the first that was refused."""
    runs: dict[RunPaths, None] = {}
    refused: list[DptrainError] = []
    for text in texts:
        if is_sweep(text):
            # First of all: it may be about to start the first of its members.
            refused += _end_queue(text)
            found = list(_going(runs_of_sweep(text)))
            if not found:
                say(f"sweep {text}: all that was started has ended")
        else:
            found = [resolve_run(text)]
        runs |= dict.fromkeys(found)
    for answer in cancel_all(list(runs)):
        if isinstance(answer, DptrainError):
            refused.append(answer)
            print_error(answer)
        else:
            say(answer)
    if refused:
        raise typer.Exit(refused[0].exit_code)


def _going(runs: Sequence[RunPaths]) -> Iterator[RunPaths]:
    for paths, status in zip(runs, run_status(runs), strict=True):
        if not status.ended:
            yield paths


def _end_queue(sweep: str) -> list[DptrainError]:
    """End the command that is starting the members of a sweep, where there is one; what went wrong."""
    holder = sweep_holder(*place_of(sweep))
    if holder is None:
        return []
    if holder.host != socket.gethostname():
        error = UsageError(f"sweep {sweep}: a command on {holder.host} is starting its members: cancel it there")
        print_error(error)
        return [error]
    say(f"sweep {sweep}: ending the command that starts its members (process {holder.pid})")
    try:
        _terminate(sweep, holder)
    except PermissionError:
        error = UsageError(f"sweep {sweep}: process {holder.pid} is another user's: they have to cancel it")
        print_error(error)
        return [error]
    return []


def _terminate(sweep: str, holder: Holder) -> None:
    try:
        os.kill(holder.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + QUEUE_WAIT_S
    while time.monotonic() < deadline and sweep_holder(*place_of(sweep)) == holder:
        time.sleep(0.1)
