"""How ranks leave to be started again on SLURM: what is counted as a time-out, and what a refusal is called."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from dptrain.engine import requeue
from dptrain.engine.context import RankEnvironment
from dptrain.engine.session import STARTED_S, NotRestarted, job_began_s
from dptrain.records.events import EventLog, read_events
from dptrain.records.paths import RunPaths
from dptrain.scheduler.sbatch import JOB_BEGAN
from dptrain.spec.schema import Run
from tests.ranks import RankPool

LIMIT_MIN = 10


def session_of(rank: int, folder: Path) -> Any:
    """As much of a session as leaving looks at, of a run with a limit of ten minutes."""
    paths = RunPaths(folder)
    attempt = paths.attempt(1)
    attempt.dir.mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(
        first=rank == 0,
        paths=paths,
        env=SimpleNamespace(launcher="slurm", job_id="12", attempt=1),
        intent=SimpleNamespace(asked_attempt=1),
        spec=SimpleNamespace(run=Run(signal_lead_s=90), resources=SimpleNamespace(time_min=LIMIT_MIN)),
        started_s=job_began_s(),
        requests=SimpleNamespace(leaving=False),
        events=EventLog(attempt.rank_events(rank)),
    )


@pytest.mark.parametrize(
    ("before_s", "reason"), [(LIMIT_MIN * 60 - 90, "timed-out"), (LIMIT_MIN * 60 - 140, "timed-out"), (60, "preempted")]
)
def test_setup_lines_count_for_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_s: float, reason: str
) -> None:
    monkeypatch.setenv(JOB_BEGAN, str(int(time.time() - before_s)))
    assert requeue._judge(session_of(0, tmp_path / "run")) == (reason, None)


@pytest.mark.parametrize("said", [None, "", "soon"])
def test_without_the_scripts_word_the_job_began_with_the_process(
    monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    monkeypatch.setenv(JOB_BEGAN, said) if said is not None else monkeypatch.delenv(JOB_BEGAN, raising=False)
    assert job_began_s() == STARTED_S


def leave(env: RankEnvironment, folder: str, path: str) -> str:
    """What becomes of a rank that asks to be started again."""
    session = session_of(env.rank, Path(folder))
    changes = (
        patch.dict(os.environ, PATH=path),
        patch.object(requeue, "ASK_PAUSES_S", (0.0, 0.0)),
        patch.object(requeue, "LEAVE_S", 0.0),
        patch.object(os, "_exit", sys.exit),
    )
    with changes[0], changes[1], changes[2], changes[3]:
        try:
            requeue.leave_for_requeue(session, 7)
        except NotRestarted as error:
            return f"{error.reason}: {error}"
        except SystemExit as left:
            return f"left with {left.code}"


REFUSED = 'echo asked >> "$0.calls"; echo "Requested operation is presently disabled" >&2; exit 1\n'
AT_SECOND = f'[ -e "$0.calls" ] && exit 0\n{REFUSED}'


@pytest.mark.parametrize(("script", "asked"), [(REFUSED, 2), (AT_SECOND, 1), ("exit 0\n", 0)])
def test_a_refused_requeue_ends_every_rank_with_the_reason(
    ranks: RankPool, tmp_path: Path, script: str, asked: int
) -> None:
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    told = ranks.run(2, leave, str(tmp_path / "run"), f"{program.parent}:{os.environ['PATH']}")
    calls = program.with_name("scontrol.calls")
    assert (len(calls.read_text().splitlines()) if calls.exists() else 0) == asked
    if asked < 2:
        assert told == ["left with 75"] * 2
    else:
        for words in told:
            assert words.startswith("preempted: preempted after step 7, which is saved"), words
            assert "presently disabled" in words and "restart: resubmit" in words
    for rank in range(2):
        (event,) = read_events(RunPaths(tmp_path / "run").attempt(1).rank_events(rank))
        assert event["kind"] == "requeue" and event["step"] == 7
