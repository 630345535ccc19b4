"""Damaged run directories: named in their own row, and nothing else is touched by them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrain.errors import DptrainError, StateUnknown
from dptrain.launch.cancel import cancel
from dptrain.records.events import EventLog, read_events
from dptrain.records.index import find_runs, resolve_run
from dptrain.records.paths import RunPaths
from dptrain.report.rows import result_rows
from dptrain.report.tables import to_csv
from dptrain.status.logs import logs_of
from dptrain.status.show import result_lines, table_row
from dptrain.status.state import run_status
from tests.status.helpers import WrittenRun

Damage = Callable[[Path], object]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    elif os.path.lexists(path):
        path.unlink()


def as_bytes(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


KINDS: dict[str, Damage] = {
    "directory": Path.mkdir,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "binary": as_bytes(b"\x00\xff\xfe\n\x80garbage\n"),
    "empty": as_bytes(b""),
    "null": as_bytes(b"null\n"),
    "list": as_bytes(b"[1, 2]\n"),
    "text": as_bytes(b"hello\n"),
    "deep": as_bytes(b"[" * 100_000 + b"\n"),
    "infinite": as_bytes(b'{"psnr_db": [NaN, 1e999], "loss": [1' + b"0" * 400 + b'], "output": 3, "sections": [1]}\n'),
    "yaml": as_bytes(b"a: &a [*a]\nd: 2024-01-01\n? [1, 2]\n: .inf\nrun: {stall_timeout_s: .nan}\n"),
}
WHERE = [
    "intent.json",
    "attempts",
    "attempts/1",
    "attempts/2",
    "attempts/1/rank-0.jsonl",
    "attempts/1/rank-1.jsonl",
    "attempts/1/launcher.jsonl",
    "attempts/1/rank-0.log",
    "attempts/1/launcher.log",
    "spec.yaml",
    "result.json",
    "batch",
]


def damage(run: RunPaths, where: str, kind: str) -> None:
    path = run.dir / where
    _remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](path)


def look_everywhere(root: Path) -> dict[str, str]:
    """Every listing; the states by run."""
    runs = find_runs(root)
    statuses = run_status(runs)
    rows = result_rows(runs, statuses)
    to_csv(rows)
    json.dumps([rows, [s.to_json(ranks=True) for s in statuses]], allow_nan=False)
    for paths, status in zip(runs, statuses, strict=True):
        assert resolve_run(paths.run_id, root) == paths
        table_row(status)
        result_lines(status, paths)
        for call in (lambda p=paths, s=status: logs_of(p, s), lambda p=paths: cancel(p)):
            try:
                call()
            except DptrainError as error:
                assert str(error)
    return {status.run: status.state for status in statuses}


@pytest.mark.parametrize("where", WHERE)
def test_damage_stays_in_its_row(tmp_path: Path, where: str) -> None:
    sound = WrittenRun(tmp_path, "sound", launcher="local", job_id="999999999")
    sound.finish()
    for kind in KINDS:
        for finished in (True, False):
            name = f"{kind}-{finished}".replace(" ", "-")
            run = WrittenRun(tmp_path, name, launcher="local", job_id="999999999")
            run.finish() if finished else run.start(0)
            damage(run.paths, where, kind)
            states = look_everywhere(tmp_path)
            assert states["sound"] == "completed"
            assert finished or states[name] != "completed"
            _remove(run.paths.dir)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("empty", "link to nothing")])
@pytest.mark.parametrize("where", ["intent.json", "attempts/1/rank-1.jsonl", "attempts/1/launcher.jsonl"])
def test_the_file_and_its_problem_are_named(tmp_path: Path, where: str, kind: str) -> None:
    run = WrittenRun(tmp_path, "broken", launcher="local", job_id="999999999")
    run.finish()
    damage(run.paths, where, kind)
    (status,) = run_status([run.paths])
    assert (status.state, status.over) == ("unknown", False)
    assert status.reason is not None and status.reason.startswith(f"{where}: ")
    with pytest.raises(StateUnknown, match=where):
        logs_of(run.paths, status)
    if "rank" not in where:  # which it needs not look at
        with pytest.raises(StateUnknown, match=where):
            cancel(run.paths)


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": "2"},
        {"world_size": None},
        {"world_size": True},
        {"world_size": 0},
        {"world_size": 10**12},
        {"steps": -1},
        {"steps": 1.5},
        {"created_s": 10**400},
        {"created_s": "now"},
        {"task": []},
        {"launcher": "pbs"},
        {"submission": None},
        {"job_id": 12},
    ],
)
def test_wrong_values_of_the_intent_are_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = WrittenRun(tmp_path, "broken")
    run.finish()
    value = json.loads(run.paths.intent.read_text())
    run.paths.intent.write_text(json.dumps({**value, **changes}))
    assert look_everywhere(tmp_path) == {"broken": "unknown"}
    assert f"{next(iter(changes))} is " in (run_status([run.paths])[0].reason or "")


def test_stray_files_are_ignored(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.finish()
    attempt = run.paths.attempt(1).dir
    for name in (
        "rank-0 (copy).jsonl",
        "rank-foo.jsonl",
        "rank-²-.jsonl",
        "rank-01.jsonl",
        "rank--1.jsonl",
        "rank-٣.jsonl",
    ):
        (attempt / name).write_text("stray\n")
    for name in ("²", "٣", "01", "0", "1 (copy)", "-1"):
        (run.paths.attempts_dir / name).mkdir()
    (status,) = run_status([run.paths])
    assert (status.state, status.attempt, len(status.ranks)) == ("completed", 1, 2)


ABSURD = [1e308, -1, True, 10**399, 1.5, float("nan"), float("inf"), "3", None, [3], 10**12]


@pytest.mark.parametrize("value", ABSURD, ids=str)
def test_absurd_numbers_count_as_absent(tmp_path: Path, value: Any) -> None:
    run = WrittenRun(tmp_path, world_size=1)
    run.start(0)
    run.step(0, 1)
    fields = dict.fromkeys(("step", "steps", "seconds", "psnr_db", "peak_memory_bytes", "bytes_sent", "t"), value)
    with run.paths.attempt(1).rank_events(0).open("a") as file:
        for kind in ("step", "heartbeat", "final"):
            file.write(json.dumps({"kind": kind, **fields}) + "\n")
    (status,) = run_status([run.paths])
    json.dumps(status.to_json(ranks=True), allow_nan=False)
    assert (status.step, status.steps) == (1, 3) and status.state != "completed"


def test_text_that_is_no_unicode_is_kept_in_records(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e")
    log.write("failure", message="no file '\udcff.npy'")
    log.close()
    assert [e["message"] for e in read_events(tmp_path / "e")] == ["no file '\udcff.npy'"]


FILES = ["attempts/1/rank-0.jsonl", "attempts/1/rank-1.jsonl", "attempts/1/launcher.jsonl", "intent.json"]
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("kind"), st.sampled_from(WHERE), st.sampled_from(sorted(KINDS)), st.just(b"")),
        st.tuples(st.just("cut"), st.sampled_from(FILES), st.integers(0, 2000), st.just(b"")),
        st.tuples(st.just("bytes"), st.sampled_from(FILES), st.integers(0, 2000), st.binary(max_size=20)),
        st.tuples(st.just("byte"), st.sampled_from(FILES), st.integers(0, 2000), st.binary(min_size=1, max_size=1)),
    ),
    min_size=1,
    max_size=3,
)


def change(run: RunPaths, what: str, where: str, how: Any, data: bytes) -> None:
    path = run.dir / where
    if what == "kind":
        damage(run, where, how) if path.parent.is_dir() else None
    elif path.is_file():
        text = path.read_bytes()
        at = min(how, len(text))
        path.write_bytes(
            {"cut": text[:at], "bytes": text[:at] + data + text[at:], "byte": text[:at] + data + text[at + 1 :]}[what]
        )


@settings(max_examples=200, deadline=None)
@given(changes=CHANGES, finished=st.booleans())
def test_random_damage_never_raises_and_never_completes_a_run(changes: list[tuple[Any, ...]], finished: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        run = WrittenRun(root, "broken", launcher="local", job_id="999999999")
        run.launcher("launched", host="n1", pid=999999999, start_ticks=1, world_size=2, pids=[1, 2])
        if finished:
            run.finish()
        else:
            run.start(0)
            run.start(1)
            run.step(0, 2)
        run.launcher("ended", exitcode=0 if finished else 1)
        for what in changes:
            change(run.paths, *what)
        states = look_everywhere(root)
    assert finished or states.get("broken") != "completed"
