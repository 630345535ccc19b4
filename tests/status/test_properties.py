"""Whatever the files hold, status has an answer, and never says completed of a run that is not."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dptrain.records.events import Event
from dptrain.records.paths import RunPaths
from dptrain.scheduler.states import STATE_WORDS
from dptrain.status.collect import read_run
from dptrain.status.decide import decide
from dptrain.status.state import run_status
from tests.status.helpers import WrittenRun, job

KINDS = ["start", "phase", "steps", "step", "heartbeat", "save", "signal", "requeue", "final", "failure", "odd"]
LAUNCHER_KINDS = ["launched", "exit", "ended", "cancel", "odd"]
VALUES: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.floats(),
    st.sampled_from(["n1", "cancelled", "setup", "SIGKILL", ""]),
)
KEYS = [
    "step",
    "steps",
    "rank",
    "class",
    "host",
    "pid",
    "secondary",
    "phase",
    "exitcode",
    "signal",
    "message",
    "reason",
    "seconds",
    "t",
]


def events(kinds: list[str]) -> st.SearchStrategy[list[Event]]:
    """Events of any order with fields of any type."""
    one = st.tuples(st.sampled_from(kinds), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
    return st.lists(one.map(lambda pair: {"kind": pair[0], "t": 1.0, **pair[1]}), max_size=6)


ATTEMPT = st.tuples(st.lists(events(KINDS), max_size=3), events(LAUNCHER_KINDS))
INFO: Any = st.one_of(
    st.sampled_from(["forgotten", "unanswered"]),
    st.builds(
        job,
        st.sampled_from([*STATE_WORDS, "ODD", ""]),
        st.sampled_from(["", "Resources", "BadConstraints"]),
        st.integers(0, 2),
    ),
)
LOGS = st.lists(
    st.sampled_from(
        [
            "srun: error: n2: task 1: Killed",
            "srun: error: n[1-2]: tasks 0,1-3: Exited with exit code 1",
            "srun: error: n1: tasks 3-1: Out Of Memory",
            "srun: error: Node failure on n2",
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "dptrain: setup line failed with exit code 1: false",
            "noise",
        ]
    ),
    max_size=3,
)


def write(run: WrittenRun, attempts: list[tuple[list[list[Event]], list[Event]]], torn: bool) -> None:
    for number, (ranks, launcher) in enumerate(attempts, start=1):
        paths = run.paths.attempt(number)
        paths.dir.mkdir(exist_ok=True)
        for rank, lines in enumerate(ranks):
            text = "".join(json.dumps(event) + "\n" for event in lines)
            paths.rank_events(rank).write_text(text[:-3] if torn else text)
        paths.launcher_events.write_text("".join(json.dumps(event) + "\n" for event in launcher))


@settings(max_examples=300, deadline=None)
@given(
    attempts=st.lists(ATTEMPT, max_size=2),
    info=INFO,
    launcher=st.sampled_from(["local", "slurm"]),
    submission=st.sampled_from(["submitting", "submitted", "refused", "dry-run"]),
    log=LOGS,
    later_s=st.sampled_from([-5.0, 0.0, 50.0, 1e6]),
    torn=st.booleans(),
)
def test_always_an_answer_and_completed_only_when_all_ranks_are(
    attempts: list[tuple[list[list[Event]], list[Event]]],
    info: Any,
    launcher: str,
    submission: str,
    log: list[str],
    later_s: float,
    torn: bool,
) -> None:
    with tempfile.TemporaryDirectory() as root:
        run = WrittenRun(Path(root), launcher=launcher, submission=submission, job_id=None)
        write(run, attempts, torn)
        run.batch_log("\n".join(log))
        records = read_run(run.paths)
        decision = decide(records, info, time.time() + later_s)
        (status,) = run_status([run.paths])
        json.dumps(status.to_json(ranks=True), allow_nan=False)
    assert decision.state
    if decision.state == "completed":
        latest = records.latest
        assert latest is not None
        done = [r for r in latest.ranks if r.final and r.step >= run.steps]
        assert {r.rank for r in done} >= set(range(run.world_size))


@given(st.lists(st.sampled_from(["final", "last step", "neither"]), min_size=1, max_size=4), INFO)
@settings(max_examples=100, deadline=None)
def test_completed_exactly_when_every_rank_has_both(ranks: list[str], info: Any) -> None:
    with tempfile.TemporaryDirectory() as root:
        run = WrittenRun(Path(root), world_size=len(ranks))
        for rank, what in enumerate(ranks):
            run.start(rank)
            run.step(rank, run.steps if what == "last step" else 1)
            if what == "final":
                run.step(rank, run.steps)
                run.final(rank)
        decision = decide(read_run(run.paths), info, time.time())
    if any(what != "final" for what in ranks):
        assert decision.state != "completed"


def test_unreadable_intent_is_one_line_of_the_table(tmp_path: Path) -> None:
    good = WrittenRun(tmp_path, "good-1")
    good.finish()
    bad = RunPaths(tmp_path / "bad-1")
    bad.create()
    bad.intent.write_text("{")
    first, second = run_status([bad, good.paths])
    assert first.state == "unknown" and "intent.json" in (first.reason or "")
    assert second.state == "completed"
