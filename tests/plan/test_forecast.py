"""What plan does with the forecast of memory: asks once, says why there is none, refuses what does not fit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.errors import PlanRefused
from dptrain.plan import forecast as module
from dptrain.plan import kept
from dptrain.plan.cards import ALLOWANCE, Card
from dptrain.plan.forecast import KEPT, Forecast, Request, forecast
from dptrain.plan.memory import Memory
from dptrain.plan.plan import make_plan
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from tests.local_runs import TINY

GIB = 2**30


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def request_of(*overrides: str, mode: str = "always") -> Request:
    spec = parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides).spec
    return Request(spec=spec, task="train", max_batch_size=1, checkpoint=mode)


def made(backward_gib: float = 3.0, error: str | None = None) -> Forecast:
    terms = {"retained": int(2 * GIB), "tile_batch": int((backward_gib - 2.5) * GIB), "images": GIB // 2}
    return Forecast(
        peaks={} if error else {"forward": GIB, "backward": int(backward_gib * GIB), "optimizer": GIB // 2},
        terms={"forward": {}, "backward": terms, "optimizer": {}},
        per_step_bytes=GIB // 10,
        bytes_sent=1,
        rank=3,
        error=error,
    )


def memory_of(answer: Forecast, capacity_gib: float | None, layout: str = "sharded") -> Memory:
    request = request_of(f"resources.layout={layout}")
    return Memory(request=request, forecast=answer, card=Card(capacity_gib=capacity_gib))


def test_a_second_plan_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = forecast([request_of(), request_of("algorithm.iterations=5")])
    assert first.error is None and other.peak_bytes > first.peak_bytes > 0
    monkeypatch.setattr(module, "_ask", lambda requests: [{"error": "asked"}] * len(requests))
    # What does not matter to memory: name, seed, data, number of steps, time.
    same = request_of("name=b", "run.seed=3", "train.steps=9", "resources.time_min=7", "problem.data={source: photo}")
    assert forecast([same, request_of("algorithm.iterations=5")]) == [first, other]
    # What does.
    for different in (request_of(mode="never"), request_of("tiling.halo=2"), request_of("train.batch_size=2")):
        assert forecast([different])[0].error == "asked"
    (file, _) = sorted(kept.place(KEPT).iterdir())
    for damaged in ("", "[]", "{}"):
        file.write_text(damaged)
        assert {f.error for f in forecast([request_of(), request_of("algorithm.iterations=5")])} == {None, "asked"}


def test_an_answer_that_does_not_come_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "CPU_LIMIT_S", 0.01)
    assert "no answer within 0.01 s of processor time" in str(forecast([request_of()])[0].error)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    profile = ClusterProfile(name="c", gpus_per_node=4, gpu_memory_gib=32)
    plan = make_plan(parse_spec(TINY, "tiny.yaml", Path.cwd()), "train", profile)
    assert plan.fits is None, "neither a refusal nor a promise"
    assert any("memory is not forecast" in note and "no torch here" in note for note in plan.notes)
    assert plan.to_json()["memory"]["peak_gib"] is None
    assert not kept.place(KEPT).exists(), "failures are not kept"


@pytest.mark.parametrize(("capacity_gib", "fits"), [(None, None), (3 * ALLOWANCE + 0.01, True), (3.2, False)])
def test_fits_counts_the_allowance(capacity_gib: float | None, fits: bool | None) -> None:
    memory = memory_of(made(), capacity_gib)
    assert memory.fits is fits and (memory.refusal is None) == (fits is not False)
    assert memory_of(made(error="no"), capacity_gib).fits is None


def test_a_refusal_names_both_sides_and_the_largest_term() -> None:
    refusal = memory_of(made(), 3.2).refusal or ""
    for words in ("3.00 GiB + 0.39 GiB allowance > 3.2 GiB", "retained", "2.00 GiB, which falls with more ranks"):
        assert words in refusal
    assert "does not fall with more ranks" in (memory_of(made(), 3.2, "replicated").refusal or "")


def test_the_contract_and_the_page() -> None:
    value = memory_of(made(), 32).to_json()
    assert (value["forward_gib"], value["backward_gib"], value["peak_gib"]) == (1, 3, 3)
    assert value["allowance_gib"] == pytest.approx(3 * (ALLOWANCE - 1)) and value["capacity_gib"] == 32
    assert value["terms"] == {"retained": 2, "tile_batch": 0.5, "images": 0.5}
    assert set(value["shrinking_terms"]) == {"retained", "images"}
    assert "full_size" in memory_of(made(), 32, "replicated").to_json()["terms"]
    page = "\n".join(memory_of(made(), 32).lines())
    for words in ("3.00 GiB at its peak + 0.39 GiB allowance (13%), of 32 GiB: fits", "backward 3.00", "102 MiB"):
        assert words in page


def test_what_does_not_fit_is_refused() -> None:
    loaded = parse_spec(TINY, "tiny.yaml", Path.cwd())
    fitting = ClusterProfile(name="c", gpus_per_node=4, gpu_memory_gib=1)
    assert make_plan(loaded, "train", fitting).fits is True
    plan = make_plan(loaded, "train", replace(fitting, gpu_memory_gib=0.00001))
    assert plan.fits is False
    with pytest.raises(PlanRefused, match="GiB of the card"):
        plan.check()


DIES = """
import json, sys
json.load(sys.stdin)
print("user code prints this")
print('{"peaks": 1}')
print(json.dumps({"request": 1, "peaks": {"forward": 7}, "terms": {"forward": {}}}), flush=True)
sys.exit("killed by the login node")
"""


def test_answers_before_its_process_died_are_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "program", lambda name: [sys.executable, "-c", DIES])
    requests = [request_of(), request_of(mode="never")]
    with caplog.at_level("INFO", logger="dptrain"):
        first, second = forecast(requests)
    assert "a step in 2 variants" in caplog.text
    assert second.peak_bytes == 7 and first.error == "its process ended without an answer: killed by the login node"
    monkeypatch.setattr(module, "_ask", lambda requests: [{"error": "asked"}] * len(requests))
    assert [answer.error for answer in forecast(requests)] == ["asked", None]


NOISY = """
import torch

class Noisy(torch.nn.Module):
    def forward(self, x, sigma):
        return 1.0 * x

def build():
    print("building", end=" ")
    return Noisy()
"""


@pytest.mark.acceptance
def test_user_code_that_prints_moves_no_answer(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    few, more = (
        Request(
            spec=parse_spec(
                TINY, "tiny.yaml", tmp_path, ('denoiser={factory: "noisy:build"}', f"algorithm.iterations={k}")
            ).spec,
            task="train",
            max_batch_size=1,
            checkpoint="always",
        )
        for k in (2, 9)
    )
    together, alone = forecast([few, more]), forecast([more])
    assert [answer.error for answer in together] == [None, None]
    assert together[0].peak_bytes < together[1].peak_bytes == alone[0].peak_bytes
