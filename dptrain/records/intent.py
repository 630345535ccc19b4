"""intent.json: what was asked for, and how far submission got. Written before anything is submitted, replaced atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dptrain.records.paths import RunPaths
from dptrain.records.reading import open_file, parse_json, real_number, whole_number


@dataclass(frozen=True, kw_only=True)
class Intent:
    """One run as it was asked for."""

    run: str
    """Run id."""
    task: Literal["train", "infer"]
    launcher: Literal["local", "slurm"]
    cluster: str
    """Name of the cluster profile."""
    world_size: int
    steps: int
    """Planned steps: optimiser steps, or iterations x images."""
    created_s: float
    """Seconds since the epoch."""
    submission: Literal["submitting", "submitted", "refused", "dry-run"] = "submitting"
    refusal: str | None = None
    """The scheduler's own words, or why a sweep did not submit it."""
    job_id: str | None = None
    """SLURM job id, `12` or `12_3` for an array member; locally the pid of the supervisor."""
    host: str | None = None
    """Local runs: the host of the supervisor."""
    comment: str | None = None
    """What the job was submitted with, so that it can be found where its id is not known."""
    array: str | None = None
    """Folder of the job array's own files, relative to the folder of runs; None for a job of its own."""
    array_index: int | None = None
    """Which member of the array the run is."""
    lane: str | None = None
    """Name of the share of a sweep's `--max-parallel` that the job runs in, together with others of this name."""
    lane_share: int | None = None
    """How many runs of the lane run at once."""
    sweep: str | None = None
    """Name of the sweep this run is a member of."""
    fingerprint: str | None = None
    """Hash of the spec's content: what a sweep uses to see that a run is already done."""
    faults: str | None = None
    """What is made to go wrong on purpose (`faults.py`)."""
    first_attempt: int = 1
    """Number of the attempt that `job_id` begins with: what lies before it is history."""
    asked_attempt: int = 1
    """Number of the attempt that a user's last command begins with: restarts from there on count for the budgets."""

    @property
    def unconfirmed(self) -> bool:
        """Whether it is not known if the run has a job."""
        return self.launcher == "slurm" and self.submission == "submitting" and self.job_id is None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


_ATTEMPTS = ("first_attempt", "asked_attempt")
"""Absent before a run could be resumed: then both are 1."""
_FITS: dict[str, Callable[[object], bool]] = {
    "run": _is_text,
    "task": lambda value: value in ("train", "infer"),
    "launcher": lambda value: value in ("local", "slurm"),
    "cluster": _is_text,
    "world_size": lambda value: isinstance(value, int) and whole_number(value, 1, 10**6) is not None,
    "steps": lambda value: isinstance(value, int) and whole_number(value) is not None,
    "created_s": lambda value: real_number(value, 1e12) is not None,
    "submission": lambda value: value in ("submitting", "submitted", "refused", "dry-run"),
    **dict.fromkeys(
        ("refusal", "job_id", "host", "comment", "array", "lane", "sweep", "fingerprint", "faults"), _is_text_or_none
    ),
    "array_index": lambda value: value is None or (isinstance(value, int) and whole_number(value) is not None),
    "lane_share": lambda value: value is None or (isinstance(value, int) and whole_number(value, 1) is not None),
    **dict.fromkeys(_ATTEMPTS, lambda value: isinstance(value, int) and whole_number(value, 1, 10**6) is not None),
}
"""Which values a field of the file may have."""


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that a reader sees the old or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(
        json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace"
    )
    beside.replace(path)


def write_intent(paths: RunPaths, intent: Intent) -> None:
    """Write or replace intent.json."""
    write_json(paths.intent, asdict(intent))


def read_intent(paths: RunPaths) -> Intent:
    """Read intent.json. Raises OSError where it cannot be read, ValueError where it is not one; both name the file."""
    with open_file(paths.intent) as file:
        text = file.read()
    try:
        value = parse_json(text)
        if not isinstance(value, dict):
            raise ValueError(f"holds {type(value).__name__}, not the description of a run")
        known = dict.fromkeys(_ATTEMPTS, 1) | {k: v for k, v in value.items() if k in Intent.__dataclass_fields__}
        wrong = [f"{key} is {known.get(key)!r:.60}" for key, fits in _FITS.items() if not fits(known.get(key))]
        if wrong:
            raise ValueError(f"wrong values: {', '.join(wrong)}")
    except ValueError as error:
        raise ValueError(f"{paths.intent}: {error}") from None
    return Intent(**known)


def update_intent(paths: RunPaths, **changes: Any) -> Intent:
    """Replace some fields of intent.json and return the new one."""
    intent = replace(read_intent(paths), **changes)
    write_intent(paths, intent)
    return intent
