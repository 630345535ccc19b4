"""Which members of a sweep are done, which take a place, and what is said of them."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dptrain.cli.start import Options
from dptrain.cli.sweeping import Grid, _conclude, _refresh, _runs_here, _say_shared
from dptrain.launch.sweeps import plan_members
from dptrain.spec.profiles import load_profile
from dptrain.status.state import run_status
from tests.launch.test_sweeps import load
from tests.status.helpers import WrittenRun

FAULT = "slow@rank=0,step=1,attempt=1,seconds=1"


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grid:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    profile = load_profile("local")
    members, _ = plan_members(load("{algorithm.iterations: [1, 2, 3, 4]}"), "infer", profile)
    return Grid(name="sw", task="infer", profile=profile, members=members, unplanned=[], known={})


def test_runs_with_injected_faults_are_no_members_results(
    grid: Grid, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = [planned.member.fingerprint for planned in grid.members]

    def run(name: str, mark: str, faults: str | None = None) -> WrittenRun:
        return WrittenRun(tmp_path, name, fingerprint=mark, faults=faults, launcher="local", job_id="999999999")

    run("clean", marks[0]).finish()
    run("slowed", marks[1], FAULT).finish()
    failed = run("killed", marks[2], FAULT)
    failed.start(0)
    failed.fail(0)
    # A clean run stands for its member, whatever became of a faulty one after it.
    run("clean-too", marks[3]).finish()
    run("slowed-too", marks[3], FAULT).finish()
    for paths in tmp_path.glob("slowed*"):
        (paths / "result.json").write_text("{}")
    known = _refresh(grid)
    assert [paths.run_id for paths, _ in known.found()] == ["clean", "slowed", "killed", "clean-too"]
    assert known.missing(retry=False) == grid.members[1:3]
    (tmp_path / "killed" / "intent.json").unlink()
    _conclude(_refresh(grid), Options())
    said = capsys.readouterr().out
    assert "2 of 4 completed" in said and "1 with injected faults do not count" in said


def test_a_member_that_runs_is_seen_whatever_was_asked_for_after_it(grid: Grid, tmp_path: Path) -> None:
    marks = [planned.member.fingerprint for planned in grid.members]

    def run(name: str, mark: str, **intent: Any) -> WrittenRun:
        return WrittenRun(tmp_path, name, fingerprint=mark, launcher="local", world_size=1, **intent)

    here = {"job_id": str(os.getpid()), "host": socket.gethostname()}
    run("going", marks[0], **here)
    run("refused", marks[0], job_id=None, submission="refused", refusal="QOSMaxSubmitJobPerUserLimit")
    failed = run("failed", marks[1], job_id="999999999")
    failed.start(0)
    failed.fail(0)
    failed.paths.result.write_text("{}")
    run("again", marks[1], **here)
    known = _refresh(grid)
    assert [paths.run_id for paths, _ in known.found()] == ["going", "again"]
    assert known.missing(retry=True) == grid.members[2:]


def test_a_run_takes_its_place_until_it_has_ended(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, launcher="local")
    (status,) = run_status([run.paths])

    def here(state: str, over: bool = False, launcher: str = "local") -> bool:
        return _runs_here(replace(status, state=state, over=over, launcher=launcher))

    going = ("submitting", "starting", "running", "requeued", "stalled", "failed: killed")
    assert all(here(state) for state in going)
    assert not here("completed", over=True) and not here("unknown") and not here("running", launcher="slurm")


def test_members_that_share_the_machine_are_no_measurement(grid: Grid, capsys: pytest.CaptureFixture[str]) -> None:
    for members, at_once in ((grid.members, 1), ([], 2), (grid.members, 2)):
        _say_shared(members, at_once)
        said = "note: 2 runs at once share this machine: their times say nothing of scaling; for times write --max-parallel 1"
        assert capsys.readouterr().err == (f"{said}\n" if members and at_once > 1 else "")
