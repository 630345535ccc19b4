"""The important ends of a run on a SLURM with accounting: while the controller knows the job, and after it has forgotten it.

With accounting off the same ends are tested in tests/cli/test_slurm_runs.py and tests/acceptance/test_faults.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.query import query_jobs
from tests.fault_runs import status_of, struck_run, until_over
from tests.local_runs import events, wait_for
from tests.slurm_cluster import SmallSlurm
from tests.slurm_fixtures import point_to

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
SLOW = "slow@rank=0,step=1,seconds=0.5"
LONG = "train.steps=1000"
EXPECTED = {
    "completed": ("completed", "records", "completed", "records"),
    "killed": ("failed: killed", "scheduler", "failed: killed", "scheduler"),
    "cancelled": ("cancelled", "scheduler", "cancelled", "records"),
    "cancelled while queued": ("cancelled", "scheduler", "cancelled", "accounting"),
    "timed out": ("timed-out", "scheduler", "timed-out", "scheduler"),
    "preempted": ("completed", "records", "completed", "records"),
}
"""State and its source: while the controller knows the job, then when it does not."""


@pytest.fixture
def accounted(accounted_cluster: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallSlurm]:
    """The cluster with accounting, as this process' own; it forgets as late as ever again afterwards."""
    point_to(accounted_cluster, tmp_path, monkeypatch)
    yield accounted_cluster
    accounted_cluster.change(MinJobAge=300)


def job_of(paths: RunPaths) -> str:
    return str(read_intent(paths).job_id)


def sacct(slurm: SmallSlurm, paths: RunPaths) -> list[str]:
    """Accounting's words about the job, one per attempt."""
    words = ("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--format=State", "--jobs")
    return slurm.command(*words, job_of(paths)).splitlines()


def started(stack: ExitStack, fault: str, *change: str) -> RunPaths:
    """A training on the cluster that goes on until something happens to it."""
    return stack.enter_context(struck_run("train", fault, LONG, *change, profile="small"))


def ends(slurm: SmallSlurm, stack: ExitStack) -> dict[str, RunPaths]:
    """A run for each end, brought to it."""
    runs = {"timed out": started(stack, "hang@rank=0,step=1", "resources.time_min=1", "run.stall_timeout_s=600")}
    slurm.command("scontrol", "update", "partitionname=main", "state=down")
    runs["cancelled while queued"] = started(stack, SLOW)
    slurm.command("scancel", job_of(runs["cancelled while queued"]))
    slurm.command("scontrol", "update", "partitionname=main", "state=up")
    runs["completed"] = started(stack, SLOW, "train.steps=2")
    runs["killed"], runs["cancelled"] = started(stack, SLOW), started(stack, SLOW)
    runs["preempted"] = started(stack, SLOW, "train.steps=30")
    for name in ("killed", "cancelled", "preempted"):
        wait_for(lambda name=name: events(runs[name], 1, "step"), f"a step of {name}", 240)  # type: ignore[misc]
    os.kill(events(runs["killed"], 1, "start")[0]["pid"], signal.SIGKILL)
    slurm.command("scancel", job_of(runs["cancelled"]))
    slurm.command("scancel", "--signal=USR2", job_of(runs["preempted"]))
    for paths in runs.values():
        until_over(paths)
    return runs


def test_every_end_is_told_alike_before_and_after_the_controller_forgets_it(accounted: SmallSlurm) -> None:
    with ExitStack() as stack:
        runs = ends(accounted, stack)
        ids = [job_of(paths) for paths in runs.values()]
        assert set(query_jobs(ids)) == set(ids)
        known = {name: status_of(paths) for name, paths in runs.items()}
        accounted.change(MinJobAge=2)
        wait_for(lambda: not query_jobs(ids), "the controller to forget", 240)
        forgotten = {name: status_of(paths) for name, paths in runs.items()}
        said = {name: sacct(accounted, paths) for name, paths in runs.items()}
    found = {
        name: tuple(word for entry in (known[name], forgotten[name]) for word in (entry["state"], entry["source"]))
        for name in runs
    }
    for name, words in found.items():
        print(f"{name}: {words[0]} ({words[1]}), forgotten: {words[2]} ({words[3]}), sacct: {', '.join(said[name])}")
    assert found == EXPECTED
    assert [word.split()[0] for word in said["cancelled while queued"]] == ["CANCELLED"]
    assert said["timed out"] == ["TIMEOUT"] and said["completed"] == ["COMPLETED"] and said["killed"] == ["FAILED"]
    assert len(said["preempted"]) == 2 and said["preempted"][-1] == "COMPLETED"
    assert known["preempted"]["attempt"] == forgotten["preempted"]["attempt"] == 2
    for entries in (known, forgotten):
        failure = entries["killed"]["failure"]
        assert (failure["rank"], failure["signal"]) == (1, "SIGKILL") and failure["host"]
