"""What plan asks of the physics: asked once, kept, within limits, and no answer refuses nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dptrain.errors import PlanRefused
from dptrain.plan import checks, norm
from dptrain.plan.plan import make_plan
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from tests.local_runs import TINY
from tests.spec.reading import spec_of

LOCAL = ClusterProfile(name="local", launcher="local")
DEBLUR = "problem={image_size: [300, 300], channels: 1, physics: {name: deblur, blur_sigma: 30}}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    norm._ask.cache_clear()
    return tmp_path / "cache"


def plan_notes(*overrides: str) -> tuple[str, ...]:
    plan = make_plan(parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides), "infer", LOCAL)
    assert not plan.refusals
    return plan.notes


def answering(answer: dict[str, Any], asked: list[str] | None = None) -> Callable[[str], dict[str, Any]]:
    def ask(text: str) -> dict[str, Any]:
        if asked is not None:
            asked.append(text)
        return answer

    return ask


def test_runs_that_differ_elsewhere_share_the_norm(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(norm, "_ask", answering({"norm_sq": 1.0}, asked))
    texts = [
        "name: a\nproblem: {physics: {name: deblur}}\nresources: {gpus: 4}\n",
        "name: b\nproblem: {physics: {name: deblur}, channels: 1, data: {truth: x.png}}\ntiling: {patch: 32, halo: 4}\n",
        "name: c\nproblem: {physics: {name: deblur}}\ndenoiser: {name: dncnn, weights: random}\ntrain: {}\n",
        "name: d\nproblem: {physics: {name: deblur}, image_size: [64, 64]}\n",
        "name: e\nproblem: {physics: {name: deblur}}\nrun: {seed: 1}\n",
        "name: f\nproblem: {physics: {name: deblur}, image_size: [48, 64]}\n",
    ]
    for text in texts:
        assert norm.operator_norm_sq(spec_of(text)) == 1.0
    assert len(asked) == len(set(asked)) == 3, "the seed, and an image smaller than the one that is looked at"
    assert all(spec_of(text).problem.physics == spec_of(texts[0]).problem.physics for text in asked), "can be read"
    # Another process finds the answers.
    monkeypatch.setattr(norm, "_ask", answering({"error": "asked again"}))
    assert norm.operator_norm_sq(spec_of(texts[0])) == 1.0


def test_a_wide_kernel_is_answered_within_the_limits() -> None:
    spec = parse_spec(TINY, "tiny.yaml", Path.cwd(), (DEBLUR, "algorithm.step_size=1.9")).spec
    assert norm.operator_norm_sq(spec) == pytest.approx(1, abs=1e-9)
    assert not list(checks.refusals(spec, "infer")) and not checks.step_size_notes(spec)
    too_long = parse_spec(TINY, "tiny.yaml", Path.cwd(), (DEBLUR, "algorithm.step_size=2.1")).spec
    assert "the iteration diverges" in "".join(checks.refusals(too_long, "infer"))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        pytest.param("CPU_LIMIT_S", 1e-6, "of processor time", marks=pytest.mark.acceptance),
        pytest.param("MEMORY_LIMIT_GIB", 1e-4, "more memory", marks=pytest.mark.acceptance),
        ("LIMIT_S", 0.01, "within"),
    ],
)
def test_no_answer_is_said_and_refuses_nothing(
    name: str, value: float, words: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm, name, value)
    said = [note for note in plan_notes(DEBLUR, "algorithm.step_size=0.5") if "step_size is not checked" in note]
    assert len(said) == 1 and words in said[0]
    assert not (cache / "dptrain" / norm.KEPT).exists(), "failures are not kept"


def test_a_process_that_dies_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no torch here >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    assert any("not checked here" in note and "no torch here" in note for note in plan_notes("algorithm.step_size=0.5"))


def test_physics_that_cannot_be_built_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "_ask", answering({"refused": "the kernel is larger than the image"}))
    with pytest.raises(PlanRefused, match="cannot be built: the kernel"):
        plan_notes("algorithm.step_size=0.5")
