"""What plan knows of a denoiser: measured once in a process of its own, then kept by content."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dptrain.plan import kept, receptive
from dptrain.plan.plan import make_plan
from dptrain.plan.receptive import NotMeasured, known, measure
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, parse_spec
from dptrain.spec.schema import Denoiser
from tests.local_runs import TINY

LOCAL = ClusterProfile(name="local", launcher="local")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(receptive, "_measured", {})
    return tmp_path / "cache"


def loaded(*overrides: str, folder: Path | None = None) -> LoadedSpec:
    return parse_spec(TINY, "tiny.yaml", folder or Path.cwd(), overrides)


def test_measured_once_and_then_known(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = loaded().spec
    assert known(spec) is None and make_plan(loaded(), "infer", LOCAL).to_json()["halo_needed"] is None
    answer = measure(spec)
    assert answer.radius == 3 and answer.share_beyond(3) == 0 and answer.share_beyond(1) > 0
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(receptive, "_measured", {})
    assert measure(spec) == known(spec) == answer
    # What the network does not depend on does not ask again; what it depends on does.
    assert known(loaded("resources.gpus=4", "tiling.halo=2", "problem.image_size=[64, 64]").spec) == answer
    for change in ("denoiser.width=5", "run.seed=1", "problem.channels=3", "algorithm.sigma=0.2"):
        assert known(loaded(change).spec) is None, change
    plan = make_plan(loaded(), "infer", LOCAL)
    value = plan.to_json()
    assert value["halo_needed"] == 3 and value["receptive"]["parameters"] == answer.parameters
    assert any(line.startswith("the denoiser sees 3 pixels far; halo 4: tiles equal") for line in plan.lines())


def test_the_identity_needs_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert measure(replace(loaded().spec, denoiser=Denoiser(name="identity"))).radius == 0


def test_why_a_probe_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receptive, "PROBE", "dptrain.engine.nothing")
    with pytest.raises(NotMeasured, match=r"No module named dptrain\.engine\.nothing"):
        measure(loaded().spec)
    assert known(loaded().spec) is None


def test_user_code_is_known_by_its_text(tmp_path: Path) -> None:
    file = tmp_path / "mynet.py"
    file.write_text("def build(**kwargs): ...\n")
    spec = loaded('denoiser={factory: "mynet:build"}', folder=tmp_path).spec
    before = receptive._key(spec)
    file.write_text("# other\n")
    assert receptive._key(spec) not in (None, before)
    file.unlink()
    assert receptive._key(spec) is None and known(spec) is None


@pytest.mark.acceptance
def test_a_folder_without_init_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nsp").mkdir()
    (tmp_path / "nsp" / "inner.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Conv2d):\n"
        "    def forward(self, x, sigma): return super().forward(x)\n"
        "def build(**_): return Net(1, 1, 5, padding=2)\n"
    )
    spec = loaded('denoiser={factory: "nsp.inner:build"}', folder=tmp_path).spec
    assert measure(spec).radius == 2
    monkeypatch.setattr(receptive, "_measured", {})
    assert known(spec) == measure(spec)


def test_a_cache_that_cannot_be_written_is_remembered(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_cache.write_text("in the way")
    answer = replace(receptive.IDENTITY, radius=7)
    key = receptive._key(loaded().spec)
    assert key is not None
    kept.keep(receptive.KEPT, key, asdict(answer))
    assert known(loaded().spec) is None
    monkeypatch.setitem(receptive._measured, key, answer)
    assert known(loaded().spec) == answer
