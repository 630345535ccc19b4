"""Signals reach a rank whatever it is doing; limits are kept per phase."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dptrain.engine.watch import EXIT_CANCELLED, EXIT_REQUEUE, STOPPED_S, Watch
from dptrain.records.events import EventLog, read_events

RANK = """
import sys, time, ctypes
from dptrain.engine.watch import Requests, Watch
from dptrain.records.events import EventLog
from pathlib import Path
events = EventLog(Path(sys.argv[1]))
watch = Watch(events, setup_timeout_s=50, stall_timeout_s=50)
requests = Requests(events, watch)
requests.install()
requests.leaving = sys.argv[2] == "leaving"
watch.start()
events.write("ready")
# A wait in C that no signal interrupts, as in a collective whose partner is gone: pthread_join of a thread that sleeps.
libc = ctypes.CDLL(None)
if sys.argv[2] == "in C":
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
while not requests.save_and_stop:
    time.sleep(0.01)
events.write("flag")
"""


def started(file: Path, mode: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", RANK, str(file), mode])
    deadline = time.monotonic() + 60
    while not any(e["kind"] == "ready" for e in read_events(file)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.parametrize(
    "mode,code", [("in Python", EXIT_CANCELLED), ("in C", EXIT_CANCELLED), ("leaving", EXIT_REQUEUE)]
)
def test_sigterm_ends_a_rank_at_once(tmp_path: Path, mode: str, code: int) -> None:
    process = started(tmp_path / "e", mode)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == code
    failures = [e["class"] for e in read_events(tmp_path / "e") if e["kind"] == "failure"]
    assert failures == ([] if mode == "leaving" else ["cancelled"])


def test_a_rank_ends_when_its_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    process = started(folder / "e", "in C")
    shutil.rmtree(folder)
    assert process.wait(timeout=20) == 1


def test_a_warning_only_sets_a_flag(tmp_path: Path) -> None:
    process = started(tmp_path / "e", "in Python")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=20) == 0
    kinds = [e["kind"] for e in read_events(tmp_path / "e")]
    assert kinds == ["phase", "ready", "signal", "flag"]


def test_ctrl_c_is_left_to_the_command_line_tool(tmp_path: Path) -> None:
    process = started(tmp_path / "e", "in Python")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=20) == 0


def test_progress_in_time_is_no_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    watch = Watch(EventLog(tmp_path / "e"), setup_timeout_s=0.4, stall_timeout_s=60)
    watch.start()
    for _ in range(8):
        time.sleep(0.1)
        watch.progress()
    watch.enter("run")
    time.sleep(0.8)  # longer than the limit of the set-up, which no longer holds
    watch.close()
    assert ended == [] and not [e for e in read_events(tmp_path / "e") if e["kind"] == "failure"]


def test_a_job_that_was_suspended_has_not_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    real, stopped_s = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + stopped_s[0])
    watch = Watch(EventLog(tmp_path / "e"), setup_timeout_s=60, stall_timeout_s=60)
    watch.start()
    time.sleep(1.2)
    stopped_s[0] = 1000.0
    time.sleep(1.2)
    watch.close()
    assert ended == [] and not [e for e in read_events(tmp_path / "e") if e["kind"] == "failure"]


def test_a_device_that_does_not_answer_does_not_end_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr("dptrain.engine.watch.HEARTBEAT_S", 0.0)
    monkeypatch.setattr("dptrain.engine.watch.OTHERS_DUMP_S", 0.0)
    watch = Watch(EventLog(tmp_path / "e"), setup_timeout_s=0.5, stall_timeout_s=60)

    def broken() -> int:
        raise ZeroDivisionError("no device")

    watch.peak_memory_bytes = broken
    watch.start()
    time.sleep(1.0)
    watch.close()
    events = list(read_events(tmp_path / "e"))
    beats = [e for e in events if e["kind"] == "heartbeat"]
    assert beats[0]["peak_memory_bytes"] is None and beats[0]["bytes_sent"] == 0
    assert next(e["class"] for e in events if e["kind"] == "failure") == "stalled" and ended, "it still watches"


def test_a_slow_file_system_is_no_suspension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr("dptrain.engine.watch.OTHERS_DUMP_S", 0.0)
    real, waited_s = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + waited_s[0])
    watch = Watch(EventLog(tmp_path / "e"), setup_timeout_s=0.4, stall_timeout_s=60)

    def slow() -> bool:
        waited_s[0] += 2 * STOPPED_S
        return False

    monkeypatch.setattr(watch, "_forgotten", slow)
    watch.start()
    deadline = real() + 10
    while not ended and real() < deadline:
        time.sleep(0.02)
    watch.close()
    assert ended and [e["class"] for e in read_events(tmp_path / "e") if e["kind"] == "failure"]
