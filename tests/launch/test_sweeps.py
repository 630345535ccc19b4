"""Members of a sweep, what they ask for together, and the local queue with real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.launch.local import supervisor_alive
from dptrain.launch.sweeps import LocalQueue, Starter, group_by_request, plan_members
from dptrain.records.events import read_events
from dptrain.records.intent import read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.spec.load import LoadedSpec, parse_spec
from dptrain.spec.profiles import load_profile
from dptrain.status.sweeps import runs_of

TEXT = """
name: sw
problem: {image_size: [24, 24], channels: 1, physics: {name: denoise}, data: {source: synthetic}}
denoiser: {name: identity}
algorithm: {iterations: 1}
"""


def load(sweep: str) -> LoadedSpec:
    return parse_spec(f"{TEXT}sweep: {sweep}\n", "sw.yaml", Path.cwd(), ())


def test_every_member_has_a_plan_of_its_own() -> None:
    planned, _ = plan_members(
        load("{resources.gpus: [1, 2], algorithm.iterations: [1, 3]}"), "infer", load_profile("local")
    )
    assert [(p.plan.world_size, p.plan.steps) for p in planned] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    assert len({p.loaded.spec.name for p in planned}) == 4 and not any(p.loaded.spec.sweep for p in planned)


def test_members_of_one_request_go_together_whatever_their_names() -> None:
    loaded = load("{resources.gpus: [1, 2], algorithm.iterations: [1, 3]}")
    groups = group_by_request(plan_members(loaded, "infer", load_profile("generic-slurm"))[0])
    assert sorted(len(group) for group in groups.values()) == [2, 2]
    assert {request.world_size for request in groups} == {1, 2}


@pytest.mark.acceptance
def test_queue_runs_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    planned, _ = plan_members(load("{algorithm.iterations: [1, 2]}"), "infer", load_profile("local"))
    queue = LocalQueue(planned, Starter(profile=load_profile("local"), sweep="sw", again={}), None, lambda mark: None)
    most = 0

    def is_over(paths: RunPaths) -> bool:
        nonlocal most
        most = max(most, len(queue.running))
        return supervisor_alive(paths) == "gone"

    queue.run(is_over)
    assert most == 1 and len(queue.started) == 2
    for paths, member in zip(queue.started, planned, strict=True):
        intent = read_intent(paths)
        assert (intent.sweep, intent.fingerprint) == ("sw", member.member.fingerprint)
        assert any(e["kind"] == "final" for e in read_events(paths.attempt(1).rank_events(0)))


def test_a_queue_does_not_start_what_somebody_else_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    planned, _ = plan_members(load("{algorithm.iterations: [1, 2, 3]}"), "infer", load_profile("local"))
    starter = Starter(profile=load_profile("local"), sweep="sw", again={})
    failed, never = starter.create(planned[0]), starter.create(planned[1], "does not fit")
    marks = [member.member.fingerprint for member in planned]
    again = Starter(profile=load_profile("local"), sweep="sw", again={marks[1]: never})
    queue = LocalQueue(
        planned, again, None, lambda mark: runs_of([mark], tmp_path).get(mark), (), {marks[0]: failed, marks[1]: never}
    )
    assert [queue._started_elsewhere(mark) for mark in marks] == [None, None, None]
    update_intent(never, submission="submitted", job_id="12")  # resumed by hand
    others = [starter.create(planned[0]), never, starter.create(planned[2])]
    assert [queue._started_elsewhere(mark) for mark in marks] == others
    queue._start(planned[2])
    assert queue.running == [others[2]] and queue.started == []
