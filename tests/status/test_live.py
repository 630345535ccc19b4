"""Watching: the trend of a run, the line about all of them, what is left when somebody stops looking."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrain.cli.live import SLURM_S, Lines, Watched, finder, interval_s, watch
from dptrain.errors import Interrupted
from dptrain.launch.locks import sweep_lock
from dptrain.records.process import start_ticks
from dptrain.records.sweeps import SweepMember, SweepRecord, write_sweep
from dptrain.status.collect import HEAD_BYTES, TAIL_BYTES
from dptrain.status.live import LIVE_HEADER, live_row, rows_that_fit, still_going, summary, time_left_s
from dptrain.status.model import RunStatus
from dptrain.status.spark import ASCII, BLOCKS, marks_for, sparkline
from dptrain.status.state import run_status
from tests.status.helpers import WrittenRun


def running(folder: Path, name: str = "demo-1", steps: int = 10, done: int = 4) -> WrittenRun:
    """A local run whose supervisor is this process."""
    run = WrittenRun(folder, name, world_size=1, steps=steps, launcher="local", job_id=str(os.getpid()))
    pid, host = os.getpid(), os.uname().nodename
    run.launcher("launched", host=host, pid=pid, start_ticks=start_ticks(pid), world_size=1, pids=[pid])
    run.start(0)
    run.event(0, "phase", phase="run")
    for step in range(1, done + 1):
        run.step(0, step)
    return run


def status_of(run: WrittenRun) -> RunStatus:
    (status,) = run_status([run.paths])
    return status


def test_a_rise_and_a_fall() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 20) == BLOCKS
    assert sparkline([7, 0], 20, ASCII) == "@_"
    assert sparkline([3.0, 3.0, 3.0], 2) == "▄▄"
    assert sparkline([], 9) == sparkline([math.nan], 9) == ""
    assert sparkline([1.7e308, -1.7e308, 1.7e308, 1.7e308], 2, "01") == "01"


def test_a_fast_fall_is_drawn_on_a_logarithmic_scale() -> None:
    assert sparkline([1000.0, 100.0, 10.0, 1.0], 9, "0123") == "3210"
    assert sparkline([4.0, 3.0, 2.0, 1.0], 9, "0123") == "3210"
    assert sparkline([1000.0, 0.0], 9, "0123") == "30"


@given(st.lists(st.floats(), max_size=60), st.integers(1, 30), st.sampled_from([BLOCKS, ASCII]))
def test_any_series_has_a_line(values: list[float], width: int, marks: str) -> None:
    line = sparkline(values, width, marks)
    finite = [value for value in values if math.isfinite(value)]
    assert len(line) == min(width, len(finite)) and set(line) <= set(marks)
    if 1 < len(finite) <= width and abs(max(finite)) < 1e300 > abs(min(finite)) and max(finite) > min(finite) + 1e-300:
        assert line[finite.index(max(finite))] == marks[-1] and line[finite.index(min(finite))] == marks[0]


def test_blocks_only_where_the_terminal_has_them() -> None:
    assert marks_for("utf-8") == BLOCKS
    assert marks_for("ascii") == marks_for("latin-1") == marks_for(None) == marks_for("no such code") == ASCII


def test_the_trend_is_psnr_or_else_loss(tmp_path: Path) -> None:
    assert status_of(running(tmp_path)).path == (21.0, 22.0, 23.0, 24.0)
    run = WrittenRun(tmp_path, "train-1", world_size=2, task="train")
    for rank in range(2):
        run.start(rank)
        for step in (1, 2):
            run.step(rank, step, psnr_db=None, loss=1.0 / step)
    assert status_of(run).path == (1.0, 0.5)


def test_the_trend_of_a_long_run_is_that_of_its_newest_steps(tmp_path: Path) -> None:
    run = running(tmp_path, steps=4000, done=0)
    log = run.log(0)
    for step in range(1, 2001):
        log.write("step", step=step, seconds=0.5, psnr_db=float(step), loss=None, filler="x" * 100)
    log.close()
    assert run.paths.attempt(1).rank_events(0).stat().st_size > HEAD_BYTES + TAIL_BYTES
    path = status_of(run).path
    assert path[-1] == 2000.0 and path[0] > 1000.0 and len(path) == 2001 - path[0]


def test_a_row_says_trend_rate_and_memory(tmp_path: Path) -> None:
    row = dict(zip(LIVE_HEADER, live_row(status_of(running(tmp_path)), BLOCKS), strict=True))
    assert row == {
        "RUN": "demo-1",
        "STATE": "running",
        "STEP": "4/10",
        "TREND": "▁▃▆█",
        "PSNR dB": "24.00",
        "LOSS": "-",
        "STEPS/S": "2",
        "ETA": "3.00 s",
        "MEMORY": "1000 B",
    }


def test_one_line_about_all(tmp_path: Path) -> None:
    written = status_of(running(tmp_path))
    assert written.setup_s is not None and written.setup_s < 60
    going = replace(written, setup_s=None)
    done = replace(going, state="completed", over=True, eta_s=None)
    failed = replace(done, state="failed: killed")
    queued = replace(going, state="queued", eta_s=None, step_time_s=None)
    assert summary([done]) == "1 run: 1 completed, 0 running, 0 failed, 0 queued"
    assert summary([going, done, failed]) == (
        "3 runs: 1 completed, 1 running, 1 failed, 0 queued; all done in about 3.00 s"
    )
    # Two more, one after the other as only one runs now, of ten steps of half a second each.
    assert summary([going, queued], not_started=1).endswith("2 queued; all done in about 13 s")
    assert time_left_s([going, going, queued, queued]) == 3.0 + 5.0
    slow = [replace(going, setup_s=seconds) for seconds in (7.0, 20.0, None)]
    assert time_left_s([*slow, replace(done, setup_s=9.0), queued], not_started=3) == 3.0 + 2 * (5.0 + 9.0)
    assert time_left_s([queued]) is None and time_left_s([replace(going, eta_s=None)]) is None


def test_what_moves_is_shown_first() -> None:
    base = RunStatus(
        **{**dict.fromkeys(RunStatus.__dataclass_fields__), "history": (), "warnings": (), "ranks": (), "path": ()}  # type: ignore[arg-type]
    )
    states = ["completed", "failed: killed", "running", "queued", "completed"]
    runs = [replace(base, run=str(i), state=state, over=True) for i, state in enumerate(states)]
    assert [s.run for s in rows_that_fit(runs, 9)] == ["0", "1", "2", "3", "4"]
    assert [s.run for s in rows_that_fit(runs, 4)] == ["1", "2", "3", "4"]
    assert [s.run for s in rows_that_fit(runs, 2)] == ["1", "2"] and rows_that_fit(runs, 0) == []


def test_looks_at_slurm_are_rare(tmp_path: Path) -> None:
    here = status_of(running(tmp_path))
    there = replace(here, launcher="slurm")
    assert interval_s([here], 2.0) == 2.0
    assert interval_s([here, there], 2.0) == SLURM_S >= 10
    assert interval_s([here, replace(there, state="completed", over=True)], 2.0) == 2.0
    assert interval_s([here], 10.0) == 10.0


def test_stopping_says_what_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    run = running(tmp_path)
    done = WrittenRun(tmp_path, "demo-2", world_size=1)
    done.finish()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    with pytest.raises(Interrupted) as caught:
        watch(lambda: Watched(runs=[run.paths, done.paths]), ranks=False)
    assert str(caught.value).splitlines()[1:] == ["  demo-1: running, step 4/10", "    to end: dptrain cancel demo-1"]
    assert "2 runs: 1 completed, 1 running" in capsys.readouterr().out


def test_what_still_starts_runs_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = WrittenRun(tmp_path, "demo-1", world_size=1)
    first.finish()
    second = WrittenRun(tmp_path, "demo-2", world_size=1)
    second.finish()
    looks = [
        Watched(runs=[first.paths], not_started=1, growing=True),
        Watched(runs=[first.paths, second.paths], growing=True),
        Watched(runs=[first.paths, second.paths]),
    ]
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert len(watch(lambda: looks.pop(0), ranks=False, quiet=True)) == 2 and looks == []


def test_a_sweep_is_watched_as_it_starts_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    members = tuple(SweepMember(name=f"sw-{mark}", fingerprint=mark) for mark in ("a", "b", "c"))
    write_sweep(tmp_path, SweepRecord(sweep="sw", members=members))
    first = WrittenRun(tmp_path, "sw-a-1", fingerprint="a").paths
    find = finder(["sw"])
    assert find() == Watched(runs=[first])
    with sweep_lock(tmp_path, "sw", lambda words: None):
        assert find() == Watched(runs=[first], not_started=2, growing=True)
        second = WrittenRun(tmp_path, "sw-b-1", fingerprint="b").paths
        assert find() == Watched(runs=[first, second], not_started=1, growing=True)
    other = finder([first.run_id])
    assert other() == Watched(runs=[first]) and list(finder(None)().runs) == [first, second]


def test_lines_come_only_with_news(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = status_of(running(tmp_path))
    other = replace(status, run="demo-2", state="queued", eta_s=None)
    lines = Lines(ranks=False)
    lines.update([status, other], 0)
    first = capsys.readouterr().out.splitlines()
    assert len(first) == 3 and first[0].startswith("demo-1:  running  step 4/10") and first[2].startswith("2 runs: ")
    lines.update([status, other], 0)
    assert capsys.readouterr().out == ""
    lines.update([replace(status, step=5), other], 0)
    assert capsys.readouterr().out.splitlines() == [
        "demo-1:  running  step 5/10  PSNR 24.00 dB  0.50 s/step  ETA 3.00 s"
    ]


def test_many_are_counted(tmp_path: Path) -> None:
    status = status_of(running(tmp_path))
    text = still_going([replace(status, run=f"r{i}") for i in range(9)])
    assert text.startswith("9 still going:") and "and 3 more" in text and "r6" not in text
