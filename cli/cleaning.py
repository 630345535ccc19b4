"""`clean`: says what it removes and how many bytes, run by run; a run of which something may still run is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from dptrain.cli.output import print_error, print_json, say
from dptrain.errors import DptrainError, UsageError
from dptrain.launch.clean import Leftover, leftovers, remove
from dptrain.launch.locks import run_lock
from dptrain.records.index import find_runs
from dptrain.records.paths import RunPaths
from dptrain.records.places import writing
from dptrain.status.show import size
from dptrain.status.state import run_status
from dptrain.status.sweeps import each_once, resolve_all


def clean(texts: Sequence[str], *, all_completed: bool, dry_run: bool, as_json: bool) -> None:
    """Clean the runs; the exit code is that of the first that was refused.

    :raises UsageError: without runs, or with runs and the flag.
    """
    if bool(texts) == all_completed:
        raise UsageError("which runs?\n    write: dptrain clean RUN..., or dptrain clean --all-completed")
    done: list[dict[str, Any]] = []
    refused: list[DptrainError] = []
    for paths in each_once(resolve_all(texts)) if texts else _completed():
        try:
            found = _clean(paths, dry_run)
        except DptrainError as error:
            refused.append(error)
            print_error(error)
            continue
        done.append(_entry(paths, found))
        if not as_json:
            _say(paths, found, dry_run)
    if as_json:
        print_json(done)
    elif len(done) != 1:
        say(f"{len(done)} runs: {size(sum(entry['bytes'] for entry in done))}")
    if refused:
        raise typer.Exit(refused[0].exit_code)


def _completed() -> list[RunPaths]:
    runs = find_runs()
    return [paths for paths, s in zip(runs, run_status(runs), strict=True) if s.state == "completed" and s.over]


def _clean(paths: RunPaths, dry_run: bool) -> list[Leftover]:
    """
    :raises UsageError: where something of the run may still run, or its files cannot be removed.
    """
    with run_lock(paths):
        (status,) = run_status([paths])
        if not status.ended:
            job = f" (job {status.job_id})" if status.job_id is not None else ""
            raise UsageError(f"{status.run} is {status.state}{job}: only what has ended is cleaned")
        found = leftovers(paths)
        for each in () if dry_run else found:
            with writing(each.what, each.path, "dptrain clean as the owner of the run"):
                remove(each)
    return found


def _entry(paths: RunPaths, found: Sequence[Leftover]) -> dict[str, Any]:
    removed = [{"path": str(each.path), "what": each.what, "bytes": each.size_bytes} for each in found]
    return {"run": paths.run_id, "bytes": sum(each.size_bytes for each in found), "removed": removed}


def _say(paths: RunPaths, found: Sequence[Leftover], dry_run: bool) -> None:
    for each in found:
        place = each.path.relative_to(paths.dir) if each.path.is_relative_to(paths.dir) else each.path
        say(f"{paths.run_id}: {each.what} {place}, {each.size_bytes} bytes")
    verb = "can be removed" if dry_run else "removed"
    say(f"{paths.run_id}: {len(found)} files and folders {verb}, {size(sum(each.size_bytes for each in found))}")
