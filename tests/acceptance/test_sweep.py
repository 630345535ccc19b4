"""Two sizes on three numbers of ranks: six results in one file, and nothing the second time."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from tests.cli.cli import TINY, Cli
from tests.slurm_cluster import SmallSlurm

SWEEP = TINY + "sweep: {problem.image_size: [[32, 32], [48, 48]], resources.gpus: [1, 2, 4]}\n"


def twice(cli: Cli) -> None:
    spec = cli.write("six.yaml", SWEEP)
    first = cli("sweep", spec, "--wait", timeout_s=500)
    assert first.code == 0, first.err
    runs = find_runs(cli.folder / "runs")
    assert len(runs) == 6
    (file,) = (cli.folder / "runs").glob("sweep-*.csv")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    print(
        f"{len(rows)} rows, states {sorted(row['state'] for row in rows)}, ranks {sorted(row['world_size'] for row in rows)}"
    )
    assert [row["state"] for row in rows] == ["completed"] * 6
    assert sorted(row["world_size"] for row in rows) == ["1", "1", "2", "2", "4", "4"]
    second = cli("sweep", spec, "--wait", timeout_s=100)
    print(second.out + second.err)
    assert second.code == 0 and find_runs(cli.folder / "runs") == runs


def test_on_local_ranks(tmp_path: Path) -> None:
    twice(Cli(tmp_path))


@pytest.mark.slurm
def test_on_the_small_slurm(slurm: SmallSlurm, tmp_path: Path) -> None:
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="small")
    twice(cli)
    jobs = {str(read_intent(paths).job_id).split("_")[0] for paths in find_runs(tmp_path / "runs")}
    print(f"arrays: {sorted(jobs)}")
    assert len(jobs) == 3, "one array per number of ranks"
