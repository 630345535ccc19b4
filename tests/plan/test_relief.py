"""Lighter steps of the same run: only those that resume takes, forecast, and only such as help."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.plan import forecast as module
from dptrain.plan.relief import reliefs
from dptrain.spec.changes import refusals
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from tests.local_runs import TINY

LOCAL = ClusterProfile(name="c", launcher="local", gpus_per_node=4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_each_change_is_forecast_and_taken_by_resume() -> None:
    spec = parse_spec(TINY, "tiny.yaml", Path.cwd(), ("tiling.patch=8", "problem.image_size=[48,48]")).spec
    found = reliefs(spec, "train", 8, "never", LOCAL)
    keys = ["tiling.checkpoint=always", "tiling.max_batch_size=4", "tiling.max_batch_size=1", "resources.gpus=4"]
    # What does not help is left out; recomputing and the smallest batches always do.
    changes = [relief.change for relief in found.changes]
    assert [key for key in keys if key in changes] == changes and len(changes) >= 2
    assert found.peak_gib is not None and found.terms_gib
    for relief in found.changes:
        assert relief.peak_gib is not None and 0 < relief.peak_gib < found.peak_gib
        new = parse_spec(TINY, "tiny.yaml", Path.cwd(), ("tiling.patch=8", "problem.image_size=[48,48]", relief.change))
        assert refusals(spec, new.spec) == []


def test_without_a_forecast_the_changes_are_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ask", lambda requests: [{"error": "no torch"}] * len(requests))
    found = reliefs(parse_spec(TINY, "tiny.yaml", Path.cwd()).spec, "infer", 4, "never", None)
    assert found.peak_gib is None and found.terms_gib == {}
    assert [relief.change for relief in found.changes] == ["tiling.max_batch_size=2", "tiling.max_batch_size=1"]
