"""`dptrain report` as a user types it, on runs that the record writers have left."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrain.records.sweeps import SweepMember, SweepRecord, write_sweep
from tests.cli.cli import Cli
from tests.report.records import ReportedRun


@pytest.fixture
def runs(tmp_path: Path) -> list[ReportedRun]:
    """A tiled run on one rank and one on two, of one sweep."""
    (tmp_path / "runs").mkdir()
    made = []
    for ranks in (1, 2):
        keys = (f"resources.gpus={ranks}",)
        how: dict[str, Any] = {"created_s": 1000.0 + ranks, "cluster": "local", "fingerprint": f"f{ranks}"}
        run = ReportedRun(tmp_path / "runs", f"demo-{ranks}", *keys, **how)
        run.result(psnr_db=[20.0, 21.0])
        noise = np.random.default_rng(0).normal(size=(1, 64, 64)).astype(np.float32)
        np.save(run.paths.output / "reconstruction.npy", noise)
        made.append(run)
    members = tuple(SweepMember(name=run.paths.run_id, fingerprint=str(run.intent.fingerprint)) for run in made)
    write_sweep(tmp_path / "runs", SweepRecord(sweep="study", members=members))
    return made


def test_files_of_a_folder_and_of_a_sweep(cli: Cli, runs: list[ReportedRun]) -> None:
    done = cli("report", "runs", "demo-1", "--csv", "r.csv", "--html", "r.html")
    assert done.code == 0 and done.out.splitlines()[0] == "2 rows: r.csv", done.err
    assert [row["run"] for row in csv.DictReader((cli.folder / "r.csv").read_text().splitlines())] == [
        "demo-1",
        "demo-2",
    ]
    assert "Strong scaling</h2>" in (cli.folder / "r.html").read_text()
    rows = json.loads(cli("report", "study", "--json").out)
    assert [row["run"] for row in rows] == ["demo-1", "demo-2"]
    assert not list(cli.folder.glob(".*"))


def test_comparing(cli: Cli, runs: list[ReportedRun]) -> None:
    done = cli("report", "--compare", "demo-1", "demo-2")
    assert done.code == 0 and "result: identical" in done.out and "resources.gpus" in done.out, done.err
    assert json.loads(cli("report", "--compare", "demo-1", "demo-2", "--json").out)["result"] == "identical"


def test_seams_with_the_command_for_the_untiled_run(cli: Cli, runs: list[ReportedRun]) -> None:
    found = json.loads(cli("report", "--seams", "demo-2", "--json").out)
    assert [axis["axis"] for axis in found["images"][0]["axes"]] == [0, 1] and found["tiles"]["counts"] == [4, 4]
    assert "--name demo-untiled --set tiling.patch=none" in found["advice"]


def test_a_run_that_a_sweep_did_not_start_is_said(cli: Cli, runs: list[ReportedRun]) -> None:
    runs[0].change(sweep="study")
    done = cli("report", "study", "--csv", "r.csv", "--html", "r.html")
    assert "1 of its 2 runs was started by another command" in done.out and done.out.endswith(": demo-2\n"), done.err
    assert "1 of its 2 runs was started by another command" in (cli.folder / "r.html").read_text()
    seen = cli("status", "study", "--json")
    assert [run["run"] for run in json.loads(seen.out)] == ["demo-1", "demo-2"]
    assert "demo-2" in seen.err and "sweep study: 2 runs" in seen.err
    runs[1].change(sweep="study")
    assert "another command" not in cli("report", "study").out


def test_watching_a_sweep_ends_with_the_members_that_were_never_started(cli: Cli, runs: list[ReportedRun]) -> None:
    started = tuple(SweepMember(name=run.paths.run_id, fingerprint=str(run.intent.fingerprint)) for run in runs)
    record = SweepRecord(sweep="study", members=(*started, SweepMember(name="study-gpus3", fingerprint="f3")))
    write_sweep(cli.folder / "runs", record)
    for words in ((), ("--json",)):
        done = cli("status", "study", "--watch", *words)
        said = done.err if words else done.out
        assert "sweep study: 3 runs: 2 completed" in said and "not started: study-gpus3;" in said, done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["demo-1", "--compare"], "--compare takes two runs, not 1"),
        (["demo-1", "--untiled", "demo-2"], "--untiled goes with --seams"),
        (["demo-1", "--seams", "--html", "x.html"], "--seams writes no file"),
    ],
)
def test_options_that_do_not_go_together(cli: Cli, runs: list[ReportedRun], words: list[str], says: str) -> None:
    done = cli("report", *words)
    assert done.code == 2 and says in done.err


@pytest.mark.parametrize("option", ["--html", "--parquet"])
def test_only_csv_is_printed(cli: Cli, runs: list[ReportedRun], option: str) -> None:
    done = cli("report", "study", option, "-")
    assert done.code == 2 and "only --csv is printed" in done.err and not (cli.folder / "-").exists()
