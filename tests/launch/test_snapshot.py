"""What a run directory holds before anything is submitted."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from dptrain.launch.snapshot import create_run, git_state
from dptrain.records.intent import read_intent
from dptrain.spec.load import load_spec
from tests.launch.runs import tiny, tiny_run


@pytest.fixture(autouse=True)
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))


def test_everything_is_there_before_submission(tmp_path: Path) -> None:
    paths, plan, _ = tiny_run("generic-slurm", tmp_path, "algorithm.iterations=7")
    assert re.fullmatch(r"tiny-\d{8}-\d{6}-[0-9a-f]{6}", paths.run_id)
    assert load_spec(paths.spec).spec == plan.spec
    assert json.loads(paths.plan.read_text()) == json.loads(json.dumps(plan.to_json()))
    assert paths.submission.read_text() == plan.sbatch
    intent = read_intent(paths)
    assert (intent.run, intent.submission, intent.job_id) == (paths.run_id, "submitting", None)
    assert (intent.task, intent.launcher, intent.cluster, intent.world_size, intent.steps) == (
        "infer",
        "slurm",
        "generic-slurm",
        2,
        7,
    )
    for folder in (paths.attempt(1).dir, paths.submitit, paths.batch_log, paths.saves, paths.output):
        assert folder.is_dir()


def test_the_environment_is_described_without_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "a-secret-value")
    paths, _, _ = tiny_run("local", tmp_path)
    text = paths.environment.read_text()
    environment = json.loads(text)
    assert "a-secret-value" not in text and "MY_TOKEN" not in text
    assert {"torch", "deepinv", "submitit"} <= set(environment["versions"])
    assert not paths.submission.exists()


def test_a_name_and_the_profiles_folder_are_used(tmp_path: Path) -> None:
    from dataclasses import replace

    loaded, profile, plan = tiny("local", tmp_path)
    paths = create_run(
        plan, loaded, replace(profile, runs=str(tmp_path / "scratch")), name="other", sweep="s", fingerprint="abc"
    )
    assert paths.dir.parent == tmp_path / "scratch"
    assert paths.run_id.startswith("other-")
    assert (read_intent(paths).sweep, read_intent(paths).fingerprint) == ("s", "abc")


def test_the_umask_is_respected(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        paths, _, _ = tiny_run("local", tmp_path)
    finally:
        os.umask(before)
    for path in (paths.dir, *paths.dir.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_state_of_a_repository(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    state = git_state(tmp_path)
    assert state is not None and re.fullmatch("[0-9a-f]{40}", state["sha"]) and state["dirty"] is False
    (tmp_path / "new").write_text("")
    assert git_state(tmp_path) == {**state, "dirty": True}
