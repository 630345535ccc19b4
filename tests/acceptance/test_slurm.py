"""On the real small SLURM: many submissions at once, and layout sharded over two nodes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dptrain.records.index import find_runs
from dptrain.status.state import run_status
from tests.acceptance.runs import run_spec
from tests.cli.cli import TINY, Cli
from tests.slurm_cluster import SmallSlurm

pytestmark = pytest.mark.slurm

BOXES = """\
name: boxes
problem: {image_size: [60, 52], channels: 3, physics: {name: multiframe_superres, frames: 3}, data: {source: synthetic}}
denoiser: {name: dncnn, weights: random, depth: 3, width: 4}
algorithm: {iterations: 6}
tiling: {patch: 16, halo: 4}
resources: {gpus: 4, layout: sharded}
train: {steps: 8, images: 3, held_out: 1, batch_size: 2, learning_rate: 1.0e-3}
"""


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


@pytest.mark.parametrize("task", ["infer", "train"])
def test_layout_sharded_on_two_nodes_has_the_numbers_of_a_local_run(
    slurm: SmallSlurm, tmp_path: Path, task: str
) -> None:
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="small")
    spec = cli.write("boxes.yaml", BOXES)
    nodes = run_spec(cli, task, spec)
    local = run_spec(cli, task, spec, "resources.gpus=2", cluster="local")
    hosts = [nodes.event(rank, "start")["host"] for rank in range(4)]
    assert hosts == ["n1", "n1", "n2", "n2"] and local.result["world_size"] == 2
    assert all(nodes.final(rank)["bytes_sent"] > 0 for rank in range(4))
    far = max(abs(a - b) for a, b in zip(nodes.psnr_db, local.psnr_db, strict=True))
    print(f"{task}: hosts {hosts}, PSNR at most {far:.1e} dB from that of two local ranks")
    assert far <= 1e-4
    if task == "train":
        assert nodes.result["loss"] == pytest.approx(local.result["loss"], rel=1e-5)
