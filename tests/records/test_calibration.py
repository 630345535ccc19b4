"""What runs have needed, written by one command and read by another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dptrain.records.calibration import Measured, read_measured, store_measured
from dptrain.records.events import append_event
from dptrain.records.paths import calibration_file

ONE = Measured(
    run="a-1", cluster="site", card="V100", task="train", forecast_bytes=100, measured_bytes=110, step_key="k", step_time_s=0.5
)  # fmt: skip


def test_a_run_is_stored_once_and_its_newest_line_counts(tmp_path: Path) -> None:
    other = replace(ONE, run="b-1", forecast_bytes=None, measured_bytes=None, step_key=None, step_time_s=None)
    assert read_measured(tmp_path) == []
    assert store_measured(tmp_path, [ONE, other]) == 2
    assert store_measured(tmp_path, [ONE, other]) == 0 and read_measured(tmp_path) == [ONE, other]
    longer = replace(ONE, step_time_s=0.75)
    assert store_measured(tmp_path, [longer]) == 1
    assert read_measured(tmp_path) == [other, longer]


def test_damaged_lines_and_values_are_skipped(tmp_path: Path) -> None:
    store_measured(tmp_path, [ONE])
    file = calibration_file(tmp_path)
    append_event(file, "measured", run="c-1", cluster="site", card=7, task="train")
    append_event(
        file, "measured", run="d-1", cluster="site", card="x", task="infer", forecast_bytes=-1, step_time_s=0.0
    )
    with file.open("a") as stream:
        stream.write('{"kind": "measured", "run": "e')
    known, doubtful = read_measured(tmp_path)
    assert known == ONE and (doubtful.run, doubtful.forecast_bytes, doubtful.step_time_s) == ("d-1", None, None)


def test_something_else_in_its_place_says_nothing(tmp_path: Path) -> None:
    calibration_file(tmp_path).mkdir()
    assert read_measured(tmp_path) == []
