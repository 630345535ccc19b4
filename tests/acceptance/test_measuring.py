"""The modes of `run.measure` in real runs: whose fault waiting is, traces that open, and what is said without CUDA."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from dptrain.spec.schema import Task
from tests.local_runs import finish, result, running

LATE_S: dict[Task, float] = {"infer": 0.05, "train": 0.3}
"""A step of training makes twenty times as many calls, each with the noise of the machine."""
STEPS = 5
LONGER = ("resources.gpus=3", "train.steps=8", "train.save_every_steps=4")


@pytest.fixture(autouse=True)
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("layout", ["sharded", "replicated"])
@pytest.mark.parametrize("task", ["infer", "train"])
def test_a_slow_rank_is_waiting_of_the_others_and_not_transfer(
    task: Task, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPTRAIN_FAULT", f"slow@rank=1,seconds={LATE_S[task]}")
    monkeypatch.setenv("DPTRAIN_FAULT_ALLOW", "1")
    iterations = f"algorithm.iterations={8 if task == 'infer' else 2}"
    with running(task, *LONGER, iterations, f"resources.layout={layout}") as paths:
        assert finish(paths) == 0
    made = result(paths)
    assert made["measure"] == {"mode": "custom", "active_steps": [3, 7], "files": [], "note": None}
    communication = made["communication"]
    print(json.dumps(communication, indent=1))
    assert communication["steps"] == STEPS
    assert list(communication["sections"])[-1] == "between"
    assert set(communication["sections"]) == {*made["sections"], "between"}
    whole, injected_s = communication["whole"], LATE_S[task] * STEPS
    assert whole["compute_s"][1] > injected_s, "the delay is the slow rank's own"
    for rank in (0, 2):
        assert whole["compute_s"][rank] < whole["compute_s"][1]
        # A delay that counted as transfer would be missing here.
        assert whole["wait_s"][rank] - whole["wait_s"][1] > 0.6 * injected_s
    # The runs are so small that the delay is most of their compute.
    assert whole["load_balance"] < 0.9


@pytest.mark.parametrize("task", ["infer", "train"])
def test_traces_open_and_name_what_was_done(task: Task) -> None:
    change = (*LONGER, "algorithm.iterations=4", "resources.gpus=2", "run.measure=torch", "run.measure_steps=2")
    with running(task, *change) as paths:
        assert finish(paths) == 0
    made = result(paths)
    assert made["measure"]["active_steps"] == [3, 4] and made["communication"] is None
    assert len(made["measure"]["files"]) == 2 * 2
    sections = ("gradient", "denoise") if task == "infer" else ("data", "forward", "backward", "optimizer")
    for rank in range(2):
        trace, table = (paths.dir / name for name in made["measure"]["files"][2 * rank : 2 * rank + 2])
        with gzip.open(trace, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        names = [event["name"] for event in events if event.get("ph") == "X"]
        print(f"{trace.name}: {trace.stat().st_size} bytes, {len(events)} events")
        assert names.count("dptrain.step") == 2
        assert all(names.count(f"dptrain.section.{section}") == 2 for section in sections)
        assert {"dptrain.communication.tiles", "dptrain.communication.all_reduce", "aten::conv2d"} <= set(names)
        assert "aten::conv2d" in table.read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_nvtx_without_cuda_runs_and_says_so() -> None:
    with running("infer", "run.measure=nvtx") as paths:
        assert finish(paths) == 0
    measure = result(paths)["measure"]
    assert measure["active_steps"] == [3, 3] and measure["files"] == []
    assert "no CUDA device" in measure["note"]
    assert measure["note"] in paths.attempt(1).rank_log(0).read_text()
