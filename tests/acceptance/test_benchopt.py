"""A strong-scaling grid of an experiment file, shrunken: mapped, planned, run on local ranks, and nothing the second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from tests.cli.cli import Cli
from tests.spec.benchopt.files import SCALING

GRID = SCALING.replace("        [48, 4, 0],\n", "").replace("dncnn", "drunet")
SMALL = ("--set", "denoiser.weights=builtin")


@pytest.mark.timeout(1500)
def test_a_scaling_grid_runs(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    words = ("sweep", "--from-benchopt", cli.write("exp.yml", GRID), *SMALL)
    done = cli(*words, "--json", timeout_s=900)
    print(done.err)
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    for run in answer["runs"]:
        print(f"{run['run']}: {run['state']}, {run['world_size']} ranks, PSNR {run['psnr_db']:.4f} dB")
    assert [(run["state"], run["world_size"]) for run in answer["runs"]] == [("completed", n) for n in (1, 2, 4)] * 2
    # Two and four ranks have the same tiles, and so the same answer; the single rank has none.
    for _, two, four in (answer["runs"][:3], answer["runs"][3:]):
        assert abs(two["psnr_db"] - four["psnr_db"]) < 1e-3
    assert [u["key"] for u in answer["unmapped"]] == ["objective.save_output_figures", "plot", "solver.profiler_active"]
    runs = find_runs(tmp_path / "runs")
    assert {read_intent(paths).sweep for paths in runs} == {"exp"} and len(runs) == 6
    again = cli(*words, timeout_s=300)
    assert again.code == 0 and find_runs(tmp_path / "runs") == runs
