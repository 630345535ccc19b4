"""What plan asks another process is asked once."""

from __future__ import annotations

import pytest

from dptrain.plan import checks
from tests.spec.reading import spec_of


def test_runs_that_differ_elsewhere_share_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def probe(text: str) -> float:
        asked.append(text)
        assert spec_of(text).problem.physics == spec_of(texts[0]).problem.physics, "a spec that can be read"
        return 1.0

    monkeypatch.setattr(checks, "_probed_norm_sq", probe)
    texts = [
        "name: a\nproblem: {physics: {name: deblur}}\nresources: {gpus: 4}\n",
        "name: b\nproblem: {physics: {name: deblur}, channels: 1, data: {truth: x.png}}\ntiling: {patch: 32, halo: 4}\n",
        "name: c\nproblem: {physics: {name: deblur}}\ndenoiser: {name: dncnn, weights: random}\ntrain: {}\n",
        "name: d\nproblem: {physics: {name: deblur}, image_size: [64, 64]}\n",
        "name: e\nproblem: {physics: {name: deblur}}\nrun: {seed: 1}\n",
    ]
    for text in texts:
        assert checks.operator_norm_sq(spec_of(text)) == 1.0
    assert len(set(asked[:3])) == 1 and len(set(asked)) == 3
