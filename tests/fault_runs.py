"""Runs with an injected fault, from their start to what status says afterwards; used by the matrix and by a slice of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dptrain.launch.cancel import cancel
from dptrain.launch.local import rank_pids, start_local, supervisor_alive
from dptrain.launch.slurm import submit_slurm
from dptrain.launch.snapshot import create_run
from dptrain.plan.plan import make_plan
from dptrain.records.paths import RunPaths
from dptrain.records.process import start_ticks
from dptrain.spec.load import parse_spec
from dptrain.spec.profiles import load_profile
from dptrain.spec.schema import Task
from dptrain.status.model import RunStatus
from dptrain.status.state import Scheduler, run_status
from tests.cli.cli import Cli
from tests.local_runs import TINY, events, wait_for

STALL_S = 10
RELEASED_S = 60
"""A run is over so long after its fault, or after the limit of a stall and half of that."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A fault and what status has to make of it."""

    kind: str
    text: str
    """`DPTRAIN_FAULT`."""
    state: str
    rank: int | None = 1
    """The rank that status names; None: the run ends well."""
    attempts: int = 1

    @property
    def limit_s(self) -> float:
        """From the fault to the end of the ranks."""
        return STALL_S + 30 if self.kind in ("freeze", "hang") else RELEASED_S


def faults(task: Task) -> list[Expected]:
    """Every kind of fault, for a run of six steps with a save after every second one."""
    # A reconstruction saves only when it is preempted.
    save, writer = ("", 0) if task == "train" else ("preempt@rank=1,step=2; ", 1)

    def at(kind: str, state: str, more: str = "", **expected: Any) -> Expected:
        return Expected(kind=kind, text=f"{kind}@rank=1,step=3{more}", state=state, **expected)

    def during_save(kind: str, state: str) -> Expected:
        return Expected(kind=kind, text=f"{save}{kind}@rank={writer},step=2", state=state, rank=writer)

    return [
        at("raise", "failed: exception"),
        at("kill", "failed: killed"),
        at("freeze", "failed: stalled"),
        at("hang", "failed: stalled"),
        at("slow", "completed", ",seconds=1", rank=None),
        at("exit", "failed: unknown", ",code=0"),
        during_save("kill-during-save", "failed: killed"),
        at("preempt", "completed", rank=None, attempts=2),
        at("terminate", "cancelled"),
        at("out-of-memory", "failed: out-of-memory (host)"),
        during_save("full-disk", "failed: disk-full"),
        at("non-finite", "failed: diverged"),
    ]


@contextmanager
def struck_run(
    task: Task, text: str | None, *overrides: str, profile: str = "local", spec: str = TINY
) -> Iterator[RunPaths]:
    """A started run that a fault will strike; whatever of it is left at the end is cancelled."""
    stall = f"run.stall_timeout_s={STALL_S if text and ('freeze' in text or 'hang' in text) else 120}"
    loaded, cluster = (
        parse_spec(spec, "tiny.yaml", Path.cwd(), ("algorithm.iterations=6", stall, *overrides)),
        load_profile(profile),
    )
    plan = make_plan(loaded, task, cluster)
    plan.check()
    with pytest.MonkeyPatch.context() as patch:
        if text is not None:
            patch.setenv("DPTRAIN_FAULT", text)
            patch.setenv("DPTRAIN_FAULT_ALLOW", "1")
        paths = create_run(plan, loaded, cluster)
        if cluster.launcher == "slurm":
            submit_slurm([paths], plan, cluster)
        else:
            start_local(paths, cluster)
    try:
        yield paths
    finally:
        if cluster.launcher == "slurm" or supervisor_alive(paths) == "alive":
            cancel(paths)


def until_over(paths: RunPaths, timeout_s: float = 300) -> RunStatus:
    """Poll the status until nothing of the run is left."""
    scheduler = Scheduler(interval_s=0.5)
    deadline = time.monotonic() + timeout_s
    while True:
        [status] = run_status([paths], scheduler)
        if status.ended:
            return status
        assert time.monotonic() < deadline, f"still {status}"
        time.sleep(0.2)


def released_s(paths: RunPaths, busy: Callable[[], bool]) -> float:
    """Seconds from the last injected fault to the end of the attempt that it struck: no rank, and nothing held.

    :param busy: whether something is still held for the run.
    """
    wait_for(lambda: faults_of(paths), "the fault", 240)
    # The first attempt's: a restarted run has others by then.
    pids = [events(paths, rank, "start")[0]["pid"] for rank in range(2)]
    wait_for(lambda: all(start_ticks(pid) is None for pid in pids) and not busy(), "the end", 240)
    last: float = max(e["t"] for e in faults_of(paths))
    return time.time() - last


def faults_of(paths: RunPaths) -> list[dict[str, Any]]:
    """The strikes that the ranks have recorded."""
    return [e for rank in range(2) for e in events(paths, rank, "fault")]


def status_of(paths: RunPaths) -> dict[str, Any]:
    """What `dptrain status --json` says of the run."""
    kept = {key: os.environ[key] for key in ("SLURM_CONF", "DPTRAIN_RUNS", "XDG_CONFIG_HOME") if key in os.environ}
    done = Cli(paths.dir, **kept)("status", paths.dir, "--json", "--ranks")
    [entry] = json.loads(done.out)
    assert isinstance(entry, dict)
    return entry


def check(entry: dict[str, Any], expected: Expected) -> None:
    """State, class, first rank, and that the fault is told."""
    assert entry["state"] == expected.state, entry
    assert entry["over"] and entry["attempt"] == expected.attempts, entry
    assert expected.kind in entry["faults"]
    if expected.state == "cancelled":
        assert f"rank {expected.rank}" in entry["reason"], entry
    elif expected.rank is not None:
        failure = entry["failure"]
        assert failure["class"] == expected.state.removeprefix("failed: "), entry
        assert failure["rank"] == expected.rank and failure["host"], entry


def local_left(paths: RunPaths) -> bool:
    """Whether a process of a local run is left."""
    return supervisor_alive(paths) != "gone" or bool(rank_pids(paths))
