"""Runs on a real small SLURM: what is submitted, what starts, how it ends, and what is left."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.errors import SubmissionRejected
from dptrain.launch.cancel import cancel
from dptrain.launch.slurm import split, submit_slurm
from dptrain.launch.snapshot import create_run
from dptrain.plan.plan import Plan, make_plan
from dptrain.records.intent import read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.query import query_jobs
from dptrain.scheduler.sbatch import setup_failure
from dptrain.spec.cluster import ClusterProfile
from dptrain.status.state import run_status
from tests.launch.runs import ENDLESS, events_of, tiny, tiny_run, wait_for, wait_for_steps
from tests.scheduler.test_query import failing_sbatch
from tests.slurm_cluster import SmallSlurm
from tests.slurm_fixtures import point_to

pytestmark = pytest.mark.slurm
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
NO_RANKS = "/bin/true"
"""Stands in for Python where a test needs no ranks: the job's step succeeds at once."""


def batch_log(paths: RunPaths, job: str) -> str:
    return (paths.batch_log / f"batch-{job}.log").read_text()


def start(profile: ClusterProfile, folder: Path, *overrides: str) -> tuple[RunPaths, str]:
    """Submit a tiny run with a changed profile; its job."""
    loaded = tiny("small", folder, *overrides)[0]
    plan = make_plan(loaded, "infer", profile)
    paths = create_run(plan, loaded, profile)
    return paths, submit_slurm([paths], plan, profile)[0]


def small(folder: Path) -> ClusterProfile:
    return tiny("small", folder)[1]


def test_two_nodes_with_two_ranks_each_do_the_whole_run(slurm: SmallSlurm, tmp_path: Path) -> None:
    paths, plan, profile = tiny_run("small", tmp_path, "resources.gpus=4")
    [job] = submit_slurm([paths], plan, profile)
    intent = read_intent(paths)
    assert (intent.submission, intent.job_id, intent.launcher) == ("submitted", job, "slurm")
    # Byte for byte what plan has shown.
    assert slurm.command("scontrol", "write", "batch_script", job, "-") == plan.sbatch
    assert paths.submission.read_text() == plan.sbatch
    assert slurm.wait_state(job, *ENDED, timeout_s=180) == "COMPLETED"
    starts = [events_of(paths, "start", rank)[0] for rank in range(4)]
    assert [(s["rank"], s["world_size"], s["job_id"], s["attempt"]) for s in starts] == [
        (r, 4, job, 1) for r in range(4)
    ]
    assert [s["host"] for s in starts] == ["n1", "n1", "n2", "n2"]
    assert all(events_of(paths, "final", rank) for rank in range(4))
    assert paths.result.exists()
    assert [p.name for p in paths.submitit.iterdir()] == [f"{job}_submitted.pkl"]


def test_the_pickle_holds_a_run_directory_and_no_more(slurm: SmallSlurm, tmp_path: Path) -> None:
    paths, job = start(replace(small(tmp_path), python=NO_RANKS), tmp_path)
    with (paths.submitit / f"{job}_submitted.pkl").open("rb") as file:
        call = pickle.load(file)
    assert call.function.__module__ == "dptrain.launch.payload"
    assert call.args == (str(paths.dir),)


def test_status_finds_the_job_of_a_command_that_was_killed_before_it_noted_it(
    slurm: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dptrain.status.state.CONFIRMED_S", 0.0)
    profile = replace(small(tmp_path), python=NO_RANKS)
    held, paths, gone = (
        start(replace(profile, extra_sbatch={"begin": "now+1hour"}), tmp_path),
        start(profile, tmp_path),
        tiny_run("small", tmp_path)[0],
    )
    slurm.wait_state(paths[1], *ENDED)
    for run, job in (held, paths):
        # As sbatch's answer finds it.
        update_intent(run, submission="submitting", job_id=None)
        (run.submitit / f"{job}_submitted.pkl").unlink()
    update_intent(paths[0], comment="forgotten by the controller")
    os.utime(paths[0].intent, (0, 0))
    update_intent(gone, submission="submitting", comment="never sent")
    states = [status.state for status in run_status([held[0], paths[0], gone])]
    assert read_intent(held[0]).job_id == held[1] and (held[0].submitit / f"{held[1]}_submitted.pkl").is_file()
    assert read_intent(paths[0]).job_id == paths[1], "its batch log says which"
    assert states[0] == "queued" and states[2] == "submitting"
    cancel(held[0])


def test_cancel_ends_the_job_and_leaves_no_process(slurm: SmallSlurm, tmp_path: Path) -> None:
    # Four CPUs per rank: srun has to be told, or the step gets one each.
    paths, job = start(replace(small(tmp_path), cpus_per_task=4, gpus_per_node=1), tmp_path, ENDLESS)
    wait_for_steps(paths)
    step = dict(
        word.split("=", 1) for word in slurm.command("scontrol", "show", "step", f"{job}.0").split() if "=" in word
    )
    assert (step["Nodes"], step["Tasks"], step["CPUs"]) == ("2", "2", "8")
    assert cancel(paths) == f"{paths.run_id}: asked SLURM to cancel job {job}"
    assert slurm.wait_state(job, *ENDED) == "CANCELLED"
    assert events_of(paths, "cancel")
    ranks = [events_of(paths, "start", rank)[0]["pid"] for rank in range(2)]
    wait_for("end of the ranks", lambda: not set(ranks) & set(slurm.processes()))
    assert query_jobs([job])[job].restarts == 0
    assert cancel(paths) == f"{paths.run_id}: job {job} had already ended"


def test_a_killed_rank_ends_the_job(slurm: SmallSlurm, tmp_path: Path) -> None:
    paths, job = start(replace(small(tmp_path), gpus_per_node=1), tmp_path, ENDLESS)
    wait_for_steps(paths)
    victim = events_of(paths, "start", 1)[0]
    os.kill(victim["pid"], signal.SIGKILL)
    assert slurm.wait_state(job, *ENDED) == "FAILED"
    assert f"srun: error: {victim['host']}: task 1: Killed" in batch_log(paths, job)


@pytest.mark.acceptance  # half a minute of waiting for SLURM
def test_a_warning_requeues_the_job_which_goes_on_from_its_save(slurm: SmallSlurm, tmp_path: Path) -> None:
    paths, job = start(small(tmp_path), tmp_path, ENDLESS)
    wait_for_steps(paths)
    slurm.command("scancel", "--signal=USR2", job)
    wait_for("requeue", lambda: query_jobs([job])[job].restarts == 1)
    wait_for("second attempt", lambda: bool(events_of(paths, "start", 0, attempt=2)))
    wait_for_steps(paths, attempt=2)
    asked = [events_of(paths, "requeue", rank)[0]["step"] for rank in range(2)]
    assert asked[0] == asked[1]
    # Well before its five minutes are over: this does not use up what the run has for time-outs.
    assert {events_of(paths, "requeue", rank)[0]["reason"] for rank in range(2)} == {"preempted"}
    assert events_of(paths, "step", 0, attempt=2)[0]["step"] == asked[0] + 1
    cancel(paths)
    assert slurm.wait_state(job, *ENDED) == "CANCELLED"


@pytest.mark.acceptance  # half a minute of setup lines
def test_setup_lines_take_of_the_time_limit_and_a_refused_requeue_is_said(slurm: SmallSlurm, tmp_path: Path) -> None:
    setup = ("srun --overlap --ntasks=1 false || true", "sleep 25")
    paths, job = start(
        replace(small(tmp_path), setup=setup), tmp_path, ENDLESS, "resources.time_min=2", "run.signal_lead_s=35"
    )
    slurm.command("scontrol", "update", f"jobid={job}", "requeue=0")
    wait_for("the job", paths.batch_log_of(job).exists)
    wait_for("the step of the setup", lambda: "task 0: Exited with exit code 1" in batch_log(paths, job))
    assert [status.state for status in run_status([paths])] == ["starting"]
    wait_for_steps(paths)
    assert [status.state for status in run_status([paths])] == ["running"]
    slurm.command("scancel", "--signal=USR2", job)
    assert slurm.wait_state(job, *ENDED) == "FAILED"
    assert {events_of(paths, "requeue", rank)[0]["reason"] for rank in range(2)} == {"timed-out"}
    (status,) = run_status([paths])
    assert status.state == "timed-out" and "presently disabled" in (status.reason or ""), status
    assert "restart: resubmit" in (status.reason or "")


def test_a_misspelt_partition_is_refused_in_slurms_words(slurm: SmallSlurm, tmp_path: Path) -> None:
    with pytest.raises(SubmissionRejected, match="invalid partition specified: mian"):
        start(replace(small(tmp_path), partition="mian"), tmp_path)
    [folder] = (tmp_path / "runs").iterdir()
    intent = read_intent(RunPaths(folder))
    assert (intent.submission, intent.job_id) == ("refused", None)
    assert "invalid partition specified: mian" in str(intent.refusal)


def test_a_refusal_names_variables_that_are_not_used(
    slurm: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    with pytest.raises(SubmissionRejected, match="SBATCH_ACCOUNT set in this shell are not used"):
        start(replace(small(tmp_path), partition="mian"), tmp_path)


def test_a_failing_setup_line_is_quoted_and_no_rank_starts(slurm: SmallSlurm, tmp_path: Path) -> None:
    paths, job = start(replace(small(tmp_path), setup=("cd /missing/folder",)), tmp_path)
    assert slurm.wait_state(job, *ENDED) == "FAILED"
    assert setup_failure(batch_log(paths, job)) == (1, "cd /missing/folder")
    assert paths.attempt(1).ranks() == []


def test_a_wrong_interpreter_leaves_its_name_in_the_log(slurm: SmallSlurm, tmp_path: Path) -> None:
    paths, job = start(replace(small(tmp_path), python="/missing/python"), tmp_path)
    assert slurm.wait_state(job, *ENDED) == "FAILED"
    assert "/missing/python" in batch_log(paths, job)


def test_submitting_from_inside_another_job_takes_nothing_from_it(
    slurm: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = {
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS": "9",
        "SLURM_NNODES": "4",
        "SLURM_JOB_NUM_NODES": "4",
        "SBATCH_PARTITION": "nowhere",
    }
    for name, value in {**outer, "RANK": "5", "WORLD_SIZE": "9", "SLURM_CPUS_PER_TASK": "4"}.items():
        monkeypatch.setenv(name, value)
    profile = replace(
        small(tmp_path), command_prefix=("/usr/bin/env",), python=NO_RANKS, setup=("env | sort >batch/env",)
    )
    paths, job = start(profile, tmp_path)
    assert slurm.wait_state(job, *ENDED) == "COMPLETED"
    seen = dict(line.split("=", 1) for line in (paths.batch_log / "env").read_text().splitlines() if "=" in line)
    assert (seen["SLURM_JOB_ID"], seen["SLURM_NTASKS"], seen["SLURM_NNODES"]) == (job, "2", "1")
    assert seen["SLURM_JOB_PARTITION"] == "main"
    assert "RANK" not in seen and "SBATCH_PARTITION" not in seen


def test_an_accepted_submission_that_looked_failed_is_one_job_with_its_pickle(
    slurm: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_sbatch(tmp_path / "bin", submits=True, monkeypatch=monkeypatch)
    paths, job = start(replace(small(tmp_path), python=NO_RANKS), tmp_path)
    jobs = slurm.command("squeue", "--states=all", "--noheader", "--Format=JobID:20,Comment:120").splitlines()
    assert [line.split()[0] for line in jobs if paths.run_id in line] == [job]
    assert read_intent(paths).job_id == job
    assert (paths.submitit / f"{job}_submitted.pkl").exists()
    assert slurm.wait_state(job, *ENDED) == "COMPLETED"


def members(count: int, folder: Path, profile: ClusterProfile) -> tuple[list[RunPaths], Plan]:
    loaded = tiny("small", folder, "resources.gpus=1")[0]
    plan = make_plan(loaded, "infer", profile)
    return [create_run(plan, loaded, profile, sweep="s") for _ in range(count)], plan


def test_runs_of_one_shape_are_one_array_whose_members_have_their_own_records(
    slurm: SmallSlurm, tmp_path: Path
) -> None:
    profile = small(tmp_path)
    runs, plan = members(2, tmp_path, profile)
    ids = submit_slurm(runs, plan, profile, max_parallel=1, folder=tmp_path / "runs" / "sweep")
    array = ids[0].split("_")[0]
    assert ids == [f"{array}_0", f"{array}_1"]
    assert "#SBATCH --array=0-1%1\n" in runs[0].submission.read_text()
    for paths, job in zip(runs, ids, strict=True):
        assert read_intent(paths).job_id == job
        assert slurm.wait_state(job, *ENDED, timeout_s=180) == "COMPLETED"
        assert events_of(paths, "start", 0)[0]["job_id"] == job
        assert events_of(paths, "final", 0)
        assert (
            batch_log(paths, job) == (tmp_path / "runs" / "sweep" / "part-1" / "batch" / f"batch-{job}.log").read_text()
        )


def test_more_runs_than_an_array_takes_are_parts_that_keep_the_limit(
    slurm_cluster: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SmallSlurm(MaxArraySize=3) as slurm:
        point_to(slurm, tmp_path, monkeypatch)
        profile = replace(small(tmp_path), python=NO_RANKS, setup=("sleep 1",))
        runs, plan = members(7, tmp_path, profile)
        ids = submit_slurm(runs, plan, profile, max_parallel=2, folder=tmp_path / "runs" / "sweep")
        heads = sorted({i.split("_")[0] for i in ids}, key=int)
        assert [sum(i.split("_")[0] == head for i in ids) for head in heads] == [3, 3, 1]
        assert "_" not in ids[-1]  # a last part of one is an ordinary job
        for head, before in zip(heads[1:], heads, strict=False):
            assert f"afterany:{before}" in slurm.command("scontrol", "show", "job", head)
        for job in ids:
            assert slurm.wait_state(job, *ENDED, timeout_s=90) == "COMPLETED"


def test_a_failing_part_lists_what_was_submitted(
    slurm_cluster: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SmallSlurm(MaxArraySize=2) as slurm:
        point_to(slurm, tmp_path, monkeypatch)
        limited_sbatch(tmp_path / "bin", 2, monkeypatch)
        profile = replace(small(tmp_path), python=NO_RANKS)
        runs, plan = members(8, tmp_path, profile)
        with pytest.raises(
            SubmissionRejected, match="part 3 of 4 failed; already submitted: 4 runs, jobs 1, "
        ) as error:
            submit_slurm(runs, plan, profile, folder=tmp_path / "runs" / "sweep")
        assert "Job violates accounting/QOS policy" in str(error.value)
        assert [read_intent(paths).submission for paths in runs] == ["submitted"] * 4 + ["refused"] * 4
        assert "not tried" in str(read_intent(runs[7]).refusal)


def limited_sbatch(folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an sbatch first on the path that lets so many submissions through, as a limit of the account does."""
    folder.mkdir()
    script = folder / "sbatch"
    words = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    script.write_text(
        f'#!/bin/sh\necho x >>"{folder}/count"\n'
        f'test "$(wc -l <"{folder}/count")" -le {limit} || {{ echo "{words}" >&2; exit 1; }}\n'
        f'PATH="{os.environ["PATH"]}" exec sbatch "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_parts_cover_every_run_once() -> None:
    runs = [RunPaths(Path(f"/r/{i}")) for i in range(7)]
    for size in (-1, 0, 1, 2, 3, 7, 100):
        parts = split(runs, size)
        assert [p for part in parts for p in part] == runs
        assert max(map(len, parts)) <= max(1, size)
