"""Real runs on this machine for tests: a spec goes through plan, snapshot, supervisor and ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dptrain.launch.cancel import cancel
from dptrain.launch.local import rank_pids, start_local, supervisor_alive, wait_local
from dptrain.launch.snapshot import create_run
from dptrain.plan.plan import make_plan
from dptrain.records.events import Event, read_events
from dptrain.records.paths import RunPaths
from dptrain.spec.load import parse_spec
from dptrain.spec.profiles import load_profile
from dptrain.spec.schema import Task

TINY = """
name: tiny
problem: {image_size: [24, 24], channels: 1, physics: {name: denoise}, data: {source: synthetic}}
denoiser: {name: dncnn, weights: random, depth: 3, width: 4}
algorithm: {iterations: 3}
tiling: {patch: 16, halo: 4}
resources: {gpus: 2}
train: {steps: 6, images: 3, held_out: 1, learning_rate: 1.0e-3, save_every_steps: 2}
run: {stall_timeout_s: 60, setup_timeout_s: 60}
"""
"""Starts in seconds, and has everything: two ranks, four tiles, training."""


@contextmanager
def running(task: Task, *overrides: str, text: str = TINY, folder: Path | None = None) -> Iterator[RunPaths]:
    """A started run; whatever of it is left at the end is cancelled."""
    loaded = parse_spec(text, "tiny.yaml", folder or Path.cwd(), overrides)
    profile = load_profile("local")
    plan = make_plan(loaded, task, profile)
    plan.check()
    paths = create_run(plan, loaded, profile)
    start_local(paths, profile)
    try:
        yield paths
    finally:
        if supervisor_alive(paths) == "alive":
            cancel(paths)
        assert rank_pids(paths) == []


def finish(paths: RunPaths, timeout_s: float = 120) -> int | None:
    """Wait for the end; the supervisor's exit code."""
    return wait_local(paths, timeout_s)


def result(paths: RunPaths) -> dict[str, Any]:
    """result.json."""
    value: dict[str, Any] = json.loads(paths.result.read_text(encoding="utf-8"))
    return value


def events(paths: RunPaths, rank: int, kind: str) -> list[Event]:
    """All events of one kind of a rank, over every attempt."""
    return [e for k in paths.attempts() for e in read_events(paths.attempt(k).rank_events(rank)) if e["kind"] == kind]


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 60) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)


def signal_rank(paths: RunPaths, rank: int, number: int) -> None:
    """Send a signal to one rank, found by its start event."""
    os.kill(events(paths, rank, "start")[-1]["pid"], number)
