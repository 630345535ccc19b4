"""A node that is lost under a running job: named, the job back in the queue, and completed once the node has returned."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dptrain.records.paths import RunPaths
from tests.cli.cli import Cli
from tests.cli.test_slurm_runs import profile, until
from tests.fault_runs import struck_run
from tests.local_runs import events, wait_for
from tests.slurm_cluster import SmallSlurm
from tests.slurm_fixtures import point_to

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
STEPS = 120
"""Of a second each in the first attempt: the controller takes about half a minute to miss a node."""
CHANGE = (f"train.steps={STEPS}", "train.save_every_steps=5", "resources.time_min=10", "resources.layout=sharded")
BEFORE = 12


def log(paths: RunPaths) -> dict[int, tuple[float, float]]:
    """Step -> (learning rate, loss); of a step made twice the later."""
    return {e["step"]: (e["lr"], e["loss"]) for e in events(paths, 0, "step")}


def test_a_lost_node_is_named_and_the_run_completes(
    slurm_cluster: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SmallSlurm() as slurm:  # its own: it loses a node
        point_to(slurm, tmp_path, monkeypatch)
        cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="two")
        # Two nodes with a rank each, and no other: the job has to wait for the lost one.
        profile(cli, "two", "partition: short", "gpus_per_node: 1")
        with struck_run("train", None, *CHANGE, profile="two") as whole:
            until(cli, lambda s: s["over"], 120)
        with struck_run("train", "slow@rank=0,step=1,seconds=1", *CHANGE, profile="two") as paths:
            wait_for(lambda: len(events(paths, 1, "step")) > BEFORE, "steps on both nodes", 120)
            slurm.kill_slurmd("n2")
            lost = until(cli, lambda s: s["state"] == "requeued" or s["over"], 180)
            shown = cli("status", "last")
            print(shown.out)
            assert lost["state"] == "requeued", lost
            assert any("node-failure" in line for line in lost["history"]), lost["history"]
            assert "node-failure" in shown.out
            slurm.start_node("n2")
            done = until(cli, lambda s: s["over"], 240)
        print(json.dumps({key: done[key] for key in ("state", "attempt", "history", "source")}))
        assert (done["state"], done["attempt"], done["step"]) == ("completed", 2, STEPS)
        assert "node-failure" in done["history"][0]
        assert log(paths) == log(whole)
        weights = [(p.save(STEPS) / "model.safetensors").read_bytes() for p in (paths, whole)]
        assert weights[0] == weights[1]
