"""Event lines: whole lines only, a torn one tolerated; intents are replaced in one step."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dptrain.records.events import EventLog, append_event, read_events
from dptrain.records.intent import Intent, read_intent, update_intent, write_intent
from dptrain.records.paths import RunPaths
from tests.disks import small_disk


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e.jsonl")
    for step in range(3):
        log.write("step", step=step, psnr_db=float("nan") if step else 30.5, nested=[math.inf, {"x": -math.inf}])
    log.close()
    append_event(tmp_path / "e.jsonl", "final", message="ü\n")
    events = list(read_events(tmp_path / "e.jsonl"))
    assert [e["kind"] for e in events] == ["step", "step", "step", "final"]
    assert [e.get("psnr_db") for e in events] == [30.5, None, None, None]
    assert events[0]["nested"] == [None, {"x": None}]
    assert events[3]["message"] == "ü\n"


def test_torn_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    append_event(path, "start")
    with path.open("ab") as file:
        file.write(b'\n[1]\n{"no": 1}\n\xff\xfe\n{"kind": "step", "step": 1}\n{"kind": "st')
    assert [e["kind"] for e in read_events(path)] == ["start", "step"]
    assert list(read_events(tmp_path / "absent.jsonl")) == []


def test_writers_do_not_mix_lines(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"

    def write() -> None:
        for _ in range(50):
            append_event(path, "x", text="y" * 500)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(list(read_events(path))) == 200


def test_an_intent_is_replaced_and_unknown_fields_are_ignored(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.create()
    write_intent(
        paths, Intent(run="r", task="train", launcher="slurm", cluster="c", world_size=2, steps=3, created_s=1.0)
    )
    assert update_intent(paths, submission="submitted", job_id="12") == read_intent(paths)
    value = json.loads(paths.intent.read_text())
    paths.intent.write_text(json.dumps({**value, "later": 1}))
    assert read_intent(paths).job_id == "12"
    assert [p.name for p in paths.dir.iterdir() if p.name.startswith(".")] == []


def test_a_run_directory_is_made_once(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    assert paths.attempts() == []
    paths.create()
    assert (paths.attempts(), paths.attempt(1).ranks()) == ([1], [])
    with pytest.raises(FileExistsError):
        paths.create()


FULL = """
import resource, sys
from pathlib import Path
from dptrain.records.events import EventLog
log = EventLog(Path(sys.argv[1]))
log.write("step", step=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (80, resource.RLIM_INFINITY))
log.try_write("heartbeat", said="x" * 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.write("failure", message="last words")
"""


def test_a_line_that_the_disk_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL, str(file)], capture_output=True, text=True, check=True)
    assert [e["kind"] for e in read_events(file)] == ["step", "failure"]
    assert "event heartbeat is not written" in done.stderr
    assert b"heartbeat" in file.read_bytes().splitlines()[1]  # it was begun


def test_last_words_have_room_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        log = EventLog(disk / "e.jsonl", room=disk / ".room")
        with pytest.raises(OSError):
            (disk / "others").write_bytes(bytes(2**20))
        log.try_write("heartbeat", said="x" * 5000)
        log.last_words("failure", message="x" * 5000)
        assert [e["kind"] for e in read_events(disk / "e.jsonl")] == ["failure"]
        log.close()
        assert not (disk / ".room").exists()
