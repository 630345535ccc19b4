"""What observers are told of real ranks: every call, whose fault the waiting is, and names in a trace."""

from __future__ import annotations

import ast
import gzip
import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dptrain.engine import observe
from dptrain.engine.communication import all_reduce, gathered, meet, told_by_first
from dptrain.engine.context import RankEnvironment
from dptrain.engine.exchange import Exchange
from dptrain.engine.measure import Meter
from dptrain.engine.observe import Observer
from dptrain.engine.observers import CallTimes, NoCuda, NvtxRanges, OperatorProfile, Window, make_window
from dptrain.engine.split import Seen, split
from dptrain.geometry.boxes import split_boxes
from dptrain.geometry.messages import exchange_plan
from dptrain.records.paths import AttemptPaths
from dptrain.spec.schema import Run
from tests.engine.helpers import context
from tests.ranks import RankPool

CPU = torch.device("cpu")
ENGINE = Path(__file__).parents[2] / "dptrain" / "engine"
NAMES = "all_gather all_gather_object all_reduce barrier broadcast broadcast_object_list gather gather_object reduce scatter"
COLLECTIVES = {f"dist.{name}" for name in NAMES.split()}
LATE_S = 0.05
STEPS = 5
SHAPE = (24, 8)


def halo_exchange(env: RankEnvironment) -> Exchange:
    """Every rank wants its rows and one more on either side: the outer ranks have one neighbour, the inner one two."""
    owned = split_boxes(SHAPE, env.world_size, (1, 1))
    around = [[((max(0, a - 1), min(SHAPE[0], b + 1)), columns)] for (a, b), columns in owned]
    return Exchange(exchange_plan([[box] for box in owned], around, SHAPE), env.rank, name="rows")


def steps_with_a_late_rank(env: RankEnvironment, late: int) -> list[Seen]:
    """What every rank saw of a few steps with exchanges forwards and backwards and two collectives."""
    exchange = halo_exchange(env)
    window = Window(CallTimes(lambda: None), 1, STEPS)
    meter = Meter(CPU, track=False, window=window)
    for step in range(1, STEPS + 3):
        with meter.step(step, STEPS + 2, ("gradient",)):
            x = torch.ones(1, 1, *(b - a for a, b in exchange.held[0]), requires_grad=True)
            if env.rank == late:
                time.sleep(LATE_S)
            with meter.section("gradient"):
                exchange.gather(x)[0].sum().backward()  # type: ignore[no-untyped-call]
            all_reduce(torch.ones(3))
        meet()
    assert window.outcome.steps == (2, STEPS + 1)
    seen = window.outcome.seen
    assert seen is not None
    return gathered(seen)


def of_step(seen: Seen, index: int) -> Seen:
    """The calls of one of the steps."""
    calls = {}
    for key, times in seen.calls.items():
        each = len(times) // STEPS
        calls[key] = times[index * each : (index + 1) * each]
    return Seen(seconds=seen.seconds, calls=calls)


@pytest.mark.parametrize("late", [0, 1])
def test_a_slow_rank_is_waiting_of_the_others_and_not_transfer(ranks: RankPool, late: int) -> None:
    """Not a matter of speed: what is looked for is a delay that was put in, which a busy machine can only hide in single steps."""
    (every, *_) = ranks.run(3, steps_with_a_late_rank, late)
    for seen in every:
        names = {(section, key.split()[0]) for section, key in seen.calls}
        assert names == {("gradient", "rows"), ("other", "all_reduce"), ("between", "barrier")}
    steps = [split([of_step(seen, index) for seen in every], 1) for index in range(STEPS)]
    assert all(step["whole"]["calls"] == [4] * 3 for step in steps)
    others = {0, 1, 2} - {late}
    for rank in others:
        waits = [step["whole"]["wait_s"][rank] for step in steps]
        assert statistics.median(waits) > 0.7 * LATE_S, waits
    assert min(max(step["whole"]["transfer_s"]) for step in steps) < 0.5 * LATE_S
    assert min(step["whole"]["wait_s"][late] for step in steps) < 0.5 * LATE_S
    # The neighbours wait in the exchange; who has no late neighbour waits in the collective after it.
    assert statistics.median(step["sections"]["gradient"]["wait_s"][1 - late] for step in steps) > 0.7 * LATE_S
    whole = split(every, STEPS)["whole"]
    assert whole["compute_s"][late] > LATE_S * STEPS
    assert all(whole["compute_s"][rank] < whole["compute_s"][late] for rank in others)
    assert whole["load_balance"] < 0.7


def sums_backwards(env: RankEnvironment) -> list[tuple[str, str, int]]:
    """(section, name, calls) of deepinv's differentiable sum over ranks and its backward pass, and of our own calls."""
    ctx = context(env)
    observer = CallTimes(lambda: None)
    observer.open()
    observe.observed_by(observer)
    try:
        with observe.section("forward"):
            total = ctx.all_reduce(torch.ones(2, requires_grad=True))
        with observe.section("backward"):
            total.sum().backward()
        ctx.summed(torch.ones(4))
        assert told_by_first(env.rank) == 0
    finally:
        observe.observed_by(None)
    observer.close()
    assert observer.seen.bytes_sent["between"] == 4 * 4
    assert all(t > 0 for times in observer.seen.calls.values() for t in times)
    return [(section, key.strip(), len(times)) for (section, key), times in observer.seen.calls.items()]


def test_calls_of_deepinv_and_backward_passes_are_seen(ranks: RankPool) -> None:
    expected = [
        ("forward", "all_reduce", 1),
        ("backward", "all_reduce", 1),
        ("between", "all_reduce", 1),
        ("between", "broadcast_object", 1),
    ]
    assert ranks.run(2, sums_backwards) == [expected, expected]


def test_no_collective_of_the_engine_goes_by_unseen() -> None:
    found = []
    for path in sorted(set(ENGINE.rglob("*.py")) - {ENGINE / "communication.py"}):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in COLLECTIVES:
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node.func)}")
    assert not found, f"write: those of dptrain/engine/communication.py for {found}"


class Told(Observer):
    """Keeps what it is told of the window."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def prepare(self, warm_up_steps: int, active_steps: int) -> None:
        self.told.append((warm_up_steps, active_steps))

    def open(self) -> None:
        self.told.append("open")

    def step(self, number: int) -> observe.Range:
        self.told.append(number)
        return observe.NOTHING

    def close(self) -> None:
        self.told.append("close")


@pytest.mark.parametrize(
    ("first", "last", "told", "steps"),
    [
        (1, 10, [(2, 3), "open", 3, 4, 5, "close"], (3, 5)),
        (7, 30, [(2, 3), "open", 9, 10, 11, "close"], (9, 11)),
        (1, 4, [(2, 2), "open", 3, 4, "close"], (3, 4)),
        (1, 2, [(1, 1), "open", 2, "close"], (2, 2)),
        (4, 4, [(0, 1), "open", 4, "close"], (4, 4)),
    ],
)
def test_a_window_fits_into_the_steps_there_are(first: int, last: int, told: list[Any], steps: tuple[int, int]) -> None:
    observer = Told()
    meter = Meter(CPU, track=False, window=Window(observer, 2, 3))
    for step in range(first, last + 1):
        with meter.step(step, last, ()):
            pass
    assert observer.told == told
    assert meter.window.outcome.steps == steps
    assert not observe.anyone()


def test_a_window_that_was_not_reached_has_no_outcome() -> None:
    observer = CallTimes(lambda: None)
    meter = Meter(CPU, track=False, window=Window(observer, 1, 3))
    for step in (1, 2):
        with meter.step(step, 9, ()):
            pass
    observe.observed_by(None)
    assert (meter.window.outcome.steps, meter.window.outcome.seen) == (None, None)


def profiled(env: RankEnvironment, folder: Path) -> None:
    exchange = halo_exchange(env)
    attempt = AttemptPaths(folder)
    window = Window(OperatorProfile(attempt.rank_trace(env.rank), attempt.rank_operators(env.rank)), 2, 2)
    # The tracker of storages is on, as in a run.
    meter = Meter(CPU, track=True, window=window)
    with meter.tracking():
        for step in range(1, 7):
            with meter.step(step, 6, ("gradient",)), meter.section("gradient"):
                x = torch.ones(1, 1, *(b - a for a, b in exchange.held[0]))
                torch.nn.functional.conv2d(exchange.gather(x)[0], torch.ones(1, 1, 3, 3))
    assert window.outcome.steps == (3, 4)
    assert list(window.outcome.files) == [attempt.rank_trace(env.rank), attempt.rank_operators(env.rank)]


def trace_names(path: Path) -> list[str]:
    """Names of the complete events of a Chrome trace."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def test_the_profiler_leaves_a_trace_and_a_table_of_the_measured_steps(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, profiled, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    for rank in (0, 1):
        names = trace_names(AttemptPaths(tmp_path).rank_trace(rank))
        assert names.count("dptrain.step") == names.count("dptrain.section.gradient") == 2
        # Entered to start the messages, and to wait for them.
        assert names.count("dptrain.communication.rows") == 4
        assert names.count("aten::conv2d") == 2
        table = AttemptPaths(tmp_path).rank_operators(rank).read_text()
        assert "aten::conv2d" in table and "dptrain.section.gradient" in table


def test_nvtx_ranges_are_opened_and_closed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls into CUDA are kept instead of made: this machine need not have it."""
    said: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: said.append(f"+{name}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("-"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: said.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: said.append("stop"))
    meter = Meter(CPU, track=False, window=Window(NvtxRanges(), 1, 1))
    for step in (1, 2, 3):
        with meter.step(step, 3, ("denoise",)), meter.section("denoise"):
            with observe.communicating("tiles"):
                pass
    inside = ["+dptrain.step", "+dptrain.section.denoise", "+dptrain.communication.tiles"]
    assert said == ["start", *inside, "-", "-", "-", "stop"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_nvtx_without_cuda_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    window = make_window(Run(measure="nvtx"), AttemptPaths(tmp_path), 0, CPU)
    meter = Meter(CPU, track=False, window=window)
    with meter.step(1, 1, ()):
        pass
    assert window.outcome.note == NoCuda.note and str(NoCuda.note) in capsys.readouterr().out
    assert window.outcome.steps == (1, 1) and window.outcome.seen is None
