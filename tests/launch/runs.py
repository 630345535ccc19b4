"""Small runs for launch tests, made the way the command line makes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dptrain.launch.snapshot import create_run
from dptrain.plan.plan import Plan, make_plan
from dptrain.records.events import Event, read_events
from dptrain.records.paths import RunPaths
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, parse_spec
from dptrain.spec.profiles import load_profile

TINY = """\
name: tiny
problem: {image_size: [32, 32], channels: 1, data: {source: synthetic}}
denoiser: {name: identity}
algorithm: {iterations: 3}
tiling: {patch: 16, halo: 4}
resources: {gpus: 2, time_min: 5}
"""
ENDLESS = "algorithm.iterations=1000000"


def tiny(profile: str, folder: Path, *overrides: str) -> tuple[LoadedSpec, ClusterProfile, Plan]:
    """A tiny spec, a profile and their plan."""
    loaded, cluster = parse_spec(TINY, "tiny.yaml", folder, overrides), load_profile(profile)
    return loaded, cluster, make_plan(loaded, "infer", cluster)


def tiny_run(profile: str, folder: Path, *overrides: str) -> tuple[RunPaths, Plan, ClusterProfile]:
    """A run directory, nothing submitted."""
    loaded, cluster, plan = tiny(profile, folder, *overrides)
    plan.check()
    return create_run(plan, loaded, cluster), plan, cluster


def wait_for(what: str, found: Callable[[], bool], timeout_s: float = 90) -> None:
    """Wait until it is there."""
    deadline = time.monotonic() + timeout_s
    while not found():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s:.0f} s"
        time.sleep(0.1)


def events_of(paths: RunPaths, kind: str, rank: int | None = None, attempt: int = 1) -> list[Event]:
    """Events of one kind of a rank, or of the launcher."""
    files = paths.attempt(attempt)
    path = files.launcher_events if rank is None else files.rank_events(rank)
    return [e for e in read_events(path) if e["kind"] == kind]


def wait_for_steps(paths: RunPaths, attempt: int = 1) -> None:
    """Wait until every rank is at work: each has a step in the attempt."""
    wait_for("start event", lambda: bool(events_of(paths, "start", 0, attempt)))
    world_size = events_of(paths, "start", 0, attempt)[0]["world_size"]
    ranks = range(world_size)
    wait_for("step of every rank", lambda: all(events_of(paths, "step", rank, attempt) for rank in ranks))
