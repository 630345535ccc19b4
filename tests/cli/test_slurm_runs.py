"""The command line against a real small SLURM: states as they come, failures named, sweeps as arrays."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from tests.cli.cli import LONG, TINY, Cli
from tests.slurm_cluster import SmallSlurm

pytestmark = pytest.mark.slurm

FOUR = ("--set", "resources.gpus=4")
PROFILES = Path("config/dptrain/clusters")


@pytest.fixture
def site(slurm: SmallSlurm, tmp_path: Path) -> Iterator[Cli]:
    """The tool, with the small SLURM as its cluster; jobs left behind are cancelled."""
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="small")
    yield cli
    for paths in find_runs(tmp_path / "runs"):
        if (job_id := read_intent(paths).job_id) is not None:
            slurm.command("scancel", "--quiet", job_id)


def status(cli: Cli, *words: str) -> dict[str, Any]:
    (entry,) = json.loads(cli("status", "last", "--json", *words).out)
    assert isinstance(entry, dict)
    return entry


def until(cli: Cli, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 120) -> dict[str, Any]:
    """The first status that meets the condition."""
    deadline = time.monotonic() + timeout_s
    entry: object = "no run"
    while time.monotonic() < deadline:
        if not find_runs(cli.folder / "runs"):
            time.sleep(0.2)
            continue
        entry = status(cli, "--ranks")
        if condition(entry):
            return entry
        time.sleep(0.5)
    raise AssertionError(f"still {entry}")


def profile(cli: Cli, name: str, *lines: str) -> None:
    """A profile like `small` with other lines."""
    text = (cli.folder / PROFILES / "small.yaml").read_text()
    keys = [line.split(":")[0] for line in lines]
    kept = [line for line in text.splitlines() if line.split(":")[0] not in keys]
    (cli.folder / PROFILES / f"{name}.yaml").write_text("\n".join([*kept, *lines]) + "\n")


def test_two_nodes_from_queued_to_completed(site: Cli, slurm: SmallSlurm) -> None:
    spec = site.write("tiny.yaml", TINY)
    slurm.command("scontrol", "update", "partitionname=main", "state=down")
    try:
        done = site("infer", spec, *FOUR)
        assert done.code == 0 and "job " in done.err, done.err
        queued = until(site, lambda s: s["state"] == "queued" and s["reason"] is not None)
        assert "PartitionDown" in queued["reason"] and queued["source"] == "scheduler"
    finally:
        slurm.command("scontrol", "update", "partitionname=main", "state=up")
    seen = {until(site, lambda s: s["state"] != "queued")["state"]}
    end = until(site, lambda s: s["state"] in ("completed", "failed", "incomplete"))
    assert end["state"] == "completed", (seen, end)
    assert sorted({rank["host"] for rank in end["ranks"]}) == ["n1", "n2"] and len(end["ranks"]) == 4
    logs = site("logs", "last").out
    for rank in range(4):
        assert f"# job {end['job_id']} attempt 1 host n{1 + rank // 2} rank {rank}/4" in logs
    assert "slurm" in json.loads(site("status", "last", "--json").out)[0]["launcher"]


def test_wait_follows_a_job(site: Cli) -> None:
    done = site("infer", site.write("tiny.yaml", TINY), "--wait", "--timeout", "150")
    assert done.code == 0, done.err
    assert "completed" in done.out and "PSNR" in done.out


def test_misspelt_partition_is_rejected_with_slurms_words(site: Cli) -> None:
    profile(site, "wrong", "partition: mian")
    done = site("infer", site.write("tiny.yaml", TINY), "--cluster", "wrong")
    assert done.code == 4 and "invalid partition" in done.err and "Traceback" not in done.err
    entry = status(site)
    assert entry["state"] == "never-submitted" and "invalid partition" in entry["reason"]
    doctor = site("doctor", "--cluster", "wrong")
    assert doctor.code == 1 and "mian" in doctor.out and "main" in doctor.out
    assert site("doctor").code == 0


def test_plan_and_dry_runs_ask_slurm(site: Cli) -> None:
    spec = site.write("tiny.yaml", TINY)
    profile(site, "wrong", "partition: mian")
    accepted = site("plan", spec, "--no-probe")
    assert accepted.code == 0 and "SLURM: Job " in accepted.out and "to start at" in accepted.out, accepted
    for words in (("plan", spec, "--no-probe", "--json"), ("infer", spec, "--dry-run")):
        refused = site(*words, "--cluster", "wrong")
        assert refused.code == 3 and "SLURM: " in refused.err and "invalid partition" in refused.err
        if words[0] == "plan":
            value = json.loads(refused.out)
            assert value["fits"] is False and value["scheduler"]["accepted"] is False
    assert find_runs(site.folder / "runs") == [], "a refusal leaves nothing behind"


def test_doctor_tries_a_full_node(site: Cli) -> None:
    profile(site, "five", "gpus_per_node: 5")  # a node has four
    done = site("doctor", "--cluster", "five")
    assert done.code == 1 and "fail  sbatch --test-only" in done.out


def test_killed_rank_on_another_node_is_named(site: Cli) -> None:
    with site.start("infer", site.write("long.yaml", LONG), *FOUR, "--wait") as process:
        entry = until(site, lambda s: s["state"] == "running" and s["step"] > 0)
        victim = entry["ranks"][3]
        os.kill(victim["pid"], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 3" in err and victim["host"] in err and "SIGKILL" in err
    after = status(site)
    assert after["state"] == "failed: killed"
    assert (after["failure"]["rank"], after["failure"]["host"]) == (3, victim["host"])


@pytest.mark.parametrize(
    ("line", "state", "says"),
    [
        ('setup: ["echo before", "false # the module is gone"]', "failed: setup", "the module is gone"),
        ("python: /nowhere/python", "failed: never-started", "/nowhere/python"),
    ],
)
def test_death_before_the_ranks_leaves_a_trace(site: Cli, line: str, state: str, says: str) -> None:
    profile(site, "broken", line)
    done = site("infer", site.write("tiny.yaml", TINY), "--cluster", "broken", "--wait")
    assert done.code == 1
    entry = status(site)
    assert entry["state"] == state and says in entry["failure"]["message"]
    assert says in done.err and says in site("logs", "last").out
    told = site("status", "--why", "last").out
    assert says in told and "dptrain resume" in told and "| " in told


@pytest.mark.acceptance
def test_interrupted_waiting_leaves_the_job_and_cancel_ends_it(site: Cli, slurm: SmallSlurm) -> None:
    with site.start("infer", site.write("long.yaml", LONG), "--wait") as process:
        entry = until(site, lambda s: s["state"] == "running" and s["step"] > 0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and f"job {entry['job_id']} goes on" in err
    assert status(site)["state"] == "running"
    assert site("cancel", "last").code == 0
    after = until(site, lambda s: s["over"])
    assert after["state"] == "cancelled"
    slurm.wait_state(entry["job_id"], "CANCELLED")


def test_scancel_is_cancelled_too(site: Cli, slurm: SmallSlurm) -> None:
    assert site("infer", site.write("long.yaml", LONG)).code == 0
    entry = until(site, lambda s: s["state"] == "running" and s["step"] > 0)
    slurm.command("scancel", entry["job_id"])
    assert until(site, lambda s: s["over"])["state"] == "cancelled"


@pytest.mark.acceptance
def test_sweep_is_one_array_per_request_and_runs_once(site: Cli) -> None:
    text = TINY.replace("name: tiny", "name: sw")
    spec = site.write("sw.yaml", text + "sweep: {algorithm.iterations: [1, 2], resources.gpus: [1, 2]}\n")
    done = site("sweep", spec, "--wait", "--timeout", "300", timeout_s=400)
    assert done.code == 0, done.err
    jobs = {read_intent(paths).job_id for paths in find_runs(site.folder / "runs")}
    assert len(jobs) == 4 and len({str(job).split("_")[0] for job in jobs}) == 2
    table = (site.folder / "runs" / "sweep-sw.csv").read_text().splitlines()
    assert len(table) == 5 and all(",completed," in line for line in table[1:])
    again = site("sweep", spec)
    assert again.code == 0 and "0 to run" in again.err
    assert len(find_runs(site.folder / "runs")) == 4
