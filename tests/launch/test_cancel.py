"""Cancelling a run whose command was killed between sbatch and its record: the job is found by its comment."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dptrain.errors import StateUnknown, UsageError
from dptrain.launch.adopt import SUBMITTING_S
from dptrain.launch.cancel import cancel
from dptrain.launch.slurm import submit_slurm
from dptrain.records.intent import read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.query import _FIELDS
from dptrain.status.state import run_status
from tests.launch.runs import ENDLESS, events_of, tiny_run
from tests.slurm_cluster import SmallSlurm
from tests.status.helpers import Said, WrittenRun
from tests.status.test_state import fake_squeue

MARK = "dptrain:demo-1:abc"


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs", submission="submitting", job_id=None, comment=MARK)


def slurm_says(folder: Path, patch: pytest.MonkeyPatch, job_id: str, state: str = "PENDING") -> Path:
    """A controller that has one job with the mark, and an scancel that writes down what it is asked for."""
    values = {"JobArrayID": job_id, "State": state, "Comment": MARK}
    line = "".join(f"{values.get(name, 'N/A'):{width}}" for name, width in _FIELDS.items())
    fake_squeue(folder, patch, f"echo '{line}'")
    asked, program = folder / "scancel-calls", folder / "scancel"
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    program.chmod(0o755)
    return asked


def make_old(paths: RunPaths) -> None:
    past = time.time() - SUBMITTING_S - 5
    os.utime(paths.intent, (past, past))


@pytest.mark.parametrize("old", [False, True])
def test_a_job_that_exists_is_found_noted_and_cancelled(
    run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    asked = slurm_says(tmp_path, monkeypatch, "12")
    if old:
        make_old(run.paths)
    assert cancel(run.paths) == "demo-1: asked SLURM to cancel job 12"
    assert asked.read_text() == "12\n"
    intent = read_intent(run.paths)
    assert (intent.submission, intent.job_id) == ("submitted", "12")
    assert run_status([run.paths], Said("forgotten"))[0].state == "cancelled"


def test_of_an_array_only_the_own_member_is_cancelled(
    run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = slurm_says(tmp_path, monkeypatch, "12_[0-3]")
    home = RunPaths(tmp_path / "runs" / "sweep" / "part-1")
    for folder in (home.submitit, home.batch_log):
        folder.mkdir(parents=True)
    run.change(array="sweep/part-1", array_index=2)
    cancel(run.paths)
    assert asked.read_text() == "12_2\n" and read_intent(run.paths).job_id == "12_2"


def test_a_job_that_has_ended_is_said_to_have(run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = slurm_says(tmp_path, monkeypatch, "12", "COMPLETED")
    assert cancel(run.paths) == "demo-1: job 12 had already ended"
    assert not asked.exists() and not events_of(run.paths, "cancel")


def test_without_a_job_it_may_be_on_its_way_and_later_there_is_none(
    run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_squeue(tmp_path, monkeypatch)
    with pytest.raises(StateUnknown, match="may be on its way"):
        cancel(run.paths)
    assert read_intent(run.paths) == run.intent, "nothing is noted"
    make_old(run.paths)
    with pytest.raises(UsageError, match="has no job"):
        cancel(run.paths)
    (status,) = run_status([run.paths])
    assert (status.state, status.over) == ("never-submitted", True)


@pytest.mark.parametrize("old", [False, True])
def test_nobody_answers(run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    fake_squeue(tmp_path, monkeypatch, "echo squeue: error: cannot connect >&2; exit 1")
    if old:
        make_old(run.paths)
    before = run.paths.intent.read_bytes()
    with pytest.raises(StateUnknown, match="squeue does not answer"):
        cancel(run.paths)
    assert run.paths.intent.read_bytes() == before


@pytest.mark.slurm
def test_on_a_real_controller(slurm: SmallSlurm, tmp_path: Path) -> None:
    paths, plan, profile = tiny_run("small", tmp_path, ENDLESS)
    [job_id] = submit_slurm([paths], plan, profile)
    update_intent(paths, submission="submitting", job_id=None)
    assert cancel(paths) == f"{paths.run_id}: asked SLURM to cancel job {job_id}"
    assert slurm.wait_state(job_id, "CANCELLED", "COMPLETED", timeout_s=60) == "CANCELLED"
    (status,) = run_status([paths])
    assert (status.state, status.job_id) == ("cancelled", job_id)
