"""Which saves a run has, and whether one is whole: sizes and SHA-256 of its manifest. What is in them is the engine's business."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from dptrain.records.paths import RunPaths

MANIFEST = "manifest.json"
LONG_SAVE = 0.5
"""Share of the time between the scheduler's warning and the end from which on a save is called long: it must also be begun."""


def long_save(save_s: float, lead_s: float) -> str | None:
    """A warning where saving took too much of the time that a run has for it.

    :param save_s: the longest that a save took.
    :param lead_s: `run.signal_lead_s`.
    """
    if save_s <= LONG_SAVE * lead_s:
        return None
    need = math.ceil(save_s / LONG_SAVE)
    return (
        f"a save took {save_s:.3g} s, more than half of the {lead_s:g} s between the scheduler's warning and the end; "
        f"write: --set run.signal_lead_s={need}"
    )


def save_steps(paths: RunPaths) -> list[int]:
    """Steps that have a save, ascending; not yet verified."""
    return sorted(int(p.name[5:]) for p in paths.saves.glob("step-*") if p.name[5:].isdigit())


def newest_save(paths: RunPaths) -> tuple[int, Path] | None:
    """The newest save that is whole; a broken newer one is named and skipped."""
    for step in reversed(save_steps(paths)):
        problem = problem_of_save(paths.save(step))
        if problem is None:
            return step, paths.save(step)
        print(f"save of step {step} is skipped: {problem}", flush=True)
    return None


def problem_of_save(save: Path) -> str | None:
    """What is wrong with a save's files; None where they are those of its manifest."""
    try:
        files = json.loads((save / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, entry in files.items():
            if (save / name).stat().st_size != entry["bytes"]:
                return f"{name} has {(save / name).stat().st_size} bytes, the manifest says {entry['bytes']}"
            if digest(save / name) != entry["sha256"]:
                return f"{name} does not have the manifest's checksum"
    except (OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def entry_of(path: Path) -> dict[str, Any]:
    """What the manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": digest(path)}


def digest(path: Path) -> str:
    """SHA-256 in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
