"""Local runs with real ranks: ends, failures, signals, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.errors import UsageError, WaitTimeout
from dptrain.launch.cancel import cancel
from dptrain.launch.local import SUPERVISOR, may_be_supervisor, rank_pids, start_local, supervisor_alive, wait_local
from dptrain.records.intent import read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.records.process import start_ticks
from dptrain.spec.profiles import load_profile
from tests.launch.runs import ENDLESS, events_of, tiny_run, wait_for, wait_for_steps

WAIT_S = 120


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # What an outer job would leave must not reach the ranks.
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "9")


def started(tmp_path: Path, *overrides: str) -> RunPaths:
    paths, _, profile = tiny_run("local", tmp_path, *overrides)
    start_local(paths, profile)
    return paths


def test_a_run_ends_well_and_says_so(tmp_path: Path) -> None:
    paths = started(tmp_path)
    intent = read_intent(paths)
    assert (intent.submission, intent.launcher) == ("submitted", "local")
    assert wait_local(paths, WAIT_S) == 0
    launched = events_of(paths, "launched")[0]
    assert str(launched["pid"]) == intent.job_id
    assert launched["world_size"] == len(launched["pids"]) == 2
    assert events_of(paths, "ended")[0]["exitcode"] == 0
    assert events_of(paths, "exit") == []
    for rank in range(2):
        start = events_of(paths, "start", rank)[0]
        assert (start["rank"], start["world_size"], start["job_id"]) == (rank, 2, intent.job_id)
        assert events_of(paths, "final", rank)
    assert json.loads(paths.result.read_text())["world_size"] == 2
    assert supervisor_alive(paths) == "gone"
    assert cancel(paths) == f"{paths.run_id} had already ended"


def test_a_killed_rank_ends_the_others_and_is_named(tmp_path: Path) -> None:
    paths = started(tmp_path, ENDLESS)
    wait_for_steps(paths)
    victim = events_of(paths, "start", 1)[0]["pid"]
    assert victim in rank_pids(paths)
    os.kill(victim, signal.SIGKILL)
    assert wait_local(paths, WAIT_S) == 128 + signal.SIGKILL
    assert rank_pids(paths) == []
    first = events_of(paths, "exit")[0]
    assert (first["rank"], first["pid"], first["exitcode"], first["signal"]) == (1, victim, -9, "SIGKILL")
    assert first["ended_by_launcher"] is False


def test_cancel_ends_every_process_and_is_recorded(tmp_path: Path) -> None:
    paths = started(tmp_path, ENDLESS)
    wait_for_steps(paths)
    with pytest.raises(WaitTimeout, match="still runs after 0 s"):
        wait_local(paths, 0)
    assert cancel(paths) == f"{paths.run_id}: cancelled"
    assert rank_pids(paths) == []
    assert supervisor_alive(paths) == "gone"
    assert wait_local(paths, WAIT_S) == 128 + signal.SIGTERM
    assert events_of(paths, "cancel")[0]["by"] == "dptrain cancel"
    assert all(event["ended_by_launcher"] for event in events_of(paths, "exit"))


def test_no_rank_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    paths = started(tmp_path, ENDLESS)
    wait_for_steps(paths)
    os.kill(int(str(read_intent(paths).job_id)), signal.SIGKILL)
    assert wait_local(paths, WAIT_S) is None
    wait_for("end of the ranks", lambda: rank_pids(paths) == [])
    assert events_of(paths, "ended") == []
    # Another start is the next attempt.
    start_local(paths)
    wait_for("second start", lambda: bool(events_of(paths, "launched", attempt=2)))
    cancel(paths)
    assert rank_pids(paths) == []


def test_a_warning_to_one_rank_starts_the_next_attempt_from_the_same_step(tmp_path: Path) -> None:
    paths = started(tmp_path, ENDLESS)
    wait_for_steps(paths)
    os.kill(events_of(paths, "start", 1)[0]["pid"], signal.SIGUSR2)
    wait_for_steps(paths, attempt=2)
    asked = [events_of(paths, "requeue", rank)[0]["step"] for rank in range(2)]
    assert asked[0] == asked[1]
    assert events_of(paths, "exit") == []
    assert events_of(paths, "start", 0, attempt=2)[0]["attempt"] == 2
    assert events_of(paths, "step", 0, attempt=2)[0]["step"] == asked[0] + 1
    cancel(paths)
    assert events_of(paths, "ended", attempt=2)[0]["exitcode"] == 128 + signal.SIGTERM


def test_a_reused_pid_is_not_taken_for_the_supervisor(tmp_path: Path) -> None:
    paths, _, _ = tiny_run("local", tmp_path)
    update_intent(paths, submission="submitted", job_id=str(os.getpid()), host=socket.gethostname())
    launched = {"kind": "launched", "t": 1.0, "host": socket.gethostname(), "pid": os.getpid(), "world_size": 2}
    for ticks, state in ((start_ticks(os.getpid()), "alive"), (1, "gone")):
        paths.attempt(1).launcher_events.write_text(json.dumps({**launched, "start_ticks": ticks}) + "\n")
        assert supervisor_alive(paths) == state


def test_a_program_that_is_only_just_started_may_be_the_supervisor() -> None:
    assert may_be_supervisor(["python", "-m", SUPERVISOR, "runs/x", "1", ""])
    assert may_be_supervisor([""]), "the kernel has not filled in the command line yet"
    assert not may_be_supervisor(["sleep", "9", ""])
    assert not may_be_supervisor([]), "it is gone"


def test_a_run_of_another_host_is_cancelled_there(tmp_path: Path) -> None:
    paths, _, _ = tiny_run("local", tmp_path)
    with pytest.raises(UsageError, match="there is nothing to cancel"):
        cancel(paths)
    update_intent(paths, submission="submitted", job_id="1", host="elsewhere")
    with pytest.raises(UsageError, match="runs on elsewhere: cancel it there"):
        cancel(paths)


def test_batch_lines_in_a_local_profile_are_refused(tmp_path: Path) -> None:
    paths, _, profile = tiny_run("local", tmp_path)
    with pytest.raises(UsageError, match="setup is for batch scripts"):
        start_local(paths, replace(profile, setup=("module load x",)))
    with pytest.raises(UsageError, match="python does not exist"):
        start_local(paths, replace(profile, python="/missing/python"))
    assert load_profile("local").launcher == "local"
