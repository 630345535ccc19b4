"""Bytes and files of a run against the space they find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.errors import PlanRefused
from dptrain.plan.disk import Disk, disk_of
from dptrain.plan.plan import make_plan
from dptrain.plan.receptive import IDENTITY
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Spec
from tests.local_runs import TINY

KNOWN = replace(IDENTITY, parameters=1000)


def spec(*overrides: str) -> Spec:
    return parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides).spec


def test_training_keeps_saves_of_weights_and_moments(tmp_path: Path) -> None:
    # Three saves are made, two are kept, and a third lies beside while the oldest is still there.
    disk = disk_of(spec(), "train", 1, KNOWN, tmp_path / "not" / "made")
    assert disk.saves_bytes == 3 * (3 * 4 * 1000 + 2 * 5056) and disk.output_bytes == 0
    assert disk_of(spec("train.save_every_steps=6"), "train", 1, KNOWN, tmp_path).saves_bytes == disk.saves_bytes // 3
    assert disk_of(spec(), "train", 1, None, tmp_path).saves_bytes is None
    assert disk.free_bytes > 0 and disk.folder.endswith("made")


def test_what_cannot_fit_is_refused_and_what_nearly_fills_is_said() -> None:
    disk = Disk(folder="/r", saves_bytes=600, output_bytes=300, files=20, free_bytes=1000, free_files=None)
    assert list(disk.refusals("train")) == [] and "900 B take most of the 1 kB free in /r" in next(disk.notes())
    full = replace(disk, free_bytes=800)
    # In inference a save is made only by an interrupted run.
    assert list(full.refusals("infer")) == [] and list(full.notes()) == []
    assert "900 B of saves and output do not fit into /r: 800 B are free" in next(full.refusals("train"))
    assert "20 files do not fit into /r: 19 inodes" in next(replace(disk, free_files=19).refusals("infer"))
    assert list(replace(disk, saves_bytes=None).refusals("train")) == []


def test_plan_refuses_a_result_that_is_larger_than_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    loaded = parse_spec(
        TINY, "tiny.yaml", Path.cwd(), ("problem.image_size=[90000000, 90000]", "tiling.patch=90000000")
    )
    plan = make_plan(loaded, "infer", ClusterProfile(name="local", launcher="local"))
    assert plan.fits is False and plan.to_json()["disk"]["output_bytes"] == 4 * 90000000 * 90000
    with pytest.raises(PlanRefused, match=r"32.4 TB of saves and output do not fit"):
        plan.check()
