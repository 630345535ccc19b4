"""Mode of recomputation and tiles per call, decided from real forecasts of a tiny step that are made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dptrain.plan import forecast as forecasts
from dptrain.plan.cards import ALLOWANCE, Card
from dptrain.plan.fitting import MARGIN, batches, decide_step, modes
from dptrain.plan.forecast import GIB, Request, forecast
from dptrain.plan.plan import make_plan
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Spec
from tests.local_runs import TINY

Needs = dict[tuple[str, int], float]


def spec_of(*overrides: str) -> Spec:
    return parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides).spec


@pytest.fixture(scope="module")
def needs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Needs]:
    """GiB of a card, margin and allowance included, by mode and batch."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        asked = [(mode, batch) for mode in ("never", "always") for batch in (1, 2)]
        spec = spec_of()
        answers = forecast([Request(spec=spec, task="train", max_batch_size=b, checkpoint=m) for m, b in asked])
        patched.setattr(forecasts, "_ask", lambda requests: [{"error": "asked again"}] * len(requests))
        sizes = [answer.peak_bytes * ALLOWANCE / GIB / (1 - MARGIN) for answer in answers]
        yield dict(zip(asked, sizes, strict=True))


def test_the_fastest_that_fits_is_taken(needs: Needs) -> None:
    assert needs["never", 1] > needs["always", 1] and needs["always", 2] > needs["always", 1]
    for card, mode, batch in (
        (max(needs.values()) * 1.001, "never", 2),
        (min(needs["never", 1], needs["always", 2] * 1.001), "always", 2),
        (needs["always", 1] * 1.001, "always", 1),
        (needs["always", 1] * 0.999, "always", 1),
    ):
        decided = decide_step(spec_of(), "train", Card(capacity_gib=card))
        assert (decided.mode.value, decided.batch.value) == (mode, batch), card
        assert decided.forecast is not None and decided.forecast.error is None
        assert (decided.request.checkpoint, decided.request.max_batch_size) == (mode, batch)
        assert "allowance included" in decided.mode.reason and "95% of the card" in decided.batch.reason
    assert "the least memory, but always needs" in decided.mode.reason


def test_what_the_spec_says_stays(needs: Needs) -> None:
    asked = decide_step(spec_of("tiling.checkpoint=always"), "train", Card(capacity_gib=99))
    assert (asked.mode.value, asked.mode.reason, asked.batch.value) == ("always", "as the spec says", 2)
    asked = decide_step(spec_of("tiling.max_batch_size=1"), "train", Card(capacity_gib=99))
    assert (asked.mode.value, asked.batch.value, asked.batch.reason) == ("never", 1, "as the spec says")


def test_without_a_card_nothing_is_asked(needs: Needs) -> None:
    decided = decide_step(spec_of(), "train", Card(capacity_gib=None))
    assert (decided.mode.value, decided.batch.value, decided.forecast) == ("always", 1, None)
    assert "gpu_memory_gib" in decided.mode.reason and "gpu_memory_gib" in decided.batch.reason


def test_the_ranks_read_what_was_decided(needs: Needs) -> None:
    profile = ClusterProfile(name="c", gpus_per_node=4, gpu_memory_gib=99)
    value = make_plan(parse_spec(TINY, "tiny.yaml", Path.cwd()), "train", profile).to_json()
    assert (value["checkpoint"], value["max_batch_size"], value["fits"]) == ("never", 2, True)


def test_candidates() -> None:
    assert batches(spec_of("resources.gpus=1", "problem.image_size=[96,32]")) == (12, 6, 3, 2, 1)
    assert batches(spec_of("tiling.max_batch_size=9")) == (2,)
    assert modes(spec_of(), "train") == ("never", "always") and modes(spec_of(), "infer") == ("never",)
    assert modes(spec_of("denoiser={name: unet, weights: random}"), "train")[-1] == "stages"
    compiled = spec_of("denoiser={name: unet, weights: random}", "resources.compile=true")
    assert modes(compiled, "train")[-1] == "always", "one piece has no stages"
