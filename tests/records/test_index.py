"""Which runs there are and which one is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.errors import NoSuchRun
from dptrain.records.index import called, find_runs, resolve_run
from dptrain.records.intent import Intent, update_intent, write_intent
from dptrain.records.paths import RunPaths


def make_run(root: Path, name: str, created_s: float) -> RunPaths:
    paths = RunPaths(root / name)
    paths.create()
    intent = Intent(
        run=name, task="infer", launcher="local", cluster="local", world_size=1, steps=1, created_s=created_s
    )
    write_intent(paths, intent)
    return paths


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs = tmp_path / "runs"
    monkeypatch.setenv("DPTRAIN_RUNS", str(runs))
    monkeypatch.chdir(tmp_path)
    make_run(runs, "demo-20250102-bbbb", 200.0)
    make_run(runs, "demo-20250101-aaaa", 100.0)
    make_run(runs, "other-20250103-cccc", 300.0)
    (runs / "not-a-run").mkdir()
    (runs / "a-file").touch()
    return runs


def test_oldest_first_and_only_runs(root: Path) -> None:
    assert [r.run_id for r in find_runs()] == ["demo-20250101-aaaa", "demo-20250102-bbbb", "other-20250103-cccc"]
    assert find_runs(root) == find_runs()
    assert find_runs(root / "nowhere") == []
    assert find_runs(root / "a-file") == []


def test_a_damaged_intent_still_counts(root: Path) -> None:
    for i, text in enumerate(["", "[]", "{}", '{"created_s": "x"}', "\x00"]):
        (root / f"torn-{i}").mkdir()
        (root / f"torn-{i}" / "intent.json").write_text(text)
    assert len(find_runs()) == 8


def test_by_id_prefix_directory_and_last(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = RunPaths(root / "demo-20250101-aaaa")
    assert resolve_run("demo-20250101-aaaa") == demo
    assert resolve_run("demo-20250101") == demo
    assert resolve_run("runs/demo-20250101-aaaa") == demo
    assert resolve_run(str(demo.dir) + "/") == demo
    assert resolve_run("last").run_id == "other-20250103-cccc"
    assert resolve_run("o").run_id == "other-20250103-cccc"
    monkeypatch.chdir(demo.dir)
    assert resolve_run(".") == demo
    monkeypatch.setenv("DPTRAIN_RUNS", "/nowhere")
    monkeypatch.chdir(root)
    assert resolve_run("demo-20250101-aaaa") == demo


def test_an_id_that_is_the_beginning_of_another(root: Path) -> None:
    make_run(root, "demo-20250101-aaaa-2", 400.0)
    assert resolve_run("demo-20250101-aaaa").run_id == "demo-20250101-aaaa"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("demo", "the beginning of 2 runs: demo-20250101-aaaa, demo-20250102-bbbb"),
        ("demo-20250101-aaab", "there is no run .*\n    write: .*demo-20250101-aaaa"),
        ("zzz", "there are 3 runs"),
        ("not-a-run", "there is no run"),
        ("runs/not-a-run", "a folder, but no run"),
        ("runs/nothing", "there is no run 'nothing' in .*/runs"),
        ("runs/demo", "the beginning of 2 runs"),
        ("nowhere/nothing", "there is no run directory"),
        ("nowhere/last", "there is no run directory"),
        ("", "there is no run directory"),
        ("..", "a folder, but no run"),
        ("*", "there is no run"),
    ],
)
def test_no_such_run(root: Path, text: str, said: str) -> None:
    with pytest.raises(NoSuchRun, match=said) as caught:
        resolve_run(text)
    assert caught.value.exit_code == 5


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match="there are no runs in"):
        resolve_run("last", tmp_path)
    with pytest.raises(NoSuchRun, match="there are 0 runs"):
        resolve_run("demo", tmp_path)


def test_a_name_in_another_folder_of_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = (r for r in find_runs() if r.run_id.startswith("other"))
    assert called(run.dir) == run.run_id and called(root / "some-sweep") == "some-sweep"
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "here"))
    assert called(run.dir) == str(run.dir) and called(root / "some-sweep") == str(root / "some-sweep")
    assert called(tmp_path / "a folder" / "run") == f"'{tmp_path}/a folder/run'"
    assert {resolve_run(f"{folder}/{name}") for folder in (root, "runs") for name in ("last", "other", run.run_id)} == {
        run
    }


def test_the_name_of_a_member_means_its_newest_run(root: Path) -> None:
    for name, created_s, sweep in [
        ("grid-gpus1-20260101-000000-aaaaaa", 1.0, "grid"),
        ("grid-gpus1-20260101-000009-bbbbbb", 9.0, "grid"),
        ("grid-gpus1-20260102-000000-cccccc", 99.0, None),
        ("grid-gpus12-20260101-000000-dddddd", 99.0, "grid"),
    ]:
        update_intent(make_run(root, name, created_s), sweep=sweep)
    assert resolve_run("grid-gpus1").run_id == resolve_run("runs/grid-gpus1").run_id
    assert resolve_run("grid-gpus1").run_id == "grid-gpus1-20260101-000009-bbbbbb"
    assert resolve_run("grid-gpus12").run_id == "grid-gpus12-20260101-000000-dddddd"
    for beginning in ("grid-gpus", "grid", "demo"):
        with pytest.raises(NoSuchRun, match="is the beginning of"):
            resolve_run(beginning)
