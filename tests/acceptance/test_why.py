"""What `status --why` says of real failures, and that the command it names works as it is typed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dptrain.records.index import find_runs
from tests.cli.cli import Cli
from tests.local_runs import TINY
from tests.local_runs import events as events_of
from tests.slurm_cluster import SmallSlurm

BATCHED = TINY.replace("patch: 16, halo: 4", "patch: 8, halo: 4, max_batch_size: 4, checkpoint: never")


def test_after_out_of_memory_the_named_command_goes_on(tmp_path: Path) -> None:
    struck = Cli(tmp_path, DPTRAIN_FAULT="out-of-memory@rank=1,step=3", DPTRAIN_FAULT_ALLOW="1")
    done = struck("train", struck.write("batched.yaml", BATCHED))
    assert done.code == 1 and "dptrain status --why" in done.err
    cli = Cli(tmp_path)
    told = cli("status", "--why", "last")
    print(told.out)
    assert told.code == 1 and "first: rank 1 on" in told.out and "iB less" in told.out
    (entry,) = json.loads(cli("status", "--why", "last", "--json").out)
    assert entry["why"]["kind"] == entry["state"] == "failed: out-of-memory (host)"
    commands = [advice["command"] for advice in entry["why"]["advice"] if advice["command"]]
    smaller = next(c for c in commands if "max_batch_size=1" in c)
    assert f"    {smaller}" in told.out.splitlines()
    resumed = cli(*smaller.split()[1:])
    print(f"$ {smaller}\n{resumed.out}")
    assert resumed.code == 0, resumed.err
    (paths,) = find_runs(tmp_path / "runs")
    assert [e["step"] for e in events_of(paths, 0, "step")] == [1, 2, 3, 4, 5, 6]
    after = cli("status", "--why", "last")
    assert after.code == 0 and "nothing to do" in after.out
    print(after.out)


def test_logs_begin_with_the_traceback_of_the_first(tmp_path: Path) -> None:
    cli = Cli(tmp_path, DPTRAIN_FAULT="raise@rank=1,step=3", DPTRAIN_FAULT_ALLOW="1")
    assert cli("train", cli.write("tiny.yaml", TINY)).code == 1
    lines = cli("logs", "last", "--failed").out.splitlines()
    print("\n".join(lines[:40]))
    assert re.fullmatch(r"==> failed first: rank 1 on \S+ at step 2: exception <==", lines[0])
    assert lines[1].startswith("Traceback (most recent call last)")
    ends = next(i for i, line in enumerate(lines) if line.startswith("dptrain.engine.faults.InjectedFault"))
    logs = [line for line in lines[ends:] if line.startswith("==> rank ") and ".log <==" in line]
    assert "failed first" in logs[0] and logs[0].startswith("==> rank 1")


def test_an_interface_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    cli = Cli(tmp_path, GLOO_SOCKET_IFNAME="nosuch0")
    assert cli("infer", cli.write("tiny.yaml", TINY)).code == 1
    told = cli("status", "--why", "last").out
    print(told)
    assert "failed: setup" in told and "has no network interface nosuch0 (GLOO_SOCKET_IFNAME)" in told
    assert "try: write: `interface` in the cluster profile" in told


def test_long_preparation_of_one_rank_is_no_stall(tmp_path: Path) -> None:
    """Set-up and steps have limits of their own, also inside collectives."""
    (tmp_path / "slow.py").write_text(
        "import time, torch, torch.distributed as dist\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x, sigma):\n"
        "        return x\n"
        "def build(**kwargs):\n"
        "    time.sleep(8 * (dist.get_rank() == 0))\n"
        "    return Net()\n"
    )
    cli = Cli(tmp_path)
    text = TINY.replace("{name: dncnn, weights: random, depth: 3, width: 4}", '{factory: "slow:build"}')
    done = cli("infer", cli.write("slow.yaml", text), "--set", "run.stall_timeout_s=3")
    assert done.code == 0, done.err


@pytest.mark.slurm
def test_an_exception_on_slurm(slurm: SmallSlurm, tmp_path: Path) -> None:
    """The scheduler, `--wait`, `status` and `--why` all call it failed."""
    keep = {"SLURM_CONF": os.environ["SLURM_CONF"], "DPTRAIN_CLUSTER": "small"}
    cli = Cli(tmp_path, DPTRAIN_FAULT="raise@rank=1,step=2", DPTRAIN_FAULT_ALLOW="1", **keep)
    assert cli("infer", cli.write("tiny.yaml", TINY), "--wait").code == 1
    told = Cli(tmp_path, **keep)("status", "--why", "last", "--json")
    print(told.out)
    (entry,) = json.loads(told.out)
    assert told.code == 1 and told.err == "", "no notice, though there is no accounting"
    assert slurm.wait_state(entry["job_id"], "FAILED") == "FAILED"
    assert entry["why"]["kind"] == "failed: exception" and entry["why"]["what"].startswith("rank 1 on n1")
    assert entry["why"]["lines"][-1].startswith("dptrain.engine.faults.InjectedFault")
