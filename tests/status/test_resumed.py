"""Runs that were started again by hand or by themselves in another job: what is history, what is now."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from pathlib import Path

import pytest

from dptrain.status.collect import read_run
from dptrain.status.decide import decide
from dptrain.status.show import remark
from dptrain.status.state import run_status
from tests.status.helpers import WrittenRun, job
from tests.status.test_state import fake_squeue


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    """Its first attempt failed."""
    made = WrittenRun(tmp_path)
    for rank in (0, 1):
        made.start(rank)
        made.step(rank, 1)
    made.fail(1)
    made.batch_log("dptrain: setup line failed with exit code 1: module load nope\n")
    return made


def state(run: WrittenRun, *job_words: object) -> str:
    return decide(read_run(run.paths), job(*job_words), time.time()).state  # type: ignore[arg-type]


def test_a_resumed_job_is_judged_by_its_own_records(run: WrittenRun) -> None:
    run.change(job_id="13", first_attempt=2, asked_attempt=2)
    assert state(run, "PENDING", "Resources") == "queued"
    assert state(run, "RUNNING") == "starting"
    assert state(run, "FAILED") == "failed: never-started"
    assert state(run, "PENDING", "BeginTime", 1) == "requeued"
    for rank in (0, 1):
        run.start(rank, 2)
    assert state(run, "RUNNING") == "running"


def test_the_next_job_of_a_chain_is_the_runs_own_doing(run: WrittenRun) -> None:
    run.change(job_id="13", first_attempt=2, asked_attempt=1)
    assert state(run, "PENDING", "Dependency") == "requeued"


def test_a_local_run_that_was_just_resumed_has_not_failed(run: WrittenRun) -> None:
    run.launcher("ended", exitcode=1)
    run.change(launcher="local", job_id=str(os.getpid()), host=socket.gethostname())
    assert run_status([run.paths])[0].state == "failed: exception"
    run.change(first_attempt=2, asked_attempt=2)
    (status,) = run_status([run.paths])
    assert (status.state, status.attempt, status.over) == ("starting", 2, False)
    assert status.history == ("attempt 1: exception at step 1",)
    assert status.step == 1, "it keeps showing how far it was"


@pytest.mark.parametrize(("seconds", "warned"), [(45.0, False), (46.0, True)])
def test_a_save_that_takes_half_of_the_lead_is_warned_of(
    run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, warned: bool
) -> None:
    fake_squeue(tmp_path, monkeypatch)
    run.paths.spec.write_text("name: demo\nrun: {signal_lead_s: 90}\n")
    run.event(0, "save", step=1, seconds=seconds)
    (status,) = run_status([run.paths])
    assert bool(status.warnings) is warned and status.to_json()["warnings"] == list(status.warnings)
    run.change(launcher="local")
    assert run_status([run.paths])[0].warnings == (), "nothing warns a local run"


@pytest.mark.parametrize(
    ("why", "told"), [("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "node-failure"), ("PREEMPTION", "preempted")]
)
def test_an_attempt_that_the_scheduler_cut_short_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, told: str
) -> None:
    fake_squeue(tmp_path, monkeypatch)
    run = WrittenRun(tmp_path / "runs")
    for rank in (0, 1):
        run.start(rank)
        run.step(rank, 1)
    run.fail(0, message="connection closed by peer", secondary=True)
    now = datetime.now().isoformat(timespec="seconds")
    run.batch_log(f"slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT {now} DUE TO {why} ***\n")
    time.sleep(0.01)
    run.start(0, attempt=2)
    (status,) = run_status([run.paths])
    assert status.history == (f"attempt 1: {told} at step 1",)
    assert f"attempt 1: {told} at step 1" in str(remark(status))
    for rank in (0, 1):
        run.start(rank, attempt=2)
        run.step(rank, 3, attempt=2)
        run.final(rank, attempt=2)
    (done,) = run_status([run.paths])
    assert (done.state, done.history) == ("completed", status.history)
