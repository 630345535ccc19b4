"""Rows of results and their CSV."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest

from dptrain.errors import UsageError
from dptrain.records.intent import write_json
from dptrain.report.rows import TABLE_HEADER, result_rows, row_of, table_row
from dptrain.report.runs import flatten
from dptrain.report.tables import to_csv, write_csv, write_parquet
from dptrain.status.state import run_status
from tests.report.records import ReportedRun, reported
from tests.status.helpers import WrittenRun


def test_one_row_per_run_with_the_columns_of_all(tmp_path: Path) -> None:
    good, bad = WrittenRun(tmp_path, "good-1"), WrittenRun(tmp_path, "bad-1")
    good.finish()
    result = {
        "psnr_db": [20.0, 25.0],
        "ssim": [0.5, 0.75],
        "loss": None,
        "sections": {"denoise": 0.5},
        "peak_memory_bytes": [5000, 7000],
        "bytes_sent": [1, 2],
    }
    write_json(good.paths.result, result)
    good.paths.spec.write_text("name: good\nproblem: {image_size: [32, 32]}\ntrain: null\n")
    bad.start(0)
    bad.fail(0, message='ValueError: "a", b\nmore')
    runs = [good.paths, bad.paths]
    rows = list(csv.DictReader(io.StringIO(to_csv(result_rows(runs, run_status(runs))))))
    assert [row["run"] for row in rows] == ["good-1", "bad-1"]
    assert (rows[0]["psnr_db_first"], rows[0]["psnr_db_last"], rows[0]["peak_memory_bytes_max"]) == (
        "20.0",
        "25.0",
        "7000",
    )
    assert (rows[0]["spec.problem.image_size"], rows[0]["section_denoise_s"]) == ("[32, 32]", "0.5")
    assert (rows[0]["ssim_first"], rows[0]["ssim_last"], rows[1]["ssim_last"]) == ("0.5", "0.75", "")
    assert rows[1]["failure"] == 'ValueError: "a", b' and rows[1]["section_denoise_s"] == ""


def test_the_short_table_fits_its_header(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, "good-1")
    run.finish()
    write_json(run.paths.result, {"psnr_db": [20.0, 25.0], "ssim": None, "loss": None, "peak_memory_bytes": [4096]})
    run.paths.spec.write_text("name: good\nresources: {layout: sharded}\n")
    (row,) = result_rows([run.paths], run_status([run.paths]))
    cells = dict(zip(TABLE_HEADER, table_row(row), strict=True))
    assert (cells["RUN"], cells["LAYOUT"], cells["STEPS"]) == ("good-1", "sharded", "3/3")
    assert (cells["PSNR dB"], cells["SSIM"], cells["PEAK"]) == ("20.00 -> 25.00", "-", "4.0 KiB")


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": 1, "a.c": [1, 2], "d": None}


def test_written_whole_and_without_rests(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    write_csv(path, [{"a": 1}, {"b": True}])
    assert path.read_text() == "a,b\n1,\n,true\n"
    assert list(tmp_path.iterdir()) == [path]


def test_plan_and_environment_are_columns(tmp_path: Path) -> None:
    run = ReportedRun(tmp_path, "r", steps_s=(9.0, 1.0, 3.0))
    run.plan(tiles=16, memory={"peak_gib": 1.5, "terms": {"images": 0.5}}, sbatch="#!/bin/sh", fits=True)
    write_json(run.paths.environment, {"host": "n1", "git": {"sha": "abc", "dirty": False}, "versions": {"torch": "2"}})
    (row,) = [row_of(one) for one in reported(run)]
    assert (row["plan.tiles"], row["plan.memory.peak_gib"], row["plan.memory.terms.images"]) == (16, 1.5, 0.5)
    assert (row["environment.git.sha"], row["environment.versions.torch"]) == ("abc", "2") and "plan.sbatch" not in row
    assert (row["step_time_s"], row["step_time_min_s"], row["step_time_max_s"]) == (2.0, 1.0, 3.0)


def test_parquet_keeps_numbers(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `parquet` is not installed")
    path = tmp_path / "rows.parquet"
    rows = [
        {"a": 1, "b": [1, 2], "c": "x", "d": None, "e": True, "f": 1},
        {"a": 2.5, "b": "none", "e": False, "f": "fit"},
    ]
    write_parquet(path, rows)
    assert parquet.read_table(path).to_pylist() == [
        {"a": 1.0, "b": "[1, 2]", "c": "x", "d": None, "e": True, "f": "1"},
        {"a": 2.5, "b": "none", "c": None, "d": None, "e": False, "f": "fit"},
    ]


def test_parquet_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'dptrain\[parquet\]'"):
        write_parquet(tmp_path / "rows.parquet", [{"a": 1}])
