"""What the batch log says of setup lines, of the end after the last records, and of later attempts: one answer at all times."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrain.scheduler.sbatch import JOB_BEGINS, RANKS_START, SETUP_FAILED
from dptrain.status.collect import read_run
from dptrain.status.decide import Decision, decide
from dptrain.status.state import run_status
from tests.status import test_decide as states
from tests.status.helpers import Said, WrittenRun, job

TASKS = [
    "srun: error: n1: task 0: Exited with exit code 1",
    "srun: error: n2: task 1: Killed",
    "srun: error: n[1-2]: tasks 0-1: Out Of Memory",
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been killed",
    "slurmstepd: error: execve(): /nope: No such file or directory",
    "srun: error: Unable to create step for job 12: More processors requested than permitted",
]
JOBS = [
    "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***",
    "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***",
    "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***",
    "noise",
]
REQUEUED = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO JOB REQUEUE ***"
BAD_ENDS = ["FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "CANCELLED", "PREEMPTED"]


def answer(run: WrittenRun, info: object, log: list[str]) -> Decision:
    run.batch_log("".join(f"{line}\n" for line in log))
    return decide(read_run(run.paths), info, time.time())  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    records=st.sampled_from([states.nothing, states.going, states.done]),
    info=st.sampled_from([job("RUNNING"), job("COMPLETED"), job("FAILED"), "forgotten", "unanswered"]),
    setup=st.lists(st.sampled_from(TASKS), min_size=1, max_size=3),
    cut=st.booleans(),
    ranks=st.booleans(),
)
def test_steps_of_setup_lines_say_nothing_of_the_ranks(
    records: Callable[[WrittenRun], None], info: object, setup: list[str], cut: bool, ranks: bool
) -> None:
    with tempfile.TemporaryDirectory() as root:
        run = WrittenRun(Path(root))
        records(run)
        start = [RANKS_START] if ranks or cut or records is not states.nothing else []
        began = [] if cut else [JOB_BEGINS]
        assert answer(run, info, [*began, *setup, *start]).state == answer(run, info, [*began, *start]).state


def test_what_ends_the_job_counts_in_the_setup_too(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    assert answer(run, "forgotten", [JOB_BEGINS, JOBS[1]]).state == "timed-out"
    assert answer(run, "forgotten", [JOB_BEGINS, JOBS[2]]).state == "cancelled"


@settings(max_examples=25, deadline=None)
@given(
    setup=st.lists(st.sampled_from(TASKS), max_size=2),
    log=st.lists(st.sampled_from([*TASKS, *JOBS]), max_size=3),
    restarts=st.integers(0, 1),
    later=st.lists(st.sampled_from([REQUEUED, JOB_BEGINS, f"{SETUP_FAILED} 1: false", "noise"]), max_size=3),
)
def test_of_a_run_that_is_done_nothing_changes_when_slurm_forgets(
    setup: list[str], log: list[str], restarts: int, later: list[str]
) -> None:
    text = [JOB_BEGINS, *setup, RANKS_START, *log, *(later if restarts else [])]
    words = BAD_ENDS if set(log) & set(TASKS) else [*BAD_ENDS, "COMPLETED"]
    with tempfile.TemporaryDirectory() as root:
        run = WrittenRun(Path(root))
        run.finish()
        found = {
            answer(run, info, text).state for info in [*(job(word, restarts=restarts) for word in words), "forgotten"]
        }
        (status,) = run_status([run.paths], Said(job("FAILED", restarts=restarts)))
    assert len(found) == 1
    assert found == {status.state}


@pytest.mark.parametrize(
    ("word", "lines", "state"),
    [
        ("FAILED", [JOB_BEGINS, f"{SETUP_FAILED} 1: module load x"], "failed: setup"),
        ("FAILED", [f"{SETUP_FAILED} 1: module load x"], "failed: setup"),
        ("FAILED", [JOB_BEGINS, RANKS_START, TASKS[4]], "failed: never-started"),
        ("FAILED", [JOB_BEGINS, RANKS_START, TASKS[0]], "failed: never-started"),
        ("TIMEOUT", [JOB_BEGINS, JOBS[1]], "timed-out"),
        ("CANCELLED", [JOB_BEGINS, JOBS[2]], "cancelled"),
    ],
)
def test_an_attempt_that_no_rank_has_reported_of_is_told_also_when_forgotten(
    tmp_path: Path, word: str, lines: list[str], state: str
) -> None:
    run = WrittenRun(tmp_path)
    states.asked_again(run)
    # What ends the first attempt may come behind its restart.
    log = [JOB_BEGINS, RANKS_START, REQUEUED, "srun: error: n1: task 0: Exited with exit code 75"]
    assert answer(run, "forgotten", log).state == "preempted"
    known = answer(run, job(word, restarts=1), [*log, *lines])
    forgotten = answer(run, "forgotten", [*log, *lines])
    assert (known.state, forgotten.state) == (state, state)
    attempts = [run_status([run.paths], Said(info))[0].attempt for info in (job(word, restarts=1), "forgotten")]
    assert attempts == [2, 2]
