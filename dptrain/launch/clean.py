"""What a run that has ended no longer needs: older saves, what a killed save left, pickled calls, where ranks met.

Results, output, logs, events, spec and plan stay, and so does the newest save that is whole: weights of later runs, and what
`resume` goes on from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dptrain.records.paths import RunPaths
from dptrain.records.saves import problem_of_save, save_steps


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One file or folder that can go."""

    path: Path
    what: str
    """`older save`, `broken save`, `unfinished save`, `pickled call`, `meeting place`."""
    size_bytes: int
    """Of the contents; links count as nothing and are not followed."""


def leftovers(paths: RunPaths) -> list[Leftover]:
    """What can go of a run of which nothing runs any more."""
    return [Leftover(path=path, what=what, size_bytes=_size(path)) for path, what in _found(paths)]


def remove(found: Leftover) -> None:
    """Remove one. Raises OSError where the system refuses."""
    if found.path.is_dir() and not found.path.is_symlink():
        shutil.rmtree(found.path)
    else:
        found.path.unlink(missing_ok=True)


def _found(paths: RunPaths) -> Iterator[tuple[Path, str]]:
    yield from _saves(paths)
    for folder in sorted(paths.saves.glob(".step-*.partial")):
        yield folder, "unfinished save"
    for file in sorted(_calls(paths)):
        yield file, "pickled call"
    for number in paths.attempts():
        if os.path.lexists(file := paths.attempt(number).rendezvous):
            yield file, "meeting place"


def _saves(paths: RunPaths) -> Iterator[tuple[Path, str]]:
    """All but the newest whole one; where none is whole, none."""
    whole: int | None = None
    broken = []
    for step in reversed(save_steps(paths)):
        if whole is not None:
            yield paths.save(step), "older save"
        elif problem_of_save(paths.save(step)) is None:
            whole = step
        else:
            broken.append(step)
    if whole is not None:
        yield from ((paths.save(step), "broken save") for step in broken)


def _calls(paths: RunPaths) -> Iterator[Path]:
    """Of every job of the run; those of a member of an array lie in the array's folder, where its log's link leads."""
    yield from paths.submitit.glob("*.pkl")
    for log in paths.batch_log.glob("batch-*.log"):
        if log.is_symlink():
            job_id = log.name.removeprefix("batch-").removesuffix(".log")
            call = RunPaths(log.parent.joinpath(log.readlink()).parent.parent).submitted_call(job_id)
            if call.is_file():
                yield call


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return 0 if path.is_symlink() else path.lstat().st_size
    return sum(entry.lstat().st_size for entry in path.rglob("*") if not entry.is_symlink() and entry.is_file())
