"""Many submissions at once on the real small SLURM."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dptrain.records.index import find_runs
from dptrain.status.state import run_status
from tests.cli.cli import TINY, Cli
from tests.slurm_cluster import SmallSlurm

pytestmark = pytest.mark.slurm


def test_eight_submissions_at_once_all_finish(slurm: SmallSlurm, tmp_path: Path) -> None:
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="small")
    spec = cli.write("tiny.yaml", TINY)
    started = [cli.start("infer", spec, "--wait", "--json") for _ in range(8)]
    outputs = [process.communicate(timeout=500) for process in started]
    assert [process.returncode for process in started] == [0] * 8, outputs
    for out, _ in outputs:
        value = json.loads(out)
        assert (value[0] if isinstance(value, list) else value)["state"] == "completed"
    states = [status.state for status in run_status(find_runs(tmp_path / "runs"))]
    print(f"eight two-rank submissions: {states}")
    assert states == ["completed"] * 8
