"""What squeue says, read: from lines, and from a real controller."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from dptrain.errors import StateUnknown, SubmissionRejected
from dptrain.scheduler import query
from dptrain.scheduler.commands import NoAnswer, without_job, without_rank
from dptrain.scheduler.query import expand_job_id, find_by_comment, parse_line, query_jobs
from dptrain.scheduler.submit import array_limits, submit_script, test_only
from tests.slurm_cluster import NODES, SmallSlurm


def line(**fields: str) -> str:
    return "".join(fields.get(name, "").ljust(width) for name, width in query._FIELDS.items())


def write_script(folder: Path, *header: str, command: str = "sleep 60") -> Path:
    path = folder / "job.sh"
    lines = ["#!/bin/bash", *(f"#SBATCH {h}" for h in header), "#SBATCH --output=job-%j.log", command]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[3-4%1]", ["12_3", "12_4"]),
        ("12_[0,3-5,9]", ["12_0", "12_3", "12_4", "12_5", "12_9"]),
        ("12_[0-6:3%2]", ["12_0", "12_3", "12_6"]),
        ("12+0", ["12+0"]),
        ("12_[1,...]", ["12_[1,...]"]),
    ],
)
def test_array_ids_are_expanded(text: str, ids: list[str]) -> None:
    assert expand_job_id(text) == ids


def test_a_line_of_squeue_is_read() -> None:
    jobs = list(
        parse_line(line(JobArrayID="12_[3-4%1]", State="PENDING", Reason="BadConstraints", RestartCnt="2", NodeList=""))
    )
    assert [job.job_id for job in jobs] == ["12_3", "12_4"]
    assert jobs[0].impossible and jobs[0].reason.word == "BadConstraints"
    assert (jobs[0].restarts, jobs[0].nodes, jobs[0].exit_code, jobs[0].finished) == (2, None, None, False)


@pytest.mark.parametrize(
    ("text", "code", "number"),
    [("768", 3, None), ("3:0", 3, None), ("9", 0, 9), ("0:15", 0, 15), ("0", 0, None), ("", None, None)],
)
def test_exit_codes_of_every_version(text: str, code: int | None, number: int | None) -> None:
    job = next(parse_line(line(JobArrayID="12", State="FAILED", exit_code=text)))
    assert (job.exit_code, job.exit_signal) == (code, number)
    assert next(parse_line(line(JobArrayID="12", State="RUNNING", exit_code=text))).exit_code is None


def test_the_end_of_a_job_is_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        done = next(parse_line(line(JobArrayID="12", State="COMPLETED", EndTime="2024-01-31T10:00:00")))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert done.ended_s == 1706662800.0
    for state, text in (("RUNNING", "2024-01-31T10:00:00"), ("COMPLETED", "N/A"), ("COMPLETED", "")):
        assert next(parse_line(line(JobArrayID="12", State=state, EndTime=text))).ended_s is None


def test_an_unknown_state_keeps_its_word() -> None:
    job = next(parse_line(line(JobArrayID="12", State="HIBERNATING", Reason="None")))
    assert (job.state, job.raw_state, job.finished, job.impossible) == ("unknown", "HIBERNATING", False, False)


def test_no_squeue_is_no_answer_and_not_an_empty_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = query_jobs(["12"])
    assert (answer, answer.answered, answer.no_answer) == ({}, False, "squeue is not installed")
    assert query_jobs([]).answered
    with pytest.raises(NoAnswer):
        find_by_comment("x")
    with pytest.raises(SubmissionRejected, match="sbatch is not installed"):
        submit_script(tmp_path / "x.sh", chdir=tmp_path, comment="x")
    assert test_only("#!/bin/bash\n").accepted is None


def test_an_outer_job_is_cleaned_away_but_not_the_way_to_the_cluster() -> None:
    outer = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/x.conf",
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS": "9",
        "SBATCH_PARTITION": "p",
        "SRUN_CPUS_PER_TASK": "3",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "n1",
        "PMI_RANK": "0",
        "TORCHELASTIC_RUN_ID": "x",
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "4",
    }
    assert without_job(outer) == {"PATH": "/bin", "SLURM_CONF": "/etc/x.conf", "OMP_NUM_THREADS": "4"}
    assert "CUDA_VISIBLE_DEVICES" in without_rank(outer) and "RANK" not in without_rank(outer)


@pytest.mark.slurm
def test_one_call_answers_for_jobs_members_and_unknown_ids(slurm: SmallSlurm, tmp_path: Path) -> None:
    single = submit_script(write_script(tmp_path, command="exit 3"), chdir=tmp_path, comment="one")
    array = submit_script(
        write_script(tmp_path, "--array=0-3%1", command='test "$SLURM_ARRAY_TASK_ID" = 0 || sleep 60'),
        chdir=tmp_path,
        comment="two",
    )
    assert slurm.wait_state(single, "FAILED") == "FAILED"
    slurm.wait_state(f"{array}_1", "RUNNING")
    jobs = query_jobs([single, f"{array}_0", f"{array}_1", f"{array}_3", "99999"])
    assert jobs.answered and set(jobs) == {single, f"{array}_0", f"{array}_1", f"{array}_3"}
    assert (jobs[single].state, jobs[single].exit_code, jobs[single].comment) == ("failed", 3, "one")
    assert abs(time.time() - (jobs[single].ended_s or 0.0)) < 1800, "in this machine's time zone"
    assert jobs[f"{array}_0"].state == "completed"
    assert jobs[f"{array}_1"].state == "running" and jobs[f"{array}_1"].nodes in NODES
    assert jobs[f"{array}_3"].state == "queued"
    assert jobs[f"{array}_3"].reason.word == "JobArrayTaskLimit"
    assert find_by_comment("two") == array
    assert find_by_comment("three") is None
    assert query_jobs(["99999"]) == {} and query_jobs(["99999"]).answered
    slurm.command("scancel", array)
    slurm.wait_state(f"{array}_1", "CANCELLED")
    cancelled = query_jobs([f"{array}_1", f"{array}_3"])
    assert {job.state for job in cancelled.values()} == {"cancelled"}


@pytest.mark.slurm
def test_a_request_that_can_never_start_is_marked(slurm: SmallSlurm, tmp_path: Path) -> None:
    job = submit_script(write_script(tmp_path, "--partition=short", "--time=20"), chdir=tmp_path, comment="long")
    assert query_jobs([job])[job].impossible
    # Its first word for it is PartitionConfig, later PartitionTimeLimit.
    assert query_jobs([job])[job].reason.word in ("PartitionConfig", "PartitionTimeLimit")
    held = submit_script(write_script(tmp_path, "--hold"), chdir=tmp_path, comment="held")
    assert query_jobs([held])[held].reason.kind == "blocked"
    slurm.command("scancel", job, held)


@pytest.mark.slurm
def test_test_only_submits_nothing_and_quotes_slurm(slurm: SmallSlurm, tmp_path: Path) -> None:
    before = slurm.command("squeue", "--states=all", "--noheader")
    good = test_only("#!/bin/bash\n#SBATCH --nodes=2\ntrue\n", tmp_path)
    assert good.accepted and "to start at" in good.words
    bad = test_only("#!/bin/bash\n#SBATCH --partition=nowhere\ntrue\n", tmp_path)
    assert bad.accepted is False and "invalid partition specified: nowhere" in bad.words
    large = test_only("#!/bin/bash\n#SBATCH --nodes=5\ntrue\n", tmp_path)
    assert large.accepted is False and large.words
    assert slurm.command("squeue", "--states=all", "--noheader") == before


@pytest.mark.slurm
def test_array_limits_are_the_controllers(slurm: SmallSlurm) -> None:
    assert array_limits().max_count == 1001


@pytest.mark.slurm
def test_a_job_accepted_by_an_sbatch_that_then_fails_is_found_and_not_doubled(
    slurm: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_sbatch(tmp_path / "bin", submits=True, monkeypatch=monkeypatch)
    job = submit_script(write_script(tmp_path), chdir=tmp_path, comment="accepted-1")
    comments = slurm.command("squeue", "--noheader", "--Format=JobID:20,Comment:40").splitlines()
    assert [words.split()[0] for words in comments if "accepted-1" in words] == [job]
    slurm.command("scancel", job)


@pytest.mark.slurm
def test_an_sbatch_that_times_out_without_a_job_is_a_rejection(
    slurm: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_sbatch(tmp_path / "bin", submits=False, monkeypatch=monkeypatch)
    with pytest.raises(SubmissionRejected, match="Socket timed out on send/recv operation"):
        submit_script(write_script(tmp_path), chdir=tmp_path, comment="accepted-2")


def test_without_any_controller_nothing_is_said_about_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for sbatch and squeue that fail as they do when the controller is down."""
    failing_sbatch(tmp_path / "bin", submits=False, monkeypatch=monkeypatch)
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n")
    squeue.chmod(squeue.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(StateUnknown, match="the job may have been accepted"):
        submit_script(write_script(tmp_path), chdir=tmp_path, comment="accepted-3")
    answer = query_jobs(["12"])
    assert not answer.answered and "Unable to contact slurm controller" in str(answer.no_answer)


def failing_sbatch(folder: Path, *, submits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an sbatch first on the path that ends as if the controller had not answered; before that it submits, or not."""
    folder.mkdir()
    real = f'PATH="{os.environ["PATH"]}" sbatch "$@" >/dev/null\n' if submits else ""
    script = folder / "sbatch"
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    script.write_text(f"#!/bin/sh\n{real}echo '{words}' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
