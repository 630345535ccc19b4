"""The allowance of a card: from runs that were measured on its kind, or the default, and always with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.plan.cards import ALLOWANCE, NEWEST, card_of
from dptrain.plan.forecast import GIB, Forecast
from dptrain.plan.plan import make_plan
from dptrain.records.calibration import Measured, store_measured
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from tests.local_runs import TINY

SITE = ClusterProfile(name="site", gpus_per_node=4, gpu_memory_gib=32)


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    monkeypatch.setattr("dptrain.plan.cards.GPU_DEVICES", ())
    return tmp_path


def write(root: Path, *pairs: tuple[float, float], card: str = "V100", cluster: str = "site", name: str = "r") -> None:
    """Runs by (forecast, measured) in GiB."""
    made = [
        Measured(
            run=f"{name}-{card}-{cluster}-{i}",
            cluster=cluster,
            card=card,
            task="train",
            forecast_bytes=int(made * GIB),
            measured_bytes=int(most * GIB),
            step_key=None,
            step_time_s=None,
        )
        for i, (made, most) in enumerate(pairs)
    ]
    store_measured(root, made)


def test_without_records_the_default_and_why(runs: Path) -> None:
    card = card_of(SITE)
    assert (card.capacity_gib, card.factor) == (32, ALLOWANCE)
    assert card.reason.startswith("the default: ") and "no run of cluster site" in card.reason
    write(runs, (1, 1.2), (2, 2.4))
    write(runs, (3, 3.6), cluster="elsewhere", card="H200")
    assert card_of(SITE).factor == ALLOWANCE and "has 2 on V100 of the 3 forecasts" in card_of(SITE).reason


def test_the_largest_factor_of_enough_runs_on_the_kind(runs: Path) -> None:
    write(runs, (1, 1.05), (2, 2.18), (4, 4.2))
    card = card_of(SITE)
    assert card.factor == pytest.approx(1.09) and "3 runs on V100" in card.reason and "1.090 times" in card.reason
    # The same kind elsewhere counts too, another kind does not.
    write(runs, (8, 9.6), cluster="elsewhere")
    write(runs, (8, 11.2), (9, 12.6), (10, 14), cluster="elsewhere", card="H200")
    assert card_of(SITE).factor == pytest.approx(1.2)
    # Of a cluster with two kinds the one that needs more.
    write(runs, (1, 1.4), card="H200")
    assert card_of(SITE).factor == pytest.approx(1.4)


def test_runs_of_one_size_and_small_ones_on_a_gpu_are_no_evidence(runs: Path) -> None:
    write(runs, (1, 1.05), (1, 1.06), (1, 1.07), (0.1, 0.15), (0.2, 0.3))
    assert card_of(SITE).factor == ALLOWANCE and "has 1 on V100" in card_of(SITE).reason
    write(runs, (0.1, 0.1), (0.2, 0.2), (0.3, 0.3), card="cpu", cluster="here")
    assert card_of(ClusterProfile(name="here", launcher="local")).factor == 1


def test_runs_that_found_no_gpu_say_nothing_of_the_card(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(runs, (1, 1), (2, 2), (3, 3), card="cpu")
    write(runs, (1, 1), (2, 2), (3, 3), card="cpu", cluster="here")
    assert card_of(SITE).factor == ALLOWANCE and "no run of cluster site" in card_of(SITE).reason
    assert card_of(replace(SITE, gpu_request="none")).factor == 1, "a job that asks for none is to have none"
    here = ClusterProfile(name="here", launcher="local", gpu_memory_gib=8)
    monkeypatch.setattr("dptrain.plan.cards.GPU_DEVICES", (runs / "nvidiactl",))
    assert card_of(here).factor == 1
    (runs / "nvidiactl").touch()
    assert card_of(here).factor == ALLOWANCE


@pytest.mark.parametrize(("factor", "taken"), [(0.8, ALLOWANCE), (0.95, 1.0), (1.5, 1.5), (1.6, ALLOWANCE)])
def test_a_factor_out_of_bounds_is_not_believed(runs: Path, factor: float, taken: float) -> None:
    write(runs, *((size, size * factor * 0.9999) for size in (1, 2, 4)))
    card = card_of(SITE)
    assert card.factor == pytest.approx(taken, rel=1e-3)
    assert ("not believed" in card.reason) == (factor in (0.8, 1.6))


@pytest.mark.parametrize("wrong", [2.0, 1e3, 0.01])
def test_one_wrong_record_hides_nothing(runs: Path, wrong: float) -> None:
    write(runs, *((size, 1.25 * size) for size in (1, 2, 4)), (3, 3 * wrong))
    card = card_of(SITE)
    assert card.factor == pytest.approx(1.25) and "without 1 that are not believed" in card.reason


def test_old_runs_are_forgotten(runs: Path) -> None:
    write(runs, (1, 1.4), (2, 2.8))
    write(runs, *((1 + i, 1.1 * (1 + i)) for i in range(NEWEST)), name="newer")
    assert card_of(SITE).factor == pytest.approx(1.1)


def test_plan_decides_with_it_and_says_so(runs: Path) -> None:
    # With nothing to decide, one forecast is all.
    loaded = parse_spec(TINY, "tiny.yaml", Path.cwd(), ("tiling.checkpoint=always", "tiling.max_batch_size=1"))
    plan = make_plan(loaded, "train", SITE)
    (choice,) = [c for c in plan.choices if c.key == "memory.allowance"]
    assert choice.value == "13.0%" and "the default" in choice.reason
    write(runs, (1, 1.25), (2, 2.5), (4, 5))
    plan = make_plan(loaded, "train", SITE)
    (choice,) = [c for c in plan.choices if c.key == "memory.allowance"]
    assert choice.value == "25.0%" and "3 runs on V100" in choice.reason
    memory = plan.to_json()["memory"]
    assert memory["allowance_gib"] == pytest.approx(0.25 * memory["peak_gib"]) and memory["allowance_factor"] == 1.25
    assert any(line.startswith("memory.allowance = 25.0%: 3 runs") for line in plan.lines())


def test_what_a_card_holds() -> None:
    answer = Forecast(peaks={"forward": 10 * GIB}, terms={}, per_step_bytes=None, bytes_sent=0, rank=0, error=None)
    card = card_of(SITE)
    assert card.needs_gib(answer) == pytest.approx(11.3)
    assert card.fits(answer) is True and card.fits(answer, 0.35) is False
    assert card_of(ClusterProfile(name="c")).fits(answer) is None
