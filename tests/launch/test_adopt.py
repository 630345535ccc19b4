"""Whose unconfirmed submissions a sweep may take over: those that nobody can be making now."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dptrain.launch.adopt import SUBMITTING_S, left_behind
from dptrain.launch.locks import run_lock, sweep_lock
from dptrain.launch.slurm import _after
from dptrain.records.intent import Intent, write_intent
from dptrain.records.paths import RunPaths
from dptrain.spec.cluster import ClusterProfile

PROFILE = ClusterProfile(name="c")


def unconfirmed(root: Path, *, sweep: str | None, age_s: float = 0.0) -> tuple[RunPaths, Intent]:
    paths = RunPaths(root / "r-1")
    paths.create()
    intent = Intent(
        run="r-1",
        task="infer",
        launcher="slurm",
        cluster="c",
        world_size=1,
        steps=1,
        created_s=time.time() - age_s,
        sweep=sweep,
    )
    write_intent(paths, intent)
    return paths, intent


def test_of_the_own_sweep_all_but_what_is_being_resumed(tmp_path: Path) -> None:
    paths, intent = unconfirmed(tmp_path, sweep="mine")
    assert left_behind(paths, intent, "mine")
    with run_lock(paths):
        assert not left_behind(paths, intent, "mine")
    assert left_behind(paths, intent, "mine")


def test_of_another_sweep_what_its_command_has_left(tmp_path: Path) -> None:
    paths, intent = unconfirmed(tmp_path, sweep="other")
    with sweep_lock(tmp_path, "other", lambda words: None):
        assert not left_behind(paths, intent, "mine")
    assert left_behind(paths, intent, "mine")


@pytest.mark.parametrize(("age_s", "left"), [(1.0, False), (SUBMITTING_S + 5, True)])
def test_of_a_single_run_what_is_older_than_any_submission(tmp_path: Path, age_s: float, left: bool) -> None:
    assert left_behind(*unconfirmed(tmp_path, sweep=None, age_s=age_s), "mine") is left


@pytest.mark.parametrize(
    ("heads", "size", "limit", "waits"),
    [
        ([], 5, None, []),
        ([], 5, 2, ["--dependency=afterany:7:8"]),
        (["9"], 5, 2, ["--dependency=afterany:9"]),
        (["9"], 1, 2, ["--dependency=afterany:7:8"]),
        (["9", "10"], 1, 2, ["--dependency=afterany:9"]),
    ],
)
def test_what_runs_already_takes_all_of_the_limit(
    heads: list[str], size: int, limit: int | None, waits: list[str]
) -> None:
    assert _after(heads, size, limit, PROFILE, ["7", "8"]) == waits
