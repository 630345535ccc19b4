"""Experiment files, shrunken: mapped, planned, run on local ranks and on a small SLURM, and nothing the second time."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from tests.cli.cli import Cli
from tests.slurm_cluster import SmallSlurm
from tests.spec.benchopt.files import SCALING

GRID = SCALING.replace("        [48, 4, 0],\n", "").replace("dncnn", "drunet")
SMALL = ("--set", "denoiser.weights=builtin")
PAIR = (
    GRID.replace("[64, 96]", "64")
    .replace('        ["gpu:2", 2, 2, true, true],\n', "")
    .replace("custom, 0", "torch, 1")
)
PARALLEL = f"""\
backend: submitit
slurm_time: 600
slurm_stderr_to_stdout: True
slurm_python: {sys.executable}
slurm_additional_parameters:
  partition: main
  cpus-per-task: 1
  hint: nomultithread
  account: # none here
slurm_setup:
  - export OMP_NUM_THREADS=1
"""


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


@pytest.mark.slurm
def test_a_pair_of_runs_goes_to_slurm_as_its_parallel_config_says(slurm: SmallSlurm, tmp_path: Path) -> None:
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="")
    files = (cli.write("exp.yml", PAIR), "--parallel-config", cli.write("par.yml", PARALLEL))
    words = ("sweep", "--from-benchopt", *files, *SMALL, "--json")
    done = cli(*words, "--wait", timeout_s=400)
    print(done.err)
    assert done.code == 0, done.err
    profile = tmp_path / "config" / "dptrain" / "clusters" / "par.yaml"
    assert "partition: main" in profile.read_text()
    answer = json.loads(done.out)
    for run in answer["runs"]:
        print(
            f"{run['run']}: job {run['job_id']}, {run['state']}, {run['world_size']} ranks, PSNR {run['psnr_db']:.4f} dB"
        )
    assert [(run["state"], run["world_size"]) for run in answer["runs"]] == [("completed", 1), ("completed", 2)]
    runs = find_runs(tmp_path / "runs")
    assert len({read_intent(paths).job_id for paths in runs}) == 2
    for paths, ranks in zip(runs, (1, 2), strict=True):
        script = paths.submission.read_text()
        for line in ("--partition=main", "--hint=nomultithread", f"--gres=gpu:{ranks}", "--time=10"):
            assert f"#SBATCH {line}\n" in script, script
        assert "export OMP_NUM_THREADS=1\n" in script
        # profiler_mode: torch, profiler_active: 1
        result = json.loads(paths.result.read_text())
        assert result["measure"]["mode"] == "torch" and result["measure"]["active_steps"] == [3, 3]
        assert all(paths.attempt(1).rank_trace(rank).is_file() for rank in range(ranks))
    again = cli(*words, timeout_s=100)
    assert again.code == 0 and find_runs(tmp_path / "runs") == runs
