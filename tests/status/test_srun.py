"""Lines of batch logs and what they mean."""

from __future__ import annotations

import pytest

from dptrain.status.srun import expand_tasks, parse_srun

LINES = [
    ("srun: error: n2: task 3: Killed", ("killed", (3,), "n2", "SIGKILL", None)),
    ("srun: error: n2: task 3: Terminated", ("killed", (3,), "n2", "SIGTERM", None)),
    ("srun: error: n1: task 0: Segmentation fault (core dumped)", ("killed", (0,), "n1", "SIGSEGV", None)),
    ("srun: error: n1: task 0: Segmentation fault", ("killed", (0,), "n1", "SIGSEGV", None)),
    ("srun: error: n1: task 1: Aborted (core dumped)", ("killed", (1,), "n1", "SIGABRT", None)),
    ("srun: error: n1: task 1: Bus error", ("killed", (1,), "n1", "SIGBUS", None)),
    ("srun: error: n[1-2]: tasks 0,2-3: Exited with exit code 1", ("exited", (0, 2, 3), "n[1-2]", None, 1)),
    ("srun: error: n1: task 0: Out Of Memory", ("out-of-memory", (0,), "n1", None, None)),
    ("srun: error: Node failure on n2", ("node-failure", (), "n2", None, None)),
    ("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2024-01-31T10:00:00 ***", None),
    ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-31T10:00:00 ***", ("cancelled", (), "n1", None, None)),
    (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-31T10:00:00 DUE TO TIME LIMIT ***",
        ("time-limit", (), "n1", None, None),
    ),
    (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-31T10:00:00 DUE TO PREEMPTION ***",
        ("preempted", (), "n1", None, None),
    ),
    (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-31T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        ("node-failure", (), None, None, None),
    ),
    ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-31T10:00:00 DUE TO JOB REQUEUE ***", None),
    (
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been killed",
        ("out-of-memory", (), None, None, None),
    ),
    ("slurmstepd: error: execve(): /no/python: No such file or directory", ("launch", (), None, None, None)),
    (
        "srun: error: Unable to create step for job 12: Requested node configuration is not available",
        ("launch", (), None, None, None),
    ),
    ("0: slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-29T15:57:15 ***", None),
    (
        "slurmstepd-n1: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-29T15:59:40 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        ("node-failure", (), None, None, None),
    ),
    ("srun: Force Terminated StepId=2.0", None),
    ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", None),
    ("srun: launch/slurm: _step_signal: Terminating StepId=12.0", None),
    ("3: an ordinary line of rank 3", None),
    ("srun: error: n1: task 0: Something new", None),
]


@pytest.mark.parametrize(("line", "expected"), LINES, ids=[line[:60] for line, _ in LINES])
def test_line(line: str, expected: object) -> None:
    found = [(m.kind, m.tasks, m.host, m.signal, m.exit_code) for m in parse_srun(line)]
    assert found == ([expected] if expected else [])


def test_order_is_kept() -> None:
    log = "a\nsrun: error: n2: task 3: Killed\nb\nsrun: error: n1: task 0: Terminated\n"
    assert [m.tasks for m in parse_srun(log)] == [(3,), (0,)]


def test_tasks() -> None:
    assert expand_tasks("0,2-4") == (0, 2, 3, 4)
    assert expand_tasks("4-2") == ()
