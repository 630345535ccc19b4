"""The table of states: what records and the scheduler say, and the one state that is true then."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dptrain.records.events import read_events
from dptrain.records.process import start_ticks
from dptrain.status.collect import read_run
from dptrain.status.decide import Decision, decide
from dptrain.status.ending import Missing
from tests.status.helpers import WrittenRun, job


def state_of(run: WrittenRun, info: object, later_s: float = 0.0) -> Decision:
    return decide(read_run(run.paths), info, time.time() + later_s)  # type: ignore[arg-type]


def nothing(run: WrittenRun) -> None:
    """No rank has reported."""


def half(run: WrittenRun) -> None:
    """One of two ranks has reported."""
    run.start(0)


def going(run: WrittenRun) -> None:
    """Both ranks have made step 1."""
    for rank in (0, 1):
        run.start(rank)
        run.step(rank, 1)


def done(run: WrittenRun) -> None:
    run.finish()


def no_final(run: WrittenRun) -> None:
    """Rank 1 stops before its final record."""
    going(run)
    run.step(0, 2)
    run.step(0, 3)
    run.final(0)


def too_few_steps(run: WrittenRun) -> None:
    """Final records of both, but a step is missing on rank 1."""
    for rank in (0, 1):
        run.start(rank)
        run.final(rank, step=3 - rank)


def raised(run: WrittenRun) -> None:
    """Rank 1 fails first, rank 0 loses its connection."""
    going(run)
    run.fail(1)
    run.fail(0, secondary=True, message="RuntimeError: Connection closed by peer")


def terminated(run: WrittenRun) -> None:
    """Both ranks obey SIGTERM."""
    going(run)
    for rank in (0, 1):
        run.fail(rank, "cancelled", signal="SIGTERM")


def asked_again(run: WrittenRun) -> None:
    going(run)
    for rank in (0, 1):
        run.event(rank, "requeue", step=1, reason="preempted")


def cancelled(run: WrittenRun) -> None:
    going(run)
    run.launcher("cancel", by="dptrain cancel")
    run.fail(0, "cancelled", signal="SIGTERM")
    run.fail(1, "exception")


def killed(run: WrittenRun) -> None:
    """srun's word is all there is of rank 1; rank 0 was ended by srun."""
    going(run)
    run.fail(0, "cancelled", signal="SIGTERM")
    run.batch_log(
        "srun: error: n2: task 1: Killed\nslurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***\n"
    )


def second_start(run: WrittenRun) -> None:
    asked_again(run)
    run.start(0, attempt=2)
    run.start(1, attempt=2)


def bad_setup(run: WrittenRun) -> None:
    run.batch_log("dptrain: setup line failed with exit code 1: module load nope\n")


def no_python(run: WrittenRun) -> None:
    run.batch_log("slurmstepd: error: execve(): /nope/python: No such file or directory\n")


def broken_python(run: WrittenRun) -> None:
    run.batch_log("0: /bin/python: No module named submitit\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n")


TABLE: list[tuple[Callable[[WrittenRun], None], object, str]] = [
    (nothing, job("PENDING", "Resources"), "queued"),
    (nothing, job("PENDING", "PartitionTimeLimit"), "queued"),
    (nothing, job("CONFIGURING"), "queued"),
    (nothing, job("RUNNING"), "starting"),
    (nothing, job("BRAND_NEW"), "unknown"),
    (nothing, "unanswered", "unknown"),
    (nothing, "forgotten", "failed: never-started"),
    (nothing, job("COMPLETED"), "incomplete"),
    (nothing, job("FAILED"), "failed: never-started"),
    (nothing, job("CANCELLED"), "cancelled"),
    (nothing, job("TIMEOUT"), "timed-out"),
    (nothing, job("PREEMPTED"), "preempted"),
    (nothing, job("NODE_FAIL"), "failed: node-failure"),
    (nothing, job("PENDING", "BeginTime", restarts=1), "requeued"),
    (bad_setup, job("FAILED"), "failed: setup"),
    (bad_setup, "forgotten", "failed: setup"),
    (no_python, job("FAILED"), "failed: never-started"),
    (broken_python, job("FAILED"), "failed: never-started"),
    (half, job("RUNNING"), "starting"),
    (half, job("COMPLETED"), "incomplete"),
    (half, job("FAILED"), "failed: never-started"),
    (going, job("RUNNING"), "running"),
    (going, job("SUSPENDED"), "running"),
    (going, job("COMPLETING"), "running"),
    (going, job("BRAND_NEW"), "running"),
    (going, "unanswered", "running"),
    (going, job("COMPLETED"), "incomplete"),
    (going, job("FAILED"), "failed: unknown"),
    (going, job("OUT_OF_MEMORY"), "failed: out-of-memory"),
    (going, job("TIMEOUT"), "timed-out"),
    (going, job("PENDING", "BeginTime", restarts=1), "requeued"),
    (going, job("RUNNING", restarts=1), "starting"),
    (going, "forgotten", "failed: unknown"),
    (no_final, job("COMPLETED"), "incomplete"),
    (no_final, job("RUNNING"), "running"),
    (too_few_steps, job("COMPLETED"), "incomplete"),
    (too_few_steps, "forgotten", "failed: unknown"),
    (done, "forgotten", "completed"),
    (done, "unanswered", "completed"),
    (done, job("COMPLETED"), "completed"),
    (done, job("COMPLETING"), "completed"),
    (done, job("FAILED"), "completed"),
    (raised, job("RUNNING"), "failed: exception"),
    (raised, job("FAILED"), "failed: exception"),
    (raised, "forgotten", "failed: exception"),
    (raised, "unanswered", "failed: exception"),
    (raised, job("NODE_FAIL"), "failed: node-failure"),
    (terminated, job("CANCELLED"), "cancelled"),
    (terminated, "forgotten", "cancelled"),
    (terminated, job("TIMEOUT"), "timed-out"),
    (terminated, job("PREEMPTED"), "preempted"),
    (cancelled, job("CANCELLED"), "cancelled"),
    (cancelled, job("FAILED"), "cancelled"),
    (cancelled, "forgotten", "cancelled"),
    (asked_again, job("COMPLETING"), "requeued"),
    (asked_again, job("PENDING", "BeginTime", restarts=1), "requeued"),
    (asked_again, job("CANCELLED"), "cancelled"),
    (asked_again, job("FAILED"), "preempted"),
    (second_start, job("RUNNING", restarts=1), "running"),
    (killed, job("FAILED"), "failed: killed"),
    (killed, job("CANCELLED"), "cancelled"),
    (killed, job("OUT_OF_MEMORY"), "failed: out-of-memory"),
    (killed, "forgotten", "failed: killed"),
]


@pytest.mark.parametrize(
    ("records", "info", "state"), TABLE, ids=[f"{r.__name__}-{getattr(i, 'raw_state', i)}-{s}" for r, i, s in TABLE]
)
def test_state(tmp_path: Path, records: Callable[[WrittenRun], None], info: object, state: str) -> None:
    run = WrittenRun(tmp_path)
    records(run)
    assert state_of(run, info).state == state


def test_pending_reason_is_shown_and_impossible_ones_are_marked(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    assert state_of(run, job("PENDING", "Resources")).reason == "Resources"
    assert (state_of(run, job("PENDING", "PartitionTimeLimit")).reason or "").startswith(
        "impossible: PartitionTimeLimit"
    )


def test_unknown_word_is_shown_raw(tmp_path: Path) -> None:
    assert "BRAND_NEW" in (state_of(WrittenRun(tmp_path), job("BRAND_NEW")).reason or "")


def test_files_of_a_job_that_has_just_ended_are_waited_for(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    no_final(run)
    now = time.time()
    early = state_of(run, job("COMPLETED", ended_s=now - 25))
    assert (early.state, early.over) == ("running", False)
    assert "waiting for its files: rank 1 has no final record" in (early.reason or "")
    assert state_of(run, job("COMPLETED", ended_s=now - 35)).state == "incomplete"
    run.step(1, 3)
    run.final(1)
    assert state_of(run, job("COMPLETED", ended_s=now - 25)).state == "completed"


def test_incomplete_names_the_rank_and_its_step(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    no_final(run)
    failure = state_of(run, job("COMPLETED")).failure
    assert failure is not None and (failure.rank, failure.host, failure.step) == (1, "n2", 1)
    assert "no final record" in failure.message and "step 1 of 3" in failure.message


def test_first_failing_rank_is_named_with_its_traceback(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    raised(run)
    failure = state_of(run, job("FAILED")).failure
    assert failure is not None and (failure.kind, failure.rank, failure.host) == ("exception", 1, "n2")
    assert failure.message == "ValueError: no" and "Traceback" in (failure.traceback or "")


def test_killed_rank_is_named_by_srun(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    killed(run)
    failure = state_of(run, job("FAILED")).failure
    assert failure is not None and (failure.rank, failure.host, failure.signal, failure.step) == (1, "n2", "SIGKILL", 1)


def test_lost_node_is_named(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    run.fail(0, secondary=True)
    by_silence = state_of(run, job("NODE_FAIL")).failure
    run.batch_log("srun: error: Node failure on n2\n")
    by_srun = state_of(run, job("NODE_FAIL")).failure
    assert by_silence is not None and by_srun is not None
    assert (by_silence.rank, by_silence.host) == (by_srun.rank, by_srun.host) == (1, "n2")


def test_a_secondary_failure_is_shown_where_there_is_no_other(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    for rank in (0, 1):
        run.fail(rank, secondary=True, message="RuntimeError: Connection closed by peer")
    assert state_of(run, job("FAILED")).state == "failed: exception"


def test_a_rank_that_left_without_a_word_comes_before_those_who_lost_it(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, world_size=3)
    going(run)
    for rank in (0, 2):
        run.fail(rank, secondary=True, message="RuntimeError: Connection closed by peer")
    run.batch_log("srun: error: n1: tasks 0,2: Exited with exit code 1\n")
    decision = state_of(run, job("FAILED"))
    assert decision.state == "failed: unknown" and decision.failure is not None
    assert (decision.failure.rank, decision.failure.host) == (1, "n2")
    assert "left without a final record; rank 0 lost it" in decision.failure.message


@pytest.mark.parametrize("log", ["", "srun: error: n2: task 1: Killed\n"])
def test_a_stall_names_the_rank_that_was_waited_for(tmp_path: Path, log: str) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    if not log:  # silent for longer than heartbeats may take
        path = run.paths.attempt(1).rank_events(1)
        past = [{**e, "t": e["t"] - 60} for e in read_events(path)]
        path.write_text("".join(json.dumps(event) + "\n" for event in past))
    run.fail(0, "stalled", message="step 2 made no progress for 40 s")
    run.batch_log(log)
    decision = state_of(run, job("FAILED"))
    assert decision.state == "failed: stalled" and decision.failure is not None
    assert decision.failure.rank == 1 and "rank 1 on n2 went silent" in decision.failure.message
    assert "rank 0 waited for it: step 2 made no progress" in decision.failure.message
    run.fail(1, "stalled", message="too")
    decision = state_of(run, job("FAILED"))
    assert decision.failure is not None and decision.failure.rank == 0


def test_an_answer_older_than_the_start_is_no_requeue(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    records, now = read_run(run.paths), time.time()
    assert decide(records, job("PENDING", "None"), now, 8.0).state == "running"
    assert decide(records, job("PENDING", "None"), now + 5, 0.5).state == "requeued"


@pytest.mark.parametrize("word", ["SUSPENDED", "BRAND_NEW"])
def test_a_job_that_is_not_running_does_not_stall(tmp_path: Path, word: str) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    for rank in (0, 1):
        path = run.paths.attempt(1).rank_events(rank)
        path.write_text("".join(json.dumps({**e, "t": e["t"] - 5000}) + "\n" for e in read_events(path)))
    assert state_of(run, job("RUNNING")).state == "stalled"
    decision = state_of(run, job(word))
    assert decision.state == "running" and word in (decision.reason or "")


def test_a_setup_line_that_ends_the_script_as_if_all_were_well(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.batch_log("dptrain: setup line failed with exit code 0: exit 0\n")
    for word in ("COMPLETED", "FAILED"):
        decision = state_of(run, job(word))
        assert decision.state == "failed: setup" and decision.failure is not None
        assert "exit code 0: exit 0" in decision.failure.message


def test_never_started_shows_the_end_of_the_log(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    broken_python(run)
    failure = state_of(run, job("FAILED")).failure
    assert failure is not None and "No module named submitit" in failure.message


def test_setup_line_is_quoted(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    bad_setup(run)
    failure = state_of(run, job("FAILED")).failure
    assert failure is not None and "module load nope" in failure.message


def test_messages_of_an_earlier_attempt_are_not_about_this_one(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    second_start(run)
    run.batch_log(
        "srun: error: n2: task 1: Killed\n"
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO JOB REQUEUE ***\n"
        "srun: error: n1: task 0: Segmentation fault\n"
    )
    failure = state_of(run, job("FAILED", restarts=1)).failure
    assert failure is not None and (failure.rank, failure.signal) == (0, "SIGSEGV")


@pytest.mark.parametrize(("why", "state"), [("PREEMPTION", "preempted"), ("TIME LIMIT", "timed-out")])
def test_what_ended_a_later_attempt_is_about_it(tmp_path: Path, why: str, state: str) -> None:
    run = WrittenRun(tmp_path)
    asked_again(run)
    for rank in (0, 1):
        run.start(rank, attempt=2)
        run.fail(rank, "cancelled", attempt=2, signal="SIGTERM")
    earlier, now = "2024-01-01T00:00:00", datetime.now().isoformat(timespec="seconds")
    lines = [f"*** JOB 12 ON n1 CANCELLED AT {when} DUE TO {{}} ***" for when in (earlier, now)]
    run.batch_log(
        f"slurmstepd: error: {lines[0].format('JOB REQUEUE')}\n"
        f"slurmstepd: error: {lines[1].format(why)}\nsrun: error: n2: task 1: Killed\n"
    )
    assert state_of(run, "forgotten").state == state
    # Nothing of it is about a further attempt that has not reported yet.
    run.batch_log(f"srun: error: n2: task 1: Killed\nslurmstepd: error: {lines[1].format('PREEMPTION')}\n")
    assert state_of(run, job("RUNNING", restarts=2)).state == "starting"
    bad_setup_line = "dptrain: setup line failed with exit code 1: module load nope\n"
    run.batch_log(f"slurmstepd: error: {lines[1].format('PREEMPTION')}\n{bad_setup_line}")
    assert state_of(run, job("FAILED", restarts=2)).state == "failed: setup"


@pytest.mark.parametrize(
    ("log", "state"),
    [
        ("srun: error: n2: task 1: Segmentation fault (core dumped)\n", "failed: killed"),
        ("srun: error: n2: task 1: Exited with exit code 3\n", "failed: unknown"),
        ("srun: error: n2: task 1: Exited with exit code 143\n", "completed"),
        ("srun: error: n2: task 1: Killed\n*** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***", "completed"),
    ],
)
def test_what_srun_saw_after_the_last_records_lasts(tmp_path: Path, log: str, state: str) -> None:
    run = WrittenRun(tmp_path)
    done(run)
    run.batch_log(log.replace("*** JOB", "slurmstepd: error: *** JOB"))
    decision = state_of(run, "forgotten")
    assert (decision.state, decision.over) == (state, True)
    assert decision.failure is None or (decision.failure.rank, decision.failure.host) == (1, "n2")


def test_lost_node_of_an_earlier_attempt_does_not_explain_a_later_failure(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    second_start(run)
    run.fail(0, attempt=2)
    run.batch_log(
        "slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n"
        "srun: error: Node failure on n2\n"
    )
    assert state_of(run, "forgotten").state == "failed: exception"


@pytest.mark.parametrize("info", ["forgotten", "unanswered"])
def test_time_limit_is_read_from_the_log_of_a_forgotten_job(tmp_path: Path, info: Missing) -> None:
    run = WrittenRun(tmp_path)
    terminated(run)
    run.batch_log("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***\n")
    assert state_of(run, info).state == ("timed-out" if info == "forgotten" else "cancelled")


@pytest.mark.parametrize(("kind", "state"), [("timed-out", "timed-out"), ("preempted", "preempted")])
def test_last_allowed_restart(tmp_path: Path, kind: str, state: str) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    run.fail(0, kind, message=f"{kind} after step 1; given up")
    decision = state_of(run, job("FAILED"))
    assert decision.state == state and "given up" in (decision.reason or "")


def test_silent_rank_is_stalled_after_the_limit_of_its_phase(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    run.event(1, "phase", phase="run")
    assert state_of(run, job("RUNNING"), later_s=35).state == "running"
    stalled = state_of(run, job("RUNNING"), later_s=45)
    assert stalled.state == "stalled" and stalled.failure is not None and stalled.failure.rank == 1
    assert state_of(run, "unanswered", later_s=45).state == "unknown"


def test_stall_found_by_the_watchdog(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    run.fail(1, "stalled", message="step 2 made no progress for 40 s")
    assert state_of(run, job("FAILED")).state == "failed: stalled"


@pytest.mark.parametrize(
    ("changes", "age_s", "state"),
    [
        ({"submission": "submitting", "job_id": None}, 0.0, "submitting"),
        ({"submission": "submitting", "job_id": None, "launcher": "local"}, 0.0, "submitting"),
        ({"submission": "submitting", "job_id": None, "launcher": "local"}, 100.0, "never-submitted"),
        ({"submission": "refused", "refusal": "invalid partition", "job_id": None}, 0.0, "never-submitted"),
        ({"submission": "dry-run", "job_id": None}, 0.0, "never-submitted"),
    ],
)
def test_before_submission(tmp_path: Path, changes: dict[str, object], age_s: float, state: str) -> None:
    run = WrittenRun(tmp_path)
    run.change(**changes)
    decision = state_of(run, "unanswered", later_s=age_s)
    assert decision.state == state
    if changes.get("refusal"):
        assert decision.reason == "invalid partition"


def local(root: Path, pid: int | None = None, ticks: int | None = None) -> WrittenRun:
    """A local run whose supervisor is this process, or another one."""
    pid = pid or os.getpid()
    run = WrittenRun(root, launcher="local", job_id=str(pid), host=socket.gethostname())
    run.launcher("launched", host=socket.gethostname(), pid=pid, start_ticks=ticks or start_ticks(pid), world_size=2)
    return run


def test_local_runs(tmp_path: Path) -> None:
    run = local(tmp_path)
    assert state_of(run, "unanswered").state == "starting"
    going(run)
    assert state_of(run, "unanswered").state == "running"
    run.launcher("exit", rank=1, host="n2", pid=101, exitcode=-9, signal="SIGKILL", ended_by_launcher=False)
    run.fail(0, secondary=True)
    killed_ = state_of(run, "unanswered")
    assert killed_.state == "failed: killed" and not killed_.over
    run.launcher("exit", rank=0, host="n1", pid=100, exitcode=-15, signal="SIGTERM", ended_by_launcher=True)
    run.launcher("ended", exitcode=137)
    after = state_of(run, "unanswered")
    assert after.over and after.failure is not None
    assert (after.failure.rank, after.failure.host, after.failure.signal) == (1, "n2", "SIGKILL")


def test_local_run_without_supervisor_is_never_running(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    run = local(tmp_path, pid=int(gone.stdout), ticks=1)
    going(run)
    decision = state_of(run, "unanswered")
    assert decision.state == "failed: killed" and decision.over


def test_reused_pid_is_not_the_supervisor(tmp_path: Path) -> None:
    run = local(tmp_path, ticks=1)
    going(run)
    assert state_of(run, "unanswered").state == "failed: killed"


def test_local_launcher_that_ended_well_without_final_records_is_incomplete(tmp_path: Path) -> None:
    run = local(tmp_path)
    no_final(run)
    run.launcher("ended", exitcode=0)
    assert state_of(run, "unanswered").state == "incomplete"


def test_local_completed_is_over_once_the_launcher_has_ended(tmp_path: Path) -> None:
    run = local(tmp_path)
    done(run)
    assert state_of(run, "unanswered").state == "completed" and not state_of(run, "unanswered").over
    run.launcher("ended", exitcode=0)
    assert state_of(run, "unanswered").over


def test_rank_that_dies_after_its_final_record(tmp_path: Path) -> None:
    run = local(tmp_path)
    done(run)
    run.launcher("exit", rank=1, host="n2", pid=101, exitcode=-11, signal="SIGSEGV", ended_by_launcher=False)
    run.launcher("ended", exitcode=139)
    assert state_of(run, "unanswered").state == "failed: killed"


def test_local_restart_is_not_the_end(tmp_path: Path) -> None:
    run = local(tmp_path)
    asked_again(run)
    run.launcher("ended", exitcode=75)
    decision = state_of(run, "unanswered")
    assert decision.state == "requeued" and not decision.over


def test_local_rank_that_dies_before_it_reports(tmp_path: Path) -> None:
    run = local(tmp_path)
    run.paths.attempt(1).launcher_log.write_text("ModuleNotFoundError: No module named 'torch'\n")
    run.launcher("exit", rank=0, host="n1", pid=100, exitcode=1, signal=None, ended_by_launcher=False)
    run.launcher("ended", exitcode=1)
    failure = state_of(run, "unanswered").failure
    assert failure is not None and failure.kind == "never-started" and "No module named 'torch'" in failure.message


def test_of_two_stalled_ranks_the_one_that_does_not_wait_is_named(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    run.fail(0, "stalled", waiting=True)
    run.fail(1, "stalled", waiting=False)
    failure = state_of(run, job("FAILED")).failure
    assert failure is not None and (failure.kind, failure.rank, failure.host) == ("stalled", 1, "n2")


def test_a_frozen_rank_is_named_also_when_the_end_has_woken_it(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, world_size=3)
    for rank in range(3):
        run.start(rank)
    run.fail(0, "stalled", waiting=True)
    run.fail(1, "stalled", waiting=True)
    run.fail(2, "cancelled", signal="SIGTERM")
    decision = state_of(run, job("FAILED"))
    assert decision.state == "failed: stalled"
    assert decision.failure is not None and (decision.failure.rank, decision.failure.host) == (2, "n3")
    assert "rank 0 waited for it" in decision.failure.message


@pytest.mark.parametrize("log", ["", "srun: error: n3: task 2: Killed\n"])
def test_a_frozen_rank_is_named_also_where_the_others_do_not_know_that_they_wait(tmp_path: Path, log: str) -> None:
    """NCCL: the main thread waits for the device, which is not known to be communication."""
    run = WrittenRun(tmp_path, world_size=3)
    for rank in range(3):
        run.start(rank)
        run.step(rank, 1)
    if not log:
        run.age(60, 2)
    for rank in (0, 1):
        run.fail(rank, "stalled", waiting=False)
    run.batch_log(log)
    failure = state_of(run, job("FAILED")).failure
    assert failure is not None and (failure.kind, failure.rank, failure.host) == ("stalled", 2, "n3")


def test_a_rank_that_somebody_terminated_is_named(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    going(run)
    run.fail(1, "cancelled", signal="SIGTERM")
    time.sleep(0.002)  # the clock of the records counts milliseconds
    run.fail(0, "cancelled", signal="SIGTERM")
    decision = state_of(run, job("FAILED"))
    assert decision.state == "cancelled" and "rank 1 on n2 was the first to get SIGTERM" in (decision.reason or "")
    assert state_of(run, job("CANCELLED")).reason is None
    run.launcher("cancel", by="dptrain cancel")
    assert state_of(run, job("FAILED")).reason is None


@pytest.mark.parametrize("info", [job("CANCELLED"), job("FAILED"), job("COMPLETED"), "forgotten", None])
def test_cancelling_what_has_just_finished_takes_nothing_away(tmp_path: Path, info: object) -> None:
    local: dict[str, Any] = {"launcher": "local", "job_id": "1", "host": "elsewhere"} if info is None else {}
    run = WrittenRun(tmp_path, **local)
    for rank in range(2):
        run.start(rank)
        run.step(rank, 3)
        run.final(rank)
    run.launcher("launched", pid=1, start_ticks=1)
    run.launcher("cancel", by="dptrain cancel")
    run.launcher("exit", rank=0, signal="SIGTERM", exitcode=None)
    run.launcher("ended", exitcode=143)
    decision = state_of(run, "unanswered" if info is None else info)
    assert decision.state == "completed" and "although cancel was asked for" in (decision.reason or "")
