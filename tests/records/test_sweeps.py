"""Which runs a sweep's name stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.errors import NoSuchRun
from dptrain.records.intent import Intent, write_intent
from dptrain.records.paths import RunPaths
from dptrain.records.sweeps import (
    SweepMember,
    SweepRecord,
    is_sweep,
    not_started,
    read_sweep,
    resolve_all,
    resolve_runs,
    sweep_names,
    write_sweep,
)

RECORD = SweepRecord(sweep="sw", members=tuple(SweepMember(name=f"sw-{n}", fingerprint=f"f{n}") for n in range(3)))


def make(root: Path, name: str, created_s: float, fingerprint: str, *, result: bool = False, dry: bool = False) -> str:
    paths = RunPaths(root / name)
    paths.create()
    submission = "dry-run" if dry else "submitted"
    intent = Intent(
        run=name,
        task="infer",
        launcher="local",
        cluster="local",
        world_size=1,
        steps=1,
        created_s=created_s,
        fingerprint=fingerprint,
        submission=submission,  # type: ignore[arg-type]
    )
    write_intent(paths, intent)
    if result:
        paths.result.write_text("{}")
    return name


def ids(runs: list[RunPaths]) -> list[str]:
    return [paths.run_id for paths in runs]


def test_a_sweep_is_its_members_in_order_whoever_started_them(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    second = make(tmp_path, "other-1", 2.0, "f1")
    first = make(tmp_path, "sw-0", 3.0, "f0")
    make(tmp_path, "sw-9", 4.0, "f9")
    assert ids(resolve_runs("sw", tmp_path)) == [first, second]
    assert ids(resolve_all(["sw", second, "sw-9"], tmp_path)) == [first, second, "sw-9"]
    assert read_sweep(tmp_path, "sw") == RECORD and sweep_names(tmp_path) == ["sw"]


def test_the_newest_run_counts_but_one_with_a_result_before_it(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    make(tmp_path, "a", 1.0, "f0", result=True)
    make(tmp_path, "b", 2.0, "f0", result=True)
    make(tmp_path, "c", 3.0, "f0")
    make(tmp_path, "d", 4.0, "f1")
    make(tmp_path, "e", 5.0, "f1")
    make(tmp_path, "g", 6.0, "f1", dry=True)
    assert ids(resolve_runs("sw", tmp_path)) == ["b", "e"]


def test_a_run_of_the_same_name_wins_and_a_prefix_does_not(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    make(tmp_path, "sw-1-x", 1.0, "f1")
    make(tmp_path, "sw-2-x", 1.0, "f7")
    assert ids(resolve_runs("sw", tmp_path)) == ["sw-1-x"]
    make(tmp_path, "sw", 2.0, "f8")
    assert ids(resolve_runs("sw", tmp_path)) == ["sw"]


def test_a_sweep_in_another_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "there"
    root.mkdir()
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "here"))
    monkeypatch.chdir(tmp_path)
    write_sweep(root, RECORD)
    first = make(root, "sw-0", 3.0, "f0")
    for text in ("there/sw", str(root / "sw")):
        assert is_sweep(text) and ids(resolve_runs(text)) == [first] and not_started(text) == ["sw-1", "sw-2"]
    assert not is_sweep("sw")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"members": 3}', '{"members": [{"name": 1}]}', "\x00"])
def test_a_damaged_file_is_no_sweep(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep-sw.json").write_text(text)
    assert read_sweep(tmp_path, "sw") is None
    with pytest.raises(NoSuchRun):
        resolve_runs("sw", tmp_path)


def test_a_sweep_that_was_never_started_says_so(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    with pytest.raises(NoSuchRun, match="none of the 3 runs of sweep sw was started"):
        resolve_runs("sw", tmp_path)
