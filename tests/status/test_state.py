"""What run_status makes of records: numbers, ages, ranks, and how often the scheduler is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dptrain.errors import RunFailed, WaitTimeout
from dptrain.launch.slurm import submit_slurm
from dptrain.records.intent import write_json
from dptrain.scheduler.query import _FIELDS
from dptrain.status.collect import HEAD_BYTES, TAIL_BYTES, read_edges
from dptrain.status.logs import first_words, logs_of
from dptrain.status.model import RunStatus
from dptrain.status.show import failure_text, remark, result_lines, table_row
from dptrain.status.state import TEARDOWN_S, Scheduler, run_status
from dptrain.status.wait import wait_for
from tests.launch.runs import tiny_run
from tests.slurm_cluster import SmallSlurm
from tests.slurm_fixtures import PROFILE
from tests.status import test_decide as states
from tests.status.helpers import Said, WrittenRun, job

JSON_FIELDS = {
    *("run", "state", "failure", "step", "steps", "attempt", "world_size", "job_id", "source", "age_s", "step_time_s"),
    *("peak_memory_bytes", "psnr_db", "loss", "run_dir"),
}
RANK_FIELDS = {"rank", "host", "pid", "phase", "step", "last_seen_s", "peak_memory_bytes", "bytes_sent"}


def fake_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str = "exit 0") -> Path:
    """A squeue that counts its calls and knows no job."""
    calls = folder / "calls"
    program = folder / "squeue"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{answer}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return calls


def test_numbers(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.start(0)
    run.start(1)
    for step in (1, 2):
        run.step(0, step, seconds=0.4, loss=1.0 / step)
    run.step(1, 1, seconds=0.6)
    run.event(1, "heartbeat", phase="run", step=1, peak_memory_bytes=9000, bytes_sent=70)
    run.final(0)
    (status,) = run_status([run.paths])
    assert (status.step, status.steps, status.attempt) == (1, 3, 1)
    assert status.step_time_s == 0.6
    assert status.peak_memory_bytes == 9000
    assert (status.psnr_db, status.loss) == (22.0, 0.5)
    value = status.to_json(ranks=True)
    assert set(value) >= JSON_FIELDS and "ranks" not in status.to_json()
    assert all(set(rank) >= RANK_FIELDS for rank in value["ranks"])


def test_ranks_that_never_reported_are_listed(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, world_size=3)
    run.start(1)
    run.fail(1, secondary=True)
    (status,) = run_status([run.paths])
    assert [rank.state for rank in status.ranks] == [
        "never-reported",
        "failed: exception (secondary)",
        "never-reported",
    ]


def test_a_restarted_run_shows_its_history_and_how_far_it_was(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    for rank in (0, 1):
        run.start(rank)
        run.step(rank, 2)
        run.event(rank, "requeue", step=2, reason="preempted")
    run.start(0, attempt=2)
    (status,) = run_status([run.paths])
    assert (status.step, status.attempt) == (2, 2)
    assert status.history == ("attempt 1: preempted at step 2",)


def test_finished_runs_ask_nothing_and_others_ask_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_squeue(tmp_path, monkeypatch)
    done = [WrittenRun(tmp_path / "runs", f"done-{i}", job_id=str(i)) for i in range(5)]
    for run in done:
        run.finish()
        run.age(TEARDOWN_S + 1)
    statuses = run_status([run.paths for run in done])
    assert {(status.state, status.over) for status in statuses} == {("completed", True)}
    assert not calls.exists()
    going = [WrittenRun(tmp_path / "runs", f"going-{i}", job_id=f"9_{i}") for i in range(200)]
    ending = [WrittenRun(tmp_path / "runs", f"ending-{i}", job_id=f"7_{i}") for i in range(5)]
    for run in ending:
        run.finish()
    run_status([run.paths for run in done + going + ending])
    (call,) = calls.read_text().splitlines()
    assert call.endswith("--jobs=7,9")


def test_a_job_that_has_not_ended_is_not_over(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.finish()
    for word in ("RUNNING", "COMPLETING", "BRAND_NEW"):
        (status,) = run_status([run.paths], Said(job(word)))
        assert (status.state, status.over, status.ended) == ("completed", False, False)
        assert status.reason == f"its job has not ended yet: the scheduler says {word}" and status.reason in str(
            remark(status)
        )
    for said in (job("COMPLETED"), "forgotten", "unanswered"):
        (status,) = run_status([run.paths], Said(said))
        assert (status.state, status.over, status.reason) == ("completed", True, None)
    (status,) = run_status([run.paths], Said(job("PENDING", "BeginTime", restarts=1)))
    assert (status.state, status.over) == ("requeued", False), "its node was lost while the ranks left"


def test_a_wait_ends_soon_after_the_job_and_asks_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = {"JobArrayID": "12", "State": "RUNNING"}
    line = "".join(f"{widths.get(name, 'N/A'):{width}}" for name, width in _FIELDS.items())
    calls = fake_squeue(tmp_path, monkeypatch, f"test -e {tmp_path}/gone || echo '{line}'")
    run = WrittenRun(tmp_path / "runs")
    run.start(0)
    run.start(1)
    looks: list[tuple[str, bool]] = []

    def look(statuses: list[RunStatus]) -> None:
        looks.append((statuses[0].state, statuses[0].over))
        if len(looks) == 1:
            run.finish()
        if len(looks) == 3:
            (tmp_path / "gone").touch()

    wait_for([run.paths], timeout_s=30, on_update=look)
    assert looks[0] == ("running", False) and looks[1] == ("completed", False) and looks[-1] == ("completed", True)
    assert len(looks) < 12, "an answer of before the end was believed for ten seconds"
    assert 2 <= len(calls.read_text().splitlines()) <= 4
    before = len(calls.read_text().splitlines())
    scheduler = Scheduler()
    run.age(60)
    for _ in range(3):
        run_status([run.paths], scheduler)
    assert len(calls.read_text().splitlines()) == before + 1, "what has been done for long does not hurry"
    other = WrittenRun(tmp_path / "runs", "demo-2", job_id="13")
    other.start(0)
    scheduler = Scheduler()
    run_status([run.paths, other.paths], scheduler)
    run.age(-70)
    monkeypatch.setattr("dptrain.status.state.SOONEST_S", 0.0)
    run_status([run.paths, other.paths], scheduler)
    assert len(calls.read_text().splitlines()) == before + 2, "nor does one of several"


def test_waiting_asks_the_scheduler_less_often_than_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_squeue(tmp_path, monkeypatch, "echo squeue: error: cannot connect >&2; exit 1")
    run = WrittenRun(tmp_path / "runs")
    seen: list[str] = []
    with pytest.raises(WaitTimeout, match="it goes on"):
        wait_for([run.paths], timeout_s=1.6, on_update=lambda statuses: seen.append(statuses[0].state))
    assert len(seen) >= 3 and set(seen) == {"unknown"}
    assert len(calls.read_text().splitlines()) == 1


@pytest.mark.slurm
def test_waiting_for_what_is_impossible_ends(
    slurm: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = PROFILE.replace("partition: main", "partition: short")
    (tmp_path / "config" / "dptrain" / "clusters" / "short.yaml").write_text(short)
    paths, plan, profile = tiny_run("short", tmp_path, "resources.time_min=30")
    (job_id,) = submit_slurm([paths], plan, profile)
    monkeypatch.setattr("dptrain.status.wait.IMPOSSIBLE_S", 0.5)
    try:
        with pytest.raises(RunFailed, match=r"PartitionConfig|PartitionTimeLimit") as caught:
            wait_for([paths], timeout_s=60, scheduler=Scheduler(1.0))
        assert f"job {job_id} cannot start" in str(caught.value)
        assert f"dptrain cancel {paths.run_id}" in str(caught.value)
        assert slurm.wait_state(job_id, "PENDING") == "PENDING"
    finally:
        slurm.command("scancel", job_id)


def test_the_summary_says_what_its_psnr_is_of(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, steps=6)
    run.finish()
    (status,) = run_status([run.paths])
    write_json(run.paths.result, {"psnr_db": [20.0, 22.0, 25.0], "images": [{}, {}, {}]})
    several = "PSNR 20.00 dB (first iterate) -> 25.00 dB (after 2 iterations, mean over 3 images)"
    assert several in result_lines(status, run.paths)
    write_json(run.paths.result, {"psnr_db": [20.0, 22.0, 25.0], "images": [{}]})
    assert "PSNR 20.00 dB (first iterate) -> 25.00 dB (after 6 steps)" in result_lines(status, run.paths)
    write_json(run.paths.result, {"psnr_db": [20.0, None, None], "images": [{}]})
    assert "PSNR 20.00 dB (first iterate) -> exact (after 6 steps)" in result_lines(status, run.paths)


def test_waiting_ends_with_the_last_run(tmp_path: Path) -> None:
    runs = [WrittenRun(tmp_path, f"demo-{i}") for i in range(2)]
    for run in runs:
        run.finish()
    assert [status.run for status in wait_for([run.paths for run in runs], timeout_s=30)] == ["demo-0", "demo-1"]


def test_a_forgotten_job_is_judged_by_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_squeue(tmp_path, monkeypatch, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    run = WrittenRun(tmp_path / "runs")
    run.start(0)
    run.fail(0)
    (status,) = run_status([run.paths], Scheduler())
    assert status.state == "failed: exception" and status.over


def test_age_is_that_of_the_newest_record(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, created_s=time.time() - 500)
    run.paths.attempt(1).rank_events(0).write_text(f'{{"kind": "start", "t": {time.time() - 100}}}\n')
    (status,) = run_status([run.paths])
    assert 99 < status.age_s < 400
    assert status.ranks[0].last_seen_s is not None and status.ranks[0].last_seen_s > 99


def test_long_event_files_are_read_at_both_ends(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, world_size=1, steps=5000)
    log = run.log(0)
    log.write("start", host="n1", pid=1)
    for step in range(1, 5001):
        log.write("step", step=step, seconds=0.5, psnr_db=20.0, loss=None, peak_memory_bytes=step, bytes_sent=64)
    log.write("final", step=5000, steps=5000)
    path = run.paths.attempt(1).rank_events(0)
    assert path.stat().st_size > 2 * (HEAD_BYTES + TAIL_BYTES)
    events = read_edges(path)
    assert events[0]["kind"] == "start" and events[-1]["kind"] == "final" and len(events) < 2500
    (status,) = run_status([run.paths])
    assert status.state == "completed" and status.ranks[0].host == "n1"


@pytest.mark.parametrize("size", [1_000, 200_000])
def test_a_last_line_of_any_length_is_read(tmp_path: Path, size: int) -> None:
    run = WrittenRun(tmp_path, world_size=1, steps=2000)
    log = run.log(0)
    log.write("start", host="n1", pid=1)
    for step in range(1, 2001):
        log.write("step", step=step, seconds=0.5, psnr_db=20.0, loss=None, peak_memory_bytes=step, bytes_sent=64)
    log.write("final", step=2000, steps=2000, tiles=list(range(size // 5)))
    (status,) = run_status([run.paths])
    assert status.state == "completed" and status.ranks[0].host == "n1"


def test_ranks_of_an_ended_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_squeue(tmp_path, monkeypatch, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    run = WrittenRun(tmp_path / "runs", world_size=4)
    for rank in range(4):
        run.start(rank)
    run.fail(0, secondary=True)
    run.fail(1, "cancelled")
    run.batch_log("srun: error: n3: task 2: Killed\n")
    (status,) = run_status([run.paths])
    assert [rank.state for rank in status.ranks] == [
        "failed: exception (secondary)",
        "cancelled",
        "failed: killed",
        "gone",
    ]


def test_an_injected_fault_is_told(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, launcher="local", faults="kill@rank=1,step=1,attempt=1")
    run.start(0)
    run.start(1)
    run.fail(1)
    run.launcher("ended", exitcode=1)
    (status,) = run_status([run.paths])
    assert status.to_json()["faults"] == "kill@rank=1,step=1,attempt=1"
    assert "injected: kill@rank=1" in (remark(status) or "")
    assert "injected on purpose: kill@rank=1" in failure_text(status, run.paths)


WRONG: list[tuple[Callable[[WrittenRun], None], object, str, str]] = [
    (
        states.no_final,
        job("COMPLETED"),
        "incomplete",
        "rank 1 on n2 at step 1: rank 1 has no final record, and stopped at step 1 of 3",
    ),
    (states.half, job("COMPLETED"), "incomplete", "incomplete: rank 1 at step 0: rank 1 never reported"),
    (states.too_few_steps, job("COMPLETED"), "incomplete", "rank 1 on n2 at step 2: rank 1 stopped at step 2 of 3"),
    (states.nothing, job("COMPLETED"), "incomplete", "rank 0 never reported"),
    (states.done, "forgotten", "completed", ""),
    (states.going, "forgotten", "failed: unknown", "the scheduler says no longer known; rank 0 has no final record"),
    (states.done, job("FAILED"), "completed", "every rank finished, but the scheduler says FAILED"),
    (states.nothing, job("BRAND_NEW"), "unknown", "the scheduler says BRAND_NEW"),
    (states.going, job("BRAND_NEW"), "running", "the scheduler says BRAND_NEW"),
    (states.nothing, "unanswered", "unknown", "the scheduler does not answer"),
]
"""What is wrong on purpose; the state in the row, and what is said below it."""


@pytest.mark.parametrize(
    ("records", "info", "state", "words"),
    WRONG,
    ids=[f"{r.__name__}-{getattr(i, 'raw_state', i)}" for r, i, _, _ in WRONG],
)
def test_what_is_wrong_on_purpose_yields_the_right_line(
    tmp_path: Path, records: Callable[[WrittenRun], None], info: object, state: str, words: str
) -> None:
    run = WrittenRun(tmp_path)
    records(run)
    (status,) = run_status([run.paths], Said(info))
    row = table_row(status)
    assert row[:2] == ("demo-1", state) and row[-1].split(",")[0] in ("records", "scheduler", "none")
    assert words in (remark(status) or "") and bool(words) == bool(remark(status))


def test_logs_of_a_failure_begin_with_its_traceback(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, world_size=3)
    for rank in range(3):
        run.start(rank)
        run.paths.attempt(1).rank_log(rank).write_text(f"log of {rank}\n")
    run.fail(2, traceback="Traceback (most recent call last):\n  here\nValueError: no\n")
    run.fail(0, secondary=True, message="RuntimeError: Connection closed by peer")
    run.fail(1, "cancelled", signal="SIGTERM")
    (status,) = run_status([run.paths], Said(job("FAILED")))
    assert first_words(status) == [
        "==> failed first: rank 2 on n3 at step 1: exception <==",
        "Traceback (most recent call last):",
        "  here",
        "ValueError: no",
        "==> rank 0 on n1: failed: exception (secondary): RuntimeError: Connection closed by peer <==",
        "",
    ]
    titles = [log.title for log in logs_of(run.paths, status, failed_first=True)]
    assert [title.split()[1] for title in titles] == ["2", "0", "1"]
    assert first_words(run_status([WrittenRun(tmp_path, "other").paths], Said(job("RUNNING")))[0]) == []


def test_history_names_what_the_state_named(tmp_path: Path) -> None:
    """Of an attempt that a killed rank ended, not what the others lost by it."""
    run = WrittenRun(tmp_path, launcher="local", job_id="1", host="elsewhere")
    for rank in range(2):
        run.start(rank)
        run.step(rank, 1)
    run.fail(0, "exception", secondary=True, step=2)
    run.launcher("exit", rank=1, signal="SIGKILL", exitcode=-9, host="n2")
    run.launcher("exit", rank=0, signal=None, exitcode=1, ended_by_launcher=True)
    run.launcher("ended", exitcode=1)
    (before,) = run_status([run.paths])
    assert before.state == "failed: killed" and before.failure is not None and before.failure.rank == 1
    run.start(0, 2)
    (after,) = run_status([run.paths])
    assert after.history == ("attempt 1: killed at step 1",)
