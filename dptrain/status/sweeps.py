"""The run of each member of a sweep: of all runs that have a member's fingerprint the one that counts, chosen by what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dptrain.errors import NoSuchRun
from dptrain.records.index import place_of, resolve_run
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.sweeps import candidates, is_sweep, read_sweep
from dptrain.status.model import RunStatus, first_word
from dptrain.status.state import Scheduler, run_status

MOST_NAMES = 4
GOING = 3
"""How well a run stands for its member that may get a result."""


def runs_of(
    fingerprints: Sequence[str],
    root: Path | None = None,
    scheduler: Scheduler | None = None,
    sweep: str | None = None,
) -> dict[str, RunPaths]:
    """Fingerprint -> its run: one that is completed, else one that has not ended, else the newest that ended, else one that was
    never submitted. Of several of one kind the newest.

    A run that somebody else started stands for a member only where the sweep has none of its own, or where its own have ended
    without a result and that one has a result, or may get one. A run made with injected faults that has ended has none.

    :param sweep: the name of the sweep whose members these are.
    :param scheduler: asked only of members with several runs; default: ask now.
    """
    found = candidates(fingerprints, root)
    several = [paths for runs in found.values() if len(runs) > 1 for paths in runs]
    worth: dict[RunPaths, tuple[bool, bool, int]] = {}
    for paths, status in zip(several, run_status(several, scheduler), strict=True):
        value = _worth(status)
        worth[paths] = (value >= GOING, sweep is not None and _sweep_of(paths) == sweep, value)
    # They come oldest first.
    return {
        mark: max(reversed(runs), key=lambda paths: worth[paths]) if len(runs) > 1 else runs[0]
        for mark, runs in found.items()
    }


def _sweep_of(paths: RunPaths) -> str | None:
    """The sweep that started a run, where one did."""
    try:
        return read_intent(paths).sweep
    except (OSError, ValueError):  # a damaged run is status' to name
        return None


def strangers(text: str, runs: Sequence[RunPaths]) -> str | None:
    """Which of the runs of a sweep it did not start itself, in one line; None where there are none.

    :param text: the sweep as the user has named it.
    """
    _, name = place_of(text)
    ids = [paths.run_id for paths in runs if _sweep_of(paths) != name]
    if not ids:
        return None
    more = f" and {len(ids) - MOST_NAMES} more" if len(ids) > MOST_NAMES else ""
    stand = (
        "was started by another command and stands for its member"
        if len(ids) == 1
        else ("were started by other commands and stand for their members")
    )
    return (
        f"sweep {text}: {len(ids)} of its {len(runs)} runs {stand}, as nothing differs that determines the result: "
        f"{', '.join(ids[:MOST_NAMES])}{more}"
    )


def _worth(status: RunStatus) -> int:
    """How well a run stands for its member."""
    word = first_word(status.state)
    if status.faults is not None:
        return 0 if status.ended else GOING
    if word == "completed":
        return 4
    if not status.ended:  # an unknown one may be running
        return GOING
    return 1 if word == "never-submitted" else 2


def runs_of_sweep(text: str, root: Path | None = None, scheduler: Scheduler | None = None) -> list[RunPaths]:
    """Its members' runs, in their order, as far as they were started."""
    folder, name = place_of(text, root)
    record = read_sweep(folder, name)
    marks = [member.fingerprint for member in record.members] if record is not None else []
    found = runs_of(marks, folder, scheduler, name)
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
