"""intent.json: what was asked for, and how far submission got. Written before anything is submitted, replaced atomically."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dptrain.records.paths import RunPaths


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
    """The scheduler's own words."""
    job_id: str | None = None
    """SLURM job id, `12` or `12_3` for an array member; locally the pid of the supervisor."""
    host: str | None = None
    """Local runs: the host of the supervisor."""
    sweep: str | None = None
    """Name of the sweep this run is a member of."""
    fingerprint: str | None = None
    """Hash of the spec's content: what a sweep uses to see that a run is already done."""


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that a reader sees the old or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


def write_intent(paths: RunPaths, intent: Intent) -> None:
    """Write or replace intent.json."""
    write_json(paths.intent, asdict(intent))


def read_intent(paths: RunPaths) -> Intent:
    """Read intent.json. Raises FileNotFoundError where there is none, ValueError where it is not one."""
    value = json.loads(paths.intent.read_text(encoding="utf-8"))
    known = {k: v for k, v in value.items() if k in Intent.__dataclass_fields__}
    return Intent(**known)


def update_intent(paths: RunPaths, **changes: Any) -> Intent:
    """Replace some fields of intent.json and return the new one."""
    intent = replace(read_intent(paths), **changes)
    write_intent(paths, intent)
    return intent
