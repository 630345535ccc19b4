"""`resume` on a real small SLURM, and runs that go on in a chain of jobs where a job may not be requeued."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from tests.cli.cli import LONG, TINY, Cli
from tests.cli.test_slurm_runs import profile, status, until
from tests.local_runs import events
from tests.slurm_cluster import SmallSlurm
from tests.slurm_fixtures import point_to

pytestmark = pytest.mark.slurm


@pytest.fixture
def strict(
    slurm_cluster: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cli, SmallSlurm]]:
    """A site that puts no job back into the queue, and a profile that knows it. Stopping it ends what is left."""
    with SmallSlurm(JobRequeue=0) as cluster:
        point_to(cluster, tmp_path, monkeypatch)
        cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="chained")
        profile(cli, "chained", "restart: resubmit")
        yield cli, cluster


@pytest.mark.acceptance
def test_where_jobs_are_not_requeued_the_next_one_goes_on_and_resume_after_it(strict: tuple[Cli, SmallSlurm]) -> None:
    cli, slurm = strict
    spec = cli.write("long.yaml", LONG)
    assert cli("infer", spec, "--set", "run.max_preempts=1").code == 0
    first = until(cli, lambda s: s["state"] == "running" and s["step"] > 0)
    (paths,) = find_runs(cli.folder / "runs")
    assert "Requeue=0" in slurm.command("scontrol", "show", "job", first["job_id"])
    slurm.command("scancel", "--signal=USR2", first["job_id"])
    second = until(cli, lambda s: s["attempt"] == 2 and s["state"] == "running" and s["step"] > 0)
    assert second["job_id"] != first["job_id"]
    slurm.wait_state(first["job_id"], "COMPLETED")
    (asked,) = [e["step"] for e in events(paths, 0, "requeue")]
    until(cli, lambda s: s["step"] > asked)
    assert second["history"] == [f"attempt 1: preempted at step {asked}"]
    starts = [(e["job_id"], e["attempt"]) for e in events(paths, 1, "start")]
    assert starts == [(first["job_id"], 1), (second["job_id"], 2)]
    assert [e["step"] for e in events(paths, 0, "step")][asked] == asked + 1
    # The budget is one, over all jobs of the chain.
    slurm.command("scancel", "--signal=USR2", second["job_id"])
    over = until(cli, lambda s: s["over"])
    assert over["state"] == "preempted" and "run.max_preempts is 1" in over["reason"]
    # Whoever resumes it has a budget again.
    resumed = cli("resume", "last", "--gpus", "1")
    assert resumed.code == 0 and "goes on from the save of step" in resumed.err, resumed.err
    third = until(cli, lambda s: s["attempt"] == 3 and s["state"] == "running" and s["step"] > over["step"])
    assert third["world_size"] == 1 and len(third["history"]) == 2
    assert cli("resume", "last").code == 2
    slurm.command("scancel", "--signal=USR2", third["job_id"])
    fourth = until(cli, lambda s: s["attempt"] == 4 and s["state"] == "running")
    assert cli("cancel", "last").code == 0
    assert until(cli, lambda s: s["over"])["state"] == "cancelled"
    assert len({first["job_id"], second["job_id"], third["job_id"], fourth["job_id"]}) == 4
    assert cli("clean", "last").code == 0
    assert not list(paths.submitit.iterdir()) and paths.batch_log_of(first["job_id"]).exists()


@pytest.mark.acceptance
def test_a_refused_submission_is_resumed_with_the_right_profile(slurm: SmallSlurm, tmp_path: Path) -> None:
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="small")
    profile(cli, "wrong", "partition: mian")
    assert cli("infer", cli.write("tiny.yaml", TINY), "--cluster", "wrong").code == 4
    again = cli("resume", "last")
    assert again.code == 4 and "invalid partition" in again.err
    assert status(cli)["state"] == "never-submitted"
    done = cli("resume", "last", "--cluster", "small", "--wait", "--timeout", "200", timeout_s=250)
    assert done.code == 0, done.err
    after = status(cli)
    assert (after["state"], after["attempt"], after["history"]) == ("completed", 1, [])
    (paths,) = find_runs(tmp_path / "runs")
    assert read_intent(paths).cluster == "small"
