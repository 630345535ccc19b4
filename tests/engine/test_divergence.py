"""What is called divergence, and that all ranks leave together with the last good iterate kept."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dptrain.engine.context import RankEnvironment
from dptrain.engine.divergence import GROWTH, PATIENCE, Growth, squared_norm
from dptrain.engine.watch import Agreement, Requests, Watch
from dptrain.records.events import EventLog
from dptrain.status.state import run_status
from tests.local_runs import events, finish, running
from tests.ranks import RankPool

X = torch.zeros(1)


def growth(measured: float = 2.0, elements: int = 4) -> Growth:
    return Growth(measured, elements, X)


@given(st.floats(0, 1e6), st.integers(1, 10**9), st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_what_stays_below_the_limit_is_never_stopped(measured: float, elements: int, shares: list[float]) -> None:
    one = growth(measured, elements)
    assert one.limit >= GROWTH * math.sqrt(elements), "a white image, also where nothing was measured"
    assert all(one.judge(share * one.limit, k, X) is None for k, share in enumerate(shares, 1))


def test_a_spike_comes_back_and_growth_does_not() -> None:
    one = growth()
    good = torch.ones(1)
    high = 2 * one.limit
    for k in range(1, 10, 3):
        assert [one.judge(n, k + i, good if n < high else X) for i, n in enumerate([high, high, 1.0])] == [None] * 3
    assert one.good is good and one.good_after == 9
    said = [one.judge(high * 10**k, 10 + k, X) for k in range(PATIENCE)]
    assert said[:-1] == [None] * (PATIENCE - 1) and "grows without bound" in (said[-1] or "")
    assert one.good is good and one.good_after == 9


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_said_at_once(value: float) -> None:
    norm = math.sqrt(float(squared_norm(torch.tensor([1.0, value]))))
    assert "not finite after iteration 4" in (growth().judge(norm, 4, X) or "")


def test_where_it_began() -> None:
    one = Growth(1.0, 4, torch.tensor([1.0, 1.0, 1.0, 1.0]))
    spread, origin = torch.tensor([1.0, math.nan, math.inf, 1.0]), torch.full((4,), math.nan)
    assert 0 == one.count_bad(one.good) < one.count_bad(spread) == 2 < one.count_bad(origin)
    wrong_before = Growth(1.0, 4, torch.tensor([math.nan, 1.0, 1.0, 1.0]))
    assert wrong_before.count_bad(spread) > one.count_bad(origin)


def test_a_norm_of_nothing() -> None:
    assert float(squared_norm(torch.empty(1, 1, 0, 3))) == 0
    assert float(squared_norm(torch.tensor([3.0, 4.0]))) == 25


def agreed(env: RankEnvironment, folder: str) -> list[Agreement]:
    log = EventLog(Path(folder) / f"e{env.rank}")
    requests = Requests(log, Watch(log, setup_timeout_s=60, stall_timeout_s=60))
    first = requests.agree(torch.device("cpu"), diverged=False)
    second = requests.agree(torch.device("cpu"), diverged=env.rank == 1)
    requests.save_and_stop = env.rank == 0
    return [first, second, requests.agree(torch.device("cpu"), diverged=False)]


def test_what_one_rank_finds_all_know(ranks: RankPool, tmp_path: Path) -> None:
    expected = [
        Agreement(stop=False, diverged=False),
        Agreement(stop=False, diverged=True),
        Agreement(stop=True, diverged=False),
    ]
    assert ranks.run(2, agreed, str(tmp_path)) == [expected, expected]


@pytest.mark.parametrize("layout", ["sharded", pytest.param("replicated", marks=pytest.mark.acceptance)])
def test_growth_stops_the_run_and_keeps_the_last_good_iterate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "growing.py").write_text(
        "import torch\n"
        "class Growing(torch.nn.Module):\n"
        "    def forward(self, x, sigma):\n"
        "        return x * 500\n"
        "def build(**kwargs):\n"
        "    return Growing()\n"
    )
    change = (f"resources.layout={layout}", 'denoiser={factory: "growing:build"}', "algorithm.iterations=40")
    with running("infer", *change, folder=tmp_path) as run:
        assert finish(run) == 1
    (status,) = run_status([run])
    assert status.state == "failed: diverged" and status.failure is not None
    assert "grows without bound" in status.failure.message and "output/last-good.npy" in status.failure.message
    # A hundredth of the iterate and the measurements, times 500: five times as large in every step. Stopped long before float32
    # ends, all ranks after the same step.
    assert {e["step"] for rank in (0, 1) for e in events(run, rank, "failure")} == {status.failure.step}
    assert status.failure.step is not None and 3 <= status.failure.step <= 6
    image = np.load(run.output / "last-good.npy")
    assert np.isfinite(image).all() and 1 < np.linalg.norm(image) <= GROWTH * math.sqrt(image.size)
    assert not [e for rank in (0, 1) for e in events(run, rank, "failure") if e["signal"] == signal.SIGTERM.name]
