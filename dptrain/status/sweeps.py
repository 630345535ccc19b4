"""The run of each member of a sweep: of all runs that have a member's fingerprint the one that counts, chosen by what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dptrain.errors import NoSuchRun
from dptrain.records.index import place_of, resolve_run
from dptrain.records.paths import RunPaths
from dptrain.records.sweeps import candidates, is_sweep, read_sweep
from dptrain.status.model import RunStatus, first_word
from dptrain.status.state import Scheduler, run_status


def runs_of(
    fingerprints: Sequence[str], root: Path | None = None, scheduler: Scheduler | None = None
) -> dict[str, RunPaths]:
    """Fingerprint -> its run: one that is completed, else one that has not ended, else the newest that ended, else one that was
    never submitted. Of several of one kind the newest.

    A run made with injected faults stands for a member only until it has ended, or where there is no other.

    :param scheduler: asked only of members with several runs; default: ask now.
    """
    found = candidates(fingerprints, root)
    several = [paths for runs in found.values() if len(runs) > 1 for paths in runs]
    worth = {paths: _worth(s) for paths, s in zip(several, run_status(several, scheduler), strict=True)}
    # They come oldest first.
    return {mark: max(reversed(runs), key=lambda paths: worth.get(paths, 0)) for mark, runs in found.items()}


def _worth(status: RunStatus) -> int:
    """How well a run stands for its member."""
    word = first_word(status.state)
    if status.faults is not None:
        return 0 if status.ended else 3
    if word == "completed":
        return 4
    if not status.ended:  # an unknown one may be running
        return 3
    return 1 if word == "never-submitted" else 2


def runs_of_sweep(text: str, root: Path | None = None, scheduler: Scheduler | None = None) -> list[RunPaths]:
    """Its members' runs, in their order, as far as they were started."""
    folder, name = place_of(text, root)
    record = read_sweep(folder, name)
    marks = [member.fingerprint for member in record.members] if record is not None else []
    found = runs_of(marks, folder, scheduler)
    return [found[mark] for mark in marks if mark in found]


def resolve_runs(text: str, root: Path | None = None, scheduler: Scheduler | None = None) -> list[RunPaths]:
    """The run of an id, a directory, a unique prefix or `last`; of the name of a sweep, its members' runs. All also as FOLDER/NAME.

    :raises NoSuchRun: where there is none; for a sweep none of whose members was started.
    """
    if not is_sweep(text, root):
        return [resolve_run(text, root)]
    runs = runs_of_sweep(text, root, scheduler)
    if not runs:
        record = read_sweep(*place_of(text, root))
        count = len(record.members) if record is not None else 0
        raise NoSuchRun(f"none of the {count} runs of sweep {text} was started")
    return runs


def resolve_all(texts: Iterable[str], root: Path | None = None) -> dict[str, list[RunPaths]]:
    """`resolve_runs` of every text."""
    return {text: resolve_runs(text, root) for text in texts}


def each_once(named: Mapping[str, Sequence[RunPaths]]) -> list[RunPaths]:
    """The runs of all texts, without repetition."""
    return list(dict.fromkeys(paths for runs in named.values() for paths in runs))
