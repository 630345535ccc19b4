"""`dptrain rehearse` on the real small SLURM: two nodes, requeued or followed by another job, equal to the bit; and given up."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.query import query_jobs
from tests.cli.cli import Cli
from tests.cli.test_slurm_runs import profile
from tests.local_runs import events, wait_for
from tests.slurm_cluster import SmallSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
SPEC = """\
name: big
problem: {image_size: [96, 120], channels: 1, physics: {name: multiframe_superres, frames: 3}, data: {source: synthetic}}
denoiser: {name: dncnn, weights: random, depth: 3, width: 4}
algorithm: {iterations: 5}
tiling: {patch: 16, halo: 4}
resources: {gpus: 2, time_min: 600}
train: {steps: 500, images: 20, held_out: 2, schedule: cosine}
"""


def site(tmp_path: Path, *lines: str) -> Cli:
    """The tool on two nodes with a rank each."""
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="two")
    profile(cli, "two", "gpus_per_node: 1", *lines)
    cli.write("big.yaml", SPEC)
    return cli


@pytest.mark.parametrize(("task", "restart"), [("train", "requeue"), ("infer", "resubmit")])
def test_a_rehearsal_on_two_nodes_is_equal_to_the_bit(
    slurm: SmallSlurm, tmp_path: Path, task: str, restart: str
) -> None:
    cli = site(tmp_path, f"restart: {restart}")
    done = cli("rehearse", "big.yaml", "--task", task, "--json", timeout_s=800)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["equal"] and found["to_the_bit"] and found["cluster"] == "two" and found["world_size"] == 2
    whole, stopped = (RunPaths(Path(found["runs"][kind])) for kind in ("uninterrupted", "preempted"))
    assert (whole.attempts(), stopped.attempts()) == ([1], [1, 2])
    assert sorted({e["host"] for rank in (0, 1) for e in events(stopped, rank, "start")}) == ["n1", "n2"]
    jobs = [e["job_id"] for e in events(stopped, 0, "start")]
    assert (jobs[0] == jobs[1]) is (restart == "requeue")
    if restart == "requeue":
        assert query_jobs(jobs)[jobs[0]].restarts == 1
    changed = {change["key"]: change["value"] for change in found["changes"]}
    assert changed["problem.image_size"] == "[32, 32]" and changed["resources.time_min"] == "15"
    print(json.dumps(found["phases"], indent=None))
    print(json.dumps(found["save"]), [item["what"] for item in found["compared"]])


def test_given_up_it_leaves_no_job(slurm: SmallSlurm, tmp_path: Path) -> None:
    cli = site(tmp_path)
    with cli.start("rehearse", "big.yaml", "--set", "train.steps=100000") as process:
        wait_for(
            lambda: [p for p in find_runs(tmp_path / "runs") if read_intent(p).job_id and events(p, 0, "step")],
            "a step",
            200,
        )
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.count("asked SLURM to cancel job") == 2, err
    for paths in find_runs(tmp_path / "runs"):
        slurm.wait_state(str(read_intent(paths).job_id), "CANCELLED")
    late = cli("rehearse", "big.yaml", "--timeout", "1")
    assert late.code == 124 and "was not over after 1 s" in late.err and "asked SLURM to cancel job" in late.err
