"""Which runs there are, and which of them a user means. Reads folder names and intent.json only, so that hundreds cost nothing.

A run or sweep has a name in its folder of runs. Where that is another folder than this shell's, it is called FOLDER/NAME.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from pathlib import Path

from dptrain.errors import NoSuchRun
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths, runs_root

LAST = "last"
_STAMP = re.compile(r"-[0-9]{8}-[0-9]{6}-[0-9a-f]{6}$")
"""What a run id has after the name."""


def find_runs(root: Path | None = None) -> list[RunPaths]:
    """Every run directory of a folder, oldest first: those that hold an intent.json.

    :param root: default: `DPTRAIN_RUNS`, or `./runs`.
    """
    folder = runs_root() if root is None else root
    try:
        with os.scandir(folder) as entries:
            runs = [RunPaths(Path(entry.path)) for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    dated = [(created, run.run_id, run) for run in runs if (created := _created_s(run)) is not None]
    return [run for _, _, run in sorted(dated, key=lambda d: d[:2])]


def place_of(text: str, root: Path | None = None) -> tuple[Path, str]:
    """(folder of runs, name in it) of what a user calls NAME or FOLDER/NAME.

    :param root: the folder of a bare name; default: `DPTRAIN_RUNS`, or `./runs`.
    """
    if "/" in text:
        path = Path(text).expanduser().absolute()
        return path.parent, path.name
    return (runs_root() if root is None else root), text


def called(directory: Path) -> str:
    """What to type for a run or sweep: its name, or FOLDER/NAME where it is not in this shell's folder of runs.

    :param directory: of the run; of a sweep its folder of runs, and its name.
    """
    return directory.name if directory.parent == runs_root() else shlex.quote(str(directory.absolute()))


def resolve_run(text: str, root: Path | None = None) -> RunPaths:
    """The run of an id, a run directory, a unique prefix of an id, or `last`, all also as FOLDER/NAME.

    An id wins over a directory of the same name, and an exact id over ids that it is a prefix of. The whole name of a member of a
    sweep means the newest run that a sweep has started for it.

    :raises NoSuchRun: with what comes near.
    """
    folder = runs_root() if root is None else root
    if "/" not in text and text not in ("", ".", ".."):
        if is_run(folder / text):
            return RunPaths(folder / text)
        if text == LAST or not is_run(Path(text)):
            return _in_folder(text, find_runs(folder), folder)
    directory = Path(text).expanduser().absolute()
    if text and is_run(directory):
        return RunPaths(directory)
    if text and directory.is_dir():
        raise NoSuchRun(
            f"{text} is a folder, but no run: it has no intent.json\n    write: the id or directory of a run"
        )
    folder, name = place_of(text)
    if "/" in text and (runs := find_runs(folder)):
        return _in_folder(name, runs, folder)
    raise NoSuchRun(f"there is no run directory {text!r}\n    write: the id or directory of a run, or last")


def _in_folder(name: str, runs: list[RunPaths], folder: Path) -> RunPaths:
    if name != LAST:
        return _by_prefix(name, runs, folder)
    if runs:
        return runs[-1]
    raise NoSuchRun(
        f"there are no runs in {folder}\n    write: FOLDER/last, DPTRAIN_RUNS=FOLDER, or start one with `dptrain infer`"
    )


def _by_prefix(text: str, runs: list[RunPaths], folder: Path) -> RunPaths:
    ids = [run.run_id for run in runs]
    starting = [run for run in runs if run.run_id.startswith(text)]
    if len(starting) == 1:
        return starting[0]
    if members := [run for run in starting if _STAMP.sub("", run.run_id) == text and _is_member(run)]:
        return members[-1]
    if starting:
        shown = _listed([run.run_id for run in starting])
        raise NoSuchRun(f"{text!r} is the beginning of {len(starting)} runs: {shown}\n    write: more of the id")
    near = difflib.get_close_matches(text, ids, n=3, cutoff=0.5) or [i for i in ids if text in i]
    hint = f"write: {_listed(near)}" if near else f"there are {len(ids)} runs; `dptrain status` lists them"
    raise NoSuchRun(f"there is no run {text!r} in {folder}\n    {hint}")


def _is_member(run: RunPaths) -> bool:
    """Whether a sweep has started the run: its name then is that of the member, and a newer one of this name is the member's too."""
    try:
        return read_intent(run).sweep is not None
    except (OSError, ValueError):  # a damaged run is status' to name
        return False


def _listed(ids: list[str], most: int = 5) -> str:
    newest = ids[-most:]
    return ", ".join(newest) + (f" and {len(ids) - most} older" if len(ids) > most else "")


def is_run(directory: Path) -> bool:
    """Whether a folder holds a run."""
    # Whatever it is: a run with a damaged intent is one to be named, not one that is absent.
    return os.path.lexists(RunPaths(directory).intent)


def _created_s(run: RunPaths) -> float | None:
    """When a run was asked for; None for a folder that is no run. A damaged intent counts by its file's age."""
    try:
        return read_intent(run).created_s
    except (OSError, ValueError):
        try:
            return run.intent.lstat().st_mtime
        except FileNotFoundError:
            return None
        except OSError:  # a folder that nobody here may look into
            return 0.0
