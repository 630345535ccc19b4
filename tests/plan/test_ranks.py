"""`resources.gpus: fit` with real forecasts of a tiny training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dptrain.errors import PlanRefused, SpecError
from dptrain.plan import fitting, ranks, remedies
from dptrain.plan import plan as plan_module
from dptrain.plan.cards import ALLOWANCE
from dptrain.plan.fitting import MARGIN
from dptrain.plan.forecast import GIB, Forecast, Request, forecast
from dptrain.plan.plan import make_plan
from dptrain.plan.ranks import counts, request_on
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, parse_spec
from tests.local_runs import TINY

CARD = ClusterProfile(name="c", gpus_per_node=1, gpu_memory_gib=1)
LARGER = ("problem.image_size=[64, 64]", "tiling={patch: 16, halo: 4, max_batch_size: 1, checkpoint: always}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(*overrides: str) -> LoadedSpec:
    return parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides)


def card(gib: float) -> ClusterProfile:
    return ClusterProfile(name="c", gpus_per_node=1, gpu_memory_gib=gib)


def test_the_fewest_ranks_are_taken() -> None:
    loaded = read(*LARGER)
    on = [request_on(loaded.spec, "train", n) for n in range(1, 6)]
    one, two, three, *_ = [answer.peak_bytes * ALLOWANCE / GIB / (1 - MARGIN) for answer in forecast(on)]
    assert one > two > three
    for gib, fewest in ((one * 1.001, 1), (three * 1.001, 3)):
        plan = make_plan(read(*LARGER, "resources.gpus=fit"), "train", card(gib))
        choice = next(c for c in plan.choices if c.key == "resources.gpus")
        assert (plan.world_size, choice.value, plan.fits) == (fewest, fewest, True)
        assert plan.job is not None and plan.job.world_size == fewest
        assert f"{fewest} rank" in choice.reason and ("2 ranks need" in choice.reason) == (fewest == 3)
        # A sweep knows the fitted number and the same number as one run.
        assert plan.fingerprint == make_plan(read(*LARGER, f"resources.gpus={fewest}"), "train", card(gib)).fingerprint


def test_it_needs_a_card_that_is_known_and_ranks_that_can_be_asked_for() -> None:
    with pytest.raises(PlanRefused, match="gpu_memory_gib: 32 in the profile"):
        make_plan(read("resources.gpus=fit"), "train", ClusterProfile(name="local", launcher="local"))
    one = ClusterProfile(name="c", launcher="local", gpus_per_node=1, gpu_memory_gib=1)
    with pytest.raises(PlanRefused, match="can give no number of ranks"):
        make_plan(read("resources={gpus: fit, replicas: 2}"), "train", one)


def needing(gib: Callable[[Request], float]) -> Callable[[Sequence[Request]], list[Forecast]]:
    """Forecasts of so much each, allowance included."""

    def asked(requests: Sequence[Request]) -> list[Forecast]:
        sizes = [int(gib(request) * GIB / ALLOWANCE) for request in requests]
        return [
            Forecast(
                peaks={"forward": size}, terms={"forward": {"weights": size}}, per_step_bytes=None, bytes_sent=0, rank=0, error=None
            )
            for size in sizes
        ]  # fmt: skip

    return asked


def forecasting(monkeypatch: pytest.MonkeyPatch, gib: Callable[[Request], float]) -> None:
    for module in (ranks, remedies, fitting, plan_module):
        monkeypatch.setattr(module, "forecast", needing(gib))


def test_where_no_number_fits_the_refusal_is_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    local = ClusterProfile(name="c", launcher="local", gpus_per_node=4, gpu_memory_gib=1)
    forecasting(monkeypatch, lambda request: 1.5 if request.checkpoint == "never" else 0.5)
    written = ("resources.gpus=fit", "tiling.checkpoint=never")
    plan = make_plan(read(*written), "train", local, fixed=())
    (refusal,) = plan.refusals
    assert plan.fits is False and plan.world_size == 4 and plan.choice("resources.gpus") == 4
    for words in ("> 1 GiB of the card", "the largest term is weights", "it fits with: --set tiling.checkpoint=always"):
        assert words in refusal
    assert "4 ranks need" in next(c.reason for c in plan.choices if c.key == "resources.gpus")
    assert make_plan(read(*written, "tiling.checkpoint=always"), "train", local).fits is True


def test_the_margin_is_used_where_no_number_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    local = ClusterProfile(name="c", launcher="local", gpus_per_node=8, gpu_memory_gib=1)
    forecasting(monkeypatch, lambda request: 0.98 if request.spec.resources.gpus >= 3 else 1.2)
    plan = make_plan(read("resources.gpus=fit"), "train", local)
    assert plan.fits is True and plan.world_size == 3, "the fewest, not the most"
    assert "within the whole card" in next(c.reason for c in plan.choices if c.key == "resources.gpus")


def test_numbers_that_can_be_asked_for() -> None:
    spec = read("resources={gpus: fit, replicas: 2}").spec
    assert spec.resources.gpus == 2, "one rank per replica until it is decided"
    assert counts(spec, ClusterProfile(name="c", gpus_per_node=4))[:5] == [2, 4, 6, 8, 12]
    assert counts(spec, ClusterProfile(name="c", launcher="local", gpus_per_node=4)) == [2, 4]
    assert counts(read("resources.gpus=fit", "tiling.patch=none").spec, CARD) == [1]


def test_other_words_are_still_refused() -> None:
    for text in ("resources.gpus=fits", "resources.replicas=fit"):
        with pytest.raises(SpecError, match="whole number"):
            read(text)
    swept = parse_spec(TINY.replace("gpus: 2", "gpus: fit") + "sweep: {resources.gpus: [1, 2]}\n", "s.yaml", Path.cwd())
    assert not swept.fit_gpus, "the sweep says the numbers"
    assert not read("resources.gpus=2").fit_gpus and read("resources.gpus=fit").fit_gpus
