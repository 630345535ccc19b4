"""What earlier runs of the same name have measured and plan can warn of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dptrain.records.events import read_events
from dptrain.records.paths import RunPaths
from dptrain.records.reading import real_number
from dptrain.records.saves import long_save
from dptrain.spec.schema import Spec

RUNS_LOOKED_AT = 3
"""The newest ones: a spec changes, and older runs say less about it."""


def save_notes(spec: Spec, runs: Path) -> Iterator[str]:
    """A warning where the newest run of this name that saved took too long for the time that a warned job has.

    :param runs: folder of runs.
    """
    for paths in _named(spec.name, runs)[:RUNS_LOOKED_AT]:
        seconds = longest_save_s(paths)
        if seconds is not None:
            if text := long_save(seconds, spec.run.signal_lead_s):
                yield f"run {paths.run_id}: {text}"
            return


def longest_save_s(paths: RunPaths) -> float | None:
    """The longest that a save of the run took; None: it has recorded none."""
    try:
        events = [e for k in paths.attempts() for e in read_events(paths.attempt(k).rank_events(0))]
    except (OSError, ValueError):  # a damaged run is status' to name
        return None
    times = (real_number(event.get("seconds"), 1e9) for event in events if event["kind"] == "save")
    return max((s for s in times if s is not None), default=None)


def _named(name: str, runs: Path) -> list[RunPaths]:
    """Runs whose id begins with this name, newest first: the time follows the name."""
    form = re.compile(re.escape(name) + r"-\d{8}-\d{6}-[0-9a-f]{6}")
    try:
        ids = sorted((entry.name for entry in runs.iterdir() if form.fullmatch(entry.name)), reverse=True)
    except OSError:
        return []
    return [RunPaths(runs / each) for each in ids]
