"""Rows of results and their CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from dptrain.records.intent import write_json
from dptrain.report.results import TABLE_HEADER, flatten, result_rows, table_row, to_csv, write_csv
from dptrain.status.state import run_status
from tests.status.helpers import WrittenRun


def test_one_row_per_run_with_the_columns_of_all(tmp_path: Path) -> None:
    good, bad = WrittenRun(tmp_path, "good-1"), WrittenRun(tmp_path, "bad-1")
    good.finish()
    result = {
        "psnr_db": [20.0, 25.0],
        "ssim": [0.5, 0.75],
        "loss": None,
        "sections": {"denoise": 0.5},
        "peak_memory_bytes": [5, 7],
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
        "7",
    )
    assert (rows[0]["spec.problem.image_size"], rows[0]["section_denoise_s"]) == ("[32, 32]", "0.5")
    assert (rows[0]["ssim_first"], rows[0]["ssim_last"], rows[1]["ssim_last"]) == ("0.5", "0.75", "")
    assert rows[1]["failure"] == 'ValueError: "a", b' and rows[1]["section_denoise_s"] == ""


def test_the_short_table_fits_its_header(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, "good-1")
    run.finish()
    write_json(run.paths.result, {"psnr_db": [20.0, 25.0], "ssim": None, "loss": None, "peak_memory_bytes": [1024]})
    run.paths.spec.write_text("name: good\nresources: {layout: sharded}\n")
    (row,) = result_rows([run.paths], run_status([run.paths]))
    cells = dict(zip(TABLE_HEADER, table_row(row), strict=True))
    assert (cells["RUN"], cells["LAYOUT"], cells["STEPS"]) == ("good-1", "sharded", "3/3")
    assert (cells["PSNR dB"], cells["SSIM"], cells["PEAK"]) == ("20.00 -> 25.00", "-", "1.0 KiB")


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": 1, "a.c": [1, 2], "d": None}


def test_written_whole_and_without_rests(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    write_csv(path, [{"a": 1}, {"b": True}])
    assert path.read_text() == "a,b\n1,\n,true\n"
    assert list(tmp_path.iterdir()) == [path]
