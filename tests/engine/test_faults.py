"""A slice of the faults (tests/acceptance/test_faults.py has all of them), and disks that are really full."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.engine.faults import Faults, InjectedFault
from dptrain.engine.watch import Requests, Watch
from dptrain.errors import UsageError
from dptrain.launch.local import start_local
from dptrain.records.events import EventLog, read_events
from dptrain.records.saves import newest_save
from tests.disks import small_disk
from tests.fault_runs import faults, faults_of, local_left, struck_run, until_over
from tests.local_runs import events, finish, wait_for


@pytest.fixture(autouse=True)
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.acceptance
def test_killed_in_a_save_restarted_and_done() -> None:
    (expected,) = (e for e in faults("train") if e.kind == "kill-during-save")
    with struck_run("train", expected.text.replace("step=2", "step=4")) as paths:
        status = until_over(paths)
        assert (status.state, status.failure and status.failure.rank) == ("failed: killed", 0)
        assert status.faults == "kill-during-save@rank=0,step=4,attempt=1"
        # The save was begun, and is none.
        assert sorted(p.name for p in paths.saves.iterdir()) == [".step-4.partial", "step-2"]
        start_local(paths)
        assert finish(paths) == 0
        assert until_over(paths).state == "completed"
        assert [e["step"] for e in events(paths, 0, "step")] == [1, 2, 3, 4, 3, 4, 5, 6]
        assert len(faults_of(paths)) == 1 and not local_left(paths)


def test_a_preempted_reconstruction_whose_disk_is_full() -> None:
    (expected,) = (e for e in faults("infer") if e.kind == "full-disk")
    with struck_run("infer", expected.text) as paths:
        status = until_over(paths)
        assert (status.state, status.failure and status.failure.rank) == ("failed: disk-full", 1)
        assert [e["fault"].partition("@")[0] for e in events(paths, 1, "fault")] == ["preempt", "full-disk"]


def test_a_run_on_a_full_disk_says_so_and_keeps_its_saves(tmp_path: Path) -> None:
    with small_disk(tmp_path / "runs", 400):
        change = ("train.steps=500", "train.save_every_steps=1", "run.keep_saves=500", "train.held_out=0")
        with struck_run("train", None, *change) as paths:
            status = until_over(paths)
            # Either rank may be the first that the disk refuses something: a save, or the record of a step.
            assert status.state == "failed: disk-full", status
            assert newest_save(paths) is not None
            wait_for(lambda: not local_left(paths), "the end of the processes")


def test_another_fault_than_the_run_was_made_with_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = EventLog(tmp_path / "e")
    requests = Requests(events, Watch(events, setup_timeout_s=60, stall_timeout_s=60))
    planned = "raise@rank=0,step=2,attempt=1"
    Faults(planned, 0, 1, events, requests)
    monkeypatch.setenv("DPTRAIN_FAULT", "raise@step=2")  # the same in other words
    faults = Faults(planned, 0, 1, events, requests)
    faults.at_step(1)
    assert faults.unstruck() == [planned]
    with pytest.raises(InjectedFault):
        faults.at_step(2)
    assert faults.unstruck() == [] and [e["fault"] for e in read_events(tmp_path / "e")] == [planned]
    monkeypatch.setenv("DPTRAIN_FAULT", "raise@step=3")
    for made_with, said in ((planned, f"made with {planned}"), (None, "made without it")):
        with pytest.raises(UsageError, match=said):
            Faults(made_with, 0, 1, events, requests)
