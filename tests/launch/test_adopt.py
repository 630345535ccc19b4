"""Whose unconfirmed submissions a sweep may take over: those that nobody can be making now."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dptrain.launch.adopt import SUBMITTING_S, adopt, left_behind
from dptrain.launch.locks import run_is_held, run_lock, sweep_holder, sweep_lock
from dptrain.launch.slurm import _after
from dptrain.records.intent import Intent, read_intent, update_intent, write_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.query import QueueAnswer
from dptrain.spec.cluster import ClusterProfile
from dptrain.status.state import Scheduler, run_status
from tests.status.helpers import WrittenRun, job

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


SBATCH = """#!/bin/sh
touch {0}/asked
while [ -d {0} ] && [ ! -e {0}/answered ]; do sleep 0.05; done
"""
CLIENT = """
import sys
from pathlib import Path
from dptrain.launch.locks import run_lock, sweep_lock
from dptrain.launch.slurm import _submit_part
from dptrain.records.paths import RunPaths
paths = RunPaths(Path(sys.argv[1]))
with run_lock(paths), sweep_lock(paths.dir.parent, "other", print):
    _submit_part([paths], "", paths, [])
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nothing_is_left_behind_while_the_sbatch_of_a_killed_command_waits(tmp_path: Path) -> None:
    paths, intent = unconfirmed(tmp_path, sweep="other")
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH.format(tmp_path))
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    try:
        with subprocess.Popen([sys.executable, "-c", CLIENT, str(paths.dir)], env=env) as client:
            until((tmp_path / "asked").exists)
            client.kill()
        assert run_is_held(paths) and sweep_holder(tmp_path, "other") is not None
        assert not left_behind(paths, intent, "mine") and not left_behind(paths, intent, "other")
    finally:
        (tmp_path / "answered").touch()
    until(lambda: not run_is_held(paths) and sweep_holder(tmp_path, "other") is None)
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


@pytest.mark.parametrize("answer", [QueueAnswer([job("FAILED")]), QueueAnswer()])
def test_a_job_that_began_in_vain_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: QueueAnswer) -> None:
    """Its ranks waited for a call that nobody had written; also where the controller has forgotten it."""
    run = WrittenRun(tmp_path, submission="submitting", job_id=None, comment="mark")
    monkeypatch.setattr("dptrain.launch.adopt.find_by_comments", lambda comments: {"mark": "12"})
    monkeypatch.setattr("dptrain.launch.adopt.query_jobs", lambda ids: answer)
    assert adopt([run.paths]) == [] and read_intent(run.paths).submission == "refused"
    update_intent(run.paths, submission="submitting")
    run.start(0)
    assert adopt([run.paths]) == [run.paths] and read_intent(run.paths).job_id == "12"


def test_who_judges_of_unconfirmed_runs_has_none_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = WrittenRun(tmp_path, submission="submitting", job_id=None, comment="mark")
    os.utime(run.paths.intent, (0, 0))
    monkeypatch.setattr("dptrain.launch.adopt.find_by_comments", lambda comments: {"mark": "12"})
    run_status([run.paths], Scheduler(confirms=False))
    assert read_intent(run.paths).job_id is None
    monkeypatch.setattr("dptrain.status.state.query_jobs", lambda ids: QueueAnswer())
    run_status([run.paths])
    assert read_intent(run.paths).job_id == "12"
