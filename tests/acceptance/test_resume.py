"""Stopped runs, whole commands: another number of ranks, the other layout, and one member of an array of four."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.query import query_jobs
from dptrain.status.state import run_status
from tests.cli.cli import Cli
from tests.local_runs import events, wait_for
from tests.slurm_cluster import SmallSlurm

pytestmark = pytest.mark.timeout(1800)

LEARN = """\
name: learn
problem: {image_size: [60, 52], channels: 1, physics: {name: multiframe_superres, frames: 6}, data: {source: synthetic}}
denoiser: {name: dncnn, weights: random, depth: 3, width: 4}
algorithm: {iterations: 2}
tiling: {patch: 16, halo: 4}
resources: {gpus: 4, layout: sharded, precision: float64}
train: {steps: 6, images: 5, held_out: 1, batch_size: 2, learning_rate: 1.0e-2}
"""


def log(paths: RunPaths) -> list[tuple[int, float, float]]:
    """(step, lr, loss) over all attempts."""
    return [(e["step"], e["lr"], e["loss"]) for e in events(paths, 0, "step")]


@pytest.fixture(scope="module")
def whole(tool: Cli) -> RunPaths:
    """Ten steps of four ranks without a stop."""
    return completed(tool("train", tool.write("learn.yaml", LEARN), "--set", "train.steps=10", "--json"))


@pytest.fixture(scope="module")
def begun(tool: Cli) -> RunPaths:
    """Six steps of four ranks."""
    return completed(tool("train", tool.write("learn.yaml", LEARN), "--json"))


def completed(done: Any) -> RunPaths:
    assert done.code == 0, done.err
    status = json.loads(done.out)
    assert status["state"] == "completed", status
    return RunPaths(Path(status["run_dir"]))


@pytest.mark.parametrize(
    ("ranks", "layout"), [(2, "sharded"), (1, "sharded"), (6, "sharded"), (2, "replicated"), (6, "replicated")]
)
def test_a_save_of_four_ranks_goes_on(
    tool: Cli, whole: RunPaths, begun: RunPaths, tmp_path: Path, ranks: int, layout: str
) -> None:
    copy = shutil.copytree(begun.dir, tmp_path / begun.run_id)
    change = ("--gpus", ranks, "--set", f"resources.layout={layout}", "--set", "train.steps=10")
    paths = completed(tool("resume", copy, *change, "--json", timeout_s=600))
    assert [(step, lr) for step, lr, _ in log(paths)] == [(step, lr) for step, lr, _ in log(whole)]
    apart = max(abs(a[2] - b[2]) / b[2] for a, b in zip(log(paths), log(whole), strict=True))
    print(f"4 ranks sharded -> {ranks} {layout}: losses at most {apart:.1e} apart")
    assert apart <= 1e-6


@pytest.mark.slurm
def test_a_warning_to_one_member_of_four_restarts_that_one_alone(slurm: SmallSlurm, tmp_path: Path) -> None:
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="small")
    text = LEARN.replace("gpus: 4, layout: sharded", "gpus: 1").replace("steps: 6", "steps: 200")
    spec = cli.write("four.yaml", text.replace("name: learn", "name: four") + "sweep: {run.seed: [0, 1, 2, 3]}\n")
    assert cli("sweep", spec).code == 0
    runs = find_runs(tmp_path / "runs")
    ids = [str(read_intent(paths).job_id) for paths in runs]
    assert len({job_id.split("_")[0] for job_id in ids}) == 1
    wait_for(lambda: all(events(paths, 0, "step") for paths in runs), "a step of every member", 300)
    slurm.command("scancel", "--signal=USR2", ids[1])
    slurm.command("scancel", ids[3])
    for job_id in ids[:3]:
        slurm.wait_state(job_id, "COMPLETED", timeout_s=600)
    jobs = query_jobs(ids)
    restarts = [jobs[job_id].restarts for job_id in ids]
    print(f"restarts of the members after a warning to the second: {restarts}")
    assert restarts == [0, 1, 0, 0]
    (asked,) = events(runs[1], 0, "requeue")
    assert 0 < asked["step"] < 200
    # The member that was cancelled goes on in a job of its own.
    resumed = cli("resume", runs[3].dir, "--wait", timeout_s=600)
    assert resumed.code == 0, resumed.err
    (status,) = run_status([runs[3]])
    assert (status.state, status.attempt, len(status.history)) == ("completed", 2, 1)
    assert status.job_id not in ids
    again = cli("sweep", spec)
    assert again.code == 0 and "4 completed, 0 under way, 0 to run" in again.err, again.err
    whole = completed(
        cli("train", cli.write("one.yaml", text), "--set", "run.seed=1", "--wait", "--json", timeout_s=600)
    )
    assert log(runs[1]) == log(whole)
    assert (runs[1].save(200) / "model.safetensors").read_bytes() == (
        whole.save(200) / "model.safetensors"
    ).read_bytes()
