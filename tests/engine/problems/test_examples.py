"""The examples of docs/examples, through the spec loader and the same functions that a run uses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.problems import build_data, build_physics, operator_norm_sq
from dptrain.spec.load import load_spec
from dptrain.spec.schema import Denoiser, Factory, Spec
from tests.engine.problems.specs import whole_physics

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # undone after the test, unlike what the product inserts
    return load_spec(EXAMPLES / "own-code.yaml").spec


def test_the_example_reconstructs(spec: Spec) -> None:
    assert isinstance(spec.denoiser, Factory) and spec.denoiser.search_path == str(EXAMPLES)
    physics = build_physics(spec, CPU, torch.float64)
    whole = whole_physics(spec)
    denoiser = build_denoiser(spec, CPU, torch.float64)
    sample = build_data(spec, whole, role="infer")[0]
    assert sample.truth is not None and sample.noise_std == pytest.approx(0.02)
    norm_sq = operator_norm_sq(whole, seed=0)
    assert norm_sq == pytest.approx(1.0, rel=1e-3)
    x = start = physics.A_adjoint(sample.measurements) / norm_sq
    with torch.no_grad():
        for _ in range(10):
            x = denoiser(x - 0.99 * physics.A_adjoint(physics.A(x) - sample.measurements), 0.01)
    assert (x - sample.truth).square().mean() < 0.7 * (start - sample.truth).square().mean()
    assert [p.dtype for p in denoiser.parameters()] == [torch.float64]


def test_the_examples_training_images(spec: Spec) -> None:
    physics = whole_physics(spec, torch.float32)
    train, held_out = build_data(spec, physics, role="train"), build_data(spec, physics, role="held_out")
    assert (len(train), len(held_out)) == (2, 1)
    assert not torch.equal(train[0].truth, held_out[0].truth)  # type: ignore[arg-type]


def test_the_template_for_own_code_fits_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dptrain init --template factory` beside a copy of my_problem.py works as it is."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = load_spec(EXAMPLES.parents[1] / "templates" / "factory.yaml").spec
    assert not isinstance(spec.denoiser, Denoiser)
    sample = build_data(spec, whole_physics(spec, torch.float32), role="infer")[0]
    assert build_denoiser(spec, CPU, torch.float32)(sample.truth, 0.05).shape == (1, 1, 128, 128)
