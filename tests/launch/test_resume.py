"""A run's files while it is started again: the new plan's, the old ones kept, and back where the launch is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.errors import StateUnknown, SubmissionRejected, UsageError
from dptrain.launch.local import next_attempt
from dptrain.launch.resume import renewed
from dptrain.plan.plan import make_plan
from dptrain.records.events import append_event
from dptrain.records.intent import read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.spec.load import load_spec
from tests.launch.runs import tiny_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    return tiny_run("local", tmp_path)[0]


def files(paths: RunPaths) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in paths.dir.iterdir() if p.is_file()}


def attempt_made(paths: RunPaths) -> None:
    append_event(paths.attempt(1).launcher_events, "ended", exitcode=1)
    update_intent(paths, submission="submitted", job_id="77", fingerprint="before")


def again(paths: RunPaths, tmp_path: Path, error: Exception | None = None) -> None:
    """Launch on one rank instead of two."""
    _, plan, profile = tiny_run("local", tmp_path, "resources.gpus=1")
    old, loaded = load_spec(paths.spec).spec, load_spec(paths.spec, ["resources.gpus=1"])
    with renewed(paths, make_plan(loaded, plan.task, profile), loaded, replace(profile, name="other"), old):
        if error is not None:
            raise error


def test_what_was_used_is_kept_with_the_last_attempt(run: RunPaths, tmp_path: Path) -> None:
    attempt_made(run)
    before = files(run)
    again(run, tmp_path)
    assert {p.name: p.read_bytes() for p in run.attempt(1).dir.iterdir() if p.name in before} == {
        name: before[name] for name in ("spec.yaml", "plan.json", "environment.json")
    }
    intent = read_intent(run)
    assert (intent.world_size, intent.cluster, intent.job_id) == (1, "other", "77")
    assert intent.fingerprint not in (None, "before")
    assert load_spec(run.spec).spec.resources.gpus == 1
    assert run.attempts() == [1, 2] and next_attempt(run) == 2


def test_a_refused_launch_changes_nothing(run: RunPaths, tmp_path: Path) -> None:
    attempt_made(run)
    before = files(run)
    with pytest.raises(SubmissionRejected):
        again(run, tmp_path, SubmissionRejected("no"))
    assert files(run) == before


def test_a_launch_of_which_nothing_is_known_is_not_undone(run: RunPaths, tmp_path: Path) -> None:
    attempt_made(run)
    with pytest.raises(StateUnknown):
        again(run, tmp_path, StateUnknown("a job may exist"))
    assert read_intent(run).world_size == 1


def test_a_run_that_was_never_started_has_nothing_to_keep(run: RunPaths, tmp_path: Path) -> None:
    with pytest.raises(SubmissionRejected):
        again(run, tmp_path, SubmissionRejected("no"))
    assert read_intent(run).world_size == 1 and not list(run.attempt(1).dir.iterdir())


def test_a_fault_that_the_run_was_not_made_with_is_refused(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_made(run)
    before = files(run)
    monkeypatch.setenv("DPTRAIN_FAULT", "raise@rank=0")
    monkeypatch.setenv("DPTRAIN_FAULT_ALLOW", "1")
    with pytest.raises(UsageError, match="the run was made without it"):
        again(run, tmp_path)
    assert files(run) == before
    update_intent(run, faults="raise@rank=0,step=1,attempt=1")
    again(run, tmp_path)
