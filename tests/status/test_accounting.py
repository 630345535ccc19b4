"""Jobs that the controller has forgotten, where a stand-in for sacct knows them: asked once, and only where nothing else tells."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dptrain.status.state import ACCOUNTED_S, Scheduler, run_status
from tests.status.helpers import WrittenRun
from tests.status.test_state import fake_squeue


def fake_sacct(folder: Path, answer: str) -> Path:
    """Put a sacct beside the stand-in for squeue; the file with a line per call."""
    calls = folder / "sacct-calls"
    script = folder / "sacct"
    script.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{answer}\n')
    script.chmod(0o755)
    return calls


@pytest.fixture
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A controller that knows no job, and nothing kept of earlier answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fake_squeue(tmp_path, monkeypatch)
    return tmp_path


@pytest.mark.parametrize(
    ("word", "state", "over"),
    [
        ("CANCELLED by 1000", "cancelled", True),
        ("TIMEOUT", "timed-out", True),
        ("NODE_FAIL", "failed: node-failure", True),
        ("PREEMPTED", "preempted", True),
        ("FAILED", "failed: never-started", True),
        ("COMPLETED", "incomplete", True),
        ("RUNNING", "failed: never-started", True),  # its end was missed: the controller knows of no such job
        ("PENDING", "failed: never-started", True),
    ],
)
def test_a_job_that_left_nothing_is_what_accounting_says(forgotten: Path, word: str, state: str, over: bool) -> None:
    fake_sacct(forgotten, f"echo '12|{word}|0:0|None assigned|Unknown'")
    (status,) = run_status([WrittenRun(forgotten / "runs").paths])
    assert (status.state, status.over) == (state, over)
    told = {"incomplete": "records", "failed: node-failure": "scheduler"}.get(state, "accounting")
    assert status.source == ("scheduler" if word in ("RUNNING", "PENDING") else told)


def test_one_call_for_all_and_none_where_the_records_tell(forgotten: Path) -> None:
    calls = fake_sacct(forgotten, "printf '9_0|TIMEOUT|0:0|n1|Unknown\\n9_1|CANCELLED by 0|0:0||\\n'")
    failed, done = WrittenRun(forgotten / "runs", "failed-1", job_id="7"), WrittenRun(forgotten / "runs", "done-1")
    failed.start(0)
    failed.fail(0)
    done.finish()
    silent = [WrittenRun(forgotten / "runs", f"silent-{i}", job_id=f"9_{i}") for i in range(3)]
    scheduler = Scheduler(0.0)
    for _ in range(2):
        statuses = run_status([run.paths for run in (failed, done, *silent)], scheduler)
        assert [s.state for s in statuses] == [
            "failed: exception",
            "completed",
            "timed-out",
            "cancelled",
            "failed: never-started",
        ]
    (call,) = calls.read_text().splitlines()
    assert call.endswith("--jobs=9_0,9_1,9_2")


def test_a_lasting_answer_is_kept_for_the_next_status(forgotten: Path) -> None:
    calls = fake_sacct(forgotten, "echo '12_1|CANCELLED by 0|0:15|n[1-2]|2024-01-31T10:00:00'")
    told = WrittenRun(forgotten / "runs", "told", job_id="12_1")
    old = WrittenRun(forgotten / "runs", "old", job_id="7", created_s=time.time() - ACCOUNTED_S - 60)
    for _ in range(2):
        states = [status.state for status in run_status([told.paths, old.paths])]
        assert states == ["cancelled", "failed: never-started"]
    assert len(calls.read_text().splitlines()) == 1
    # Of a young run accounting may learn more; and the same job of another cluster is another one.
    young = WrittenRun(forgotten / "runs", "young", job_id="7")
    other = WrittenRun(forgotten / "elsewhere", "other", job_id="12_1")
    for run in (young, young, other):
        run_status([run.paths])
    assert len(calls.read_text().splitlines()) == 4


@pytest.mark.parametrize("text", ["", "no events", '{"kind": "accounted", "run": [1], "job_id": {}, "line": 3}\n'])
def test_a_damaged_file_of_answers_is_none(forgotten: Path, text: str) -> None:
    calls = fake_sacct(forgotten, "echo '12|TIMEOUT|0:0|n1|Unknown'")
    file = forgotten / "cache" / "dptrain" / "accounting.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert run_status([WrittenRun(forgotten / "runs").paths])[0].state == "timed-out" and calls.exists()


def test_no_answer_is_asked_again(forgotten: Path) -> None:
    calls = fake_sacct(forgotten, f"test -e {forgotten}/up && echo '12|TIMEOUT|0:0|n1|Unknown'")
    run, scheduler = WrittenRun(forgotten / "runs"), Scheduler(0.0)
    assert run_status([run.paths], scheduler)[0].state == "failed: never-started"
    (forgotten / "up").touch()
    assert run_status([run.paths], scheduler)[0].state == "timed-out"
    patient = Scheduler()
    (forgotten / "up").unlink()
    silent = WrittenRun(forgotten / "runs", "silent", job_id="13")
    for _ in range(3):
        run_status([silent.paths], patient)
    assert len(calls.read_text().splitlines()) == 3, "as rarely as the controller is asked"


def test_where_there_is_no_accounting_nothing_changes(forgotten: Path) -> None:
    fake_sacct(forgotten, "echo Slurm accounting storage is disabled >&2; exit 1")
    (status,) = run_status([WrittenRun(forgotten / "runs").paths])
    assert (status.state, status.source) == ("failed: never-started", "scheduler")
