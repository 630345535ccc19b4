"""A refusal for memory says what to write instead, and that passes plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from dptrain.plan import remedies
from dptrain.plan.cards import ALLOWANCE
from dptrain.plan.forecast import GIB, Forecast, Request, forecast
from dptrain.plan.plan import make_plan
from dptrain.plan.remedies import KEYS, cheapest_change
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, parse_spec
from tests.local_runs import TINY

CARD = ClusterProfile(name="c", gpus_per_node=4, gpu_memory_gib=32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(*overrides: str) -> LoadedSpec:
    return parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides)


@pytest.mark.acceptance
def test_the_change_that_is_printed_passes_plan() -> None:
    written = ("tiling.checkpoint=never", "tiling.max_batch_size=2")
    spec = read(*written).spec
    asked = [
        Request(spec=spec, task="train", max_batch_size=b, checkpoint=m) for m, b in (("always", 2), ("always", 1))
    ]
    two, one = (answer.peak_bytes * ALLOWANCE / GIB for answer in forecast(asked))
    # Where recomputation is enough it is that alone; where it is not, one tile at a time too.
    for gib, count in ((two * 1.001, 1), (one * 1.001, 2)):
        card = ClusterProfile(name="c", launcher="local", gpus_per_node=2, gpu_memory_gib=gib)
        fixed = () if count == 1 else ("tiling.patch",)
        plan = make_plan(read(*written), "train", card, fixed=fixed)
        assert plan.fits is False
        (refusal,) = plan.refusals
        assert "the largest term is" in refusal
        changes = re.findall(r"--set (\S+)", refusal)
        assert changes == ["tiling.checkpoint=always", "tiling.max_batch_size=1"][:count]
        assert make_plan(read(*written, *changes), "train", card).fits is True


def test_the_order_of_what_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def first(*args: object) -> tuple[None, tuple[str, ...]]:
        tried.append(str(args[-1]))
        return None, ()

    monkeypatch.setattr(remedies, "_first", first)
    assert cheapest_change(read().spec, "train", CARD, ("tiling.patch",)) == ()
    order = [key for key in KEYS if key != "tiling.patch"]
    assert tried == order * 2, "each alone, then together"


def test_the_layout_sharded_is_offered_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(requests: Sequence[Request]) -> list[Forecast]:
        return [of_size(1 if r.spec.resources.layout == "sharded" or r.max_batch_size == 1 else 100) for r in requests]

    monkeypatch.setattr(remedies, "forecast", answers)
    spec = read("resources.layout=replicated", "tiling.max_batch_size=2").spec
    assert cheapest_change(spec, "train", CARD) == ("resources.layout=sharded",)
    assert cheapest_change(spec, "train", CARD, ("resources.layout",)) == ("tiling.max_batch_size=1",)


def of_size(gib: int) -> Forecast:
    return Forecast(
        peaks={"forward": gib * GIB}, terms={"forward": {"weights": gib * GIB}}, per_step_bytes=None, bytes_sent=0, rank=0, error=None
    )  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "key", "values"),
    [
        (("tiling.checkpoint=never",), "tiling.checkpoint", ["always"]),
        (
            ("tiling.checkpoint=auto", "denoiser={name: unet, weights: random}"),
            "tiling.checkpoint",
            ["always", "stages"],
        ),
        ((), "tiling.checkpoint", []),
        (("resources.gpus=1", "tiling.max_batch_size=4"), "tiling.max_batch_size", [2, 1]),
        (("problem.image_size=[64,64]", "tiling={patch: 64, halo: 8}"), "tiling.patch", [32, 16, 8]),
        (
            ("problem.image_size=[2048,2048]", "tiling={patch: 256, halo: 4}", "resources.gpus=1"),
            "tiling.patch",
            [128, 64, 32],
        ),
        (
            ("problem.image_size=[2048,2048]", "tiling={patch: 256, halo: 4}", "resources.gpus=4"),
            "tiling.patch",
            [128, 64, 32, 16],
        ),
        ((), "resources.gpus", [4, 8, 16, 32]),
        (("resources.layout=replicated",), "resources.gpus", []),
        (("resources.layout=replicated",), "resources.layout", ["sharded"]),
        ((), "resources.layout", []),
        (("resources={gpus: 4, replicas: 4}", "train.images=4"), "resources.replicas", [2, 1]),
    ],
)
def test_values(overrides: tuple[str, ...], key: str, values: list[int | str]) -> None:
    assert list(remedies._values(read(*overrides).spec, "train", CARD, key)) == values
