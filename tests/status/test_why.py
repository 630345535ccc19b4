"""What `status --why` tells a person: every state has its paragraph, and every paragraph its command."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dptrain.records.intent import write_json
from dptrain.status.advice import TABLE, row_of
from dptrain.status.excerpt import excerpt
from dptrain.status.model import BAD, RunStatus, first_word
from dptrain.status.state import run_status
from dptrain.status.why import Explanation, explain
from tests.status import test_decide as states
from tests.status.helpers import Said, WrittenRun, job


def why(run: WrittenRun, info: object = "forgotten") -> tuple[RunStatus, Explanation]:
    (status,) = run_status([run.paths], Said(info))
    return status, explain(run.paths, status)


def typed(told: Explanation) -> str:
    return "\n".join(advice.command or "" for advice in told.advice)


def said(told: Explanation) -> str:
    return "\n".join(told.text())


@pytest.mark.parametrize(
    ("records", "info", "state"),
    states.TABLE,
    ids=[f"{r.__name__}-{getattr(i, 'raw_state', i)}-{s}" for r, i, s in states.TABLE],
)
def test_every_state_of_the_table_is_explained(
    tmp_path: Path, records: Callable[[WrittenRun], None], info: object, state: str
) -> None:
    run = WrittenRun(tmp_path)
    records(run)
    status, told = why(run, info)
    assert status.state == state and told.kind == row_of(status)
    if first_word(state) in ("failed", "unknown"):
        assert told.kind == state, "it has a row of its own"
    assert said(told).startswith(f"demo-1: {state}\nfirst: ") and told.advice
    if first_word(state) in BAD:
        assert re.search(r"^dptrain (resume|infer) ", typed(told), re.MULTILINE), typed(told)
    assert json.dumps(told.to_json())


CLASSES: list[tuple[str, str, str]] = [
    ("out-of-memory (device)", "dptrain resume demo-1 --set tiling.max_batch_size=1", "its GPU"),
    ("out-of-memory (host)", "dptrain resume demo-1 --set tiling.max_batch_size=1", "was refused memory of its host"),
    ("out-of-memory", "dptrain resume demo-1", "likely"),
    ("exception", "dptrain logs demo-1 --failed", "raised an exception"),
    ("killed", "dptrain resume demo-1", "likely, but not certain"),
    ("node-failure", "dptrain resume demo-1", "exclude: n2"),
    ("never-started", "dptrain logs demo-1", "/opt/site/python"),
    ("setup", "dptrain resume demo-1", "before the first step"),
    ("stalled", "dptrain resume demo-1 --set run.stall_timeout_s=80", "allow it"),
    ("diverged", "--set algorithm.sigma=0.1", "another run"),
    ("disk-full", "dptrain clean --all-completed", "are free now"),
    ("world-mismatch", "dptrain resume demo-1", "planned 2 ranks"),
    ("unknown", "dptrain logs demo-1 --failed", "nobody said why"),
]
"""Class of a failure; what is to be typed; what is said."""


@pytest.mark.parametrize(("kind", "command", "words"), CLASSES, ids=[kind for kind, _, _ in CLASSES])
def test_every_class_of_failure_has_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, command: str, words: str
) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    run = WrittenRun(tmp_path)
    run.paths.submission.write_text(
        "#!/bin/bash\nexec srun --label /opt/site/python -P -u -m submitit.core._submit s\n"
    )
    states.going(run)
    message = "WorldMismatch: planned 2 ranks" if kind == "world-mismatch" else "it broke\nfor a reason"
    run.fail(1, kind, message=message, signal="SIGKILL" if kind == "killed" else None)
    run.fail(0, secondary=True, message="RuntimeError: Connection closed by peer\n[...]")
    run.paths.attempt(1).rank_log(1).write_text("step 1/3\nTraceback (most recent call last):\n  a\nit broke\n")
    status, told = why(run, job("FAILED"))
    assert status.state == f"failed: {kind}" and told.kind == status.state
    assert command in typed(told).splitlines() or command in typed(told)
    assert words in said(told)
    assert "rank 1 on n2" in told.what and "after step 1 of 3" in told.what and "for a reason" not in told.what
    assert told.others == ("rank 0 on n1: failed: exception (secondary): RuntimeError: Connection closed by peer",)
    assert told.log == run.paths.attempt(1).rank_log(1)
    assert told.lines == (("step 1/3", *TRACEBACK) if kind != "stalled" else told.lines)


def test_a_stall_in_set_up_has_another_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    run = WrittenRun(tmp_path)
    run.start(0)
    run.fail(0, "stalled", message="set-up made no progress for 600 s")
    assert "run.setup_timeout_s=" in typed(why(run, job("FAILED"))[1])


TRACEBACK = ("Traceback (most recent call last):", "  a", "it broke")


def test_every_row_is_reached() -> None:
    reached = {state for _, _, state in states.TABLE} | {f"failed: {kind}" for kind, _, _ in CLASSES}
    words = {first_word(state) for state in reached if not state.startswith("failed")}
    missing = TABLE.keys() - reached - words - {"submitting", "never-submitted", "stalled"}
    assert not missing, "rows that no test of this module has seen"


def test_before_it_is_submitted(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, submission="submitting", job_id=None)
    assert "squeue --me" in typed(why(run)[1])
    run.change(submission="refused", refusal="invalid partition")
    _, told = why(run)
    assert "invalid partition" in told.what and "dptrain resume" in typed(told)
    run.change(submission="dry-run", refusal=None)
    assert "it was a dry run" in said(why(run)[1])


def test_a_queued_run_says_whether_it_can_ever_start(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    assert "Resources" in said(why(run, job("PENDING", "Resources"))[1])
    assert "held by its owner" in said(why(run, job("PENDING", "JobHeldUser"))[1])
    _, told = why(run, job("PENDING", "PartitionTimeLimit"))
    assert "will never start" in said(told) and "PartitionTimeLimit" in said(told)
    assert typed(told).splitlines()[0].startswith("dptrain cancel ")


def test_a_time_out_names_a_limit_that_is_enough(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, steps=1000)
    for rank in (0, 1):
        run.start(rank)
        run.step(rank, 400, seconds=6.0)
    (run.paths.save(300)).mkdir()
    _, told = why(run, job("TIMEOUT"))
    assert "700 steps of 6.00 s are left" in said(told) and "it goes on from step 300" in said(told)
    assert "resources.time_min=90" in typed(told), "70 min, a quarter more, and two minutes"


def test_a_run_that_is_stalled_now(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    states.going(run)
    for rank in (0, 1):
        path = run.paths.attempt(1).rank_events(rank)
        path.write_text(re.sub(r'"t": [\d.]+', f'"t": {time.time() - 300}', path.read_text()))
    status, told = why(run, job("RUNNING"))
    assert status.state == "stalled" and "dptrain cancel" in typed(told) and "not over yet" in said(told)


def test_the_setup_line_and_the_interpreter_are_named(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    states.bad_setup(run)
    _, told = why(run, job("FAILED"))
    assert "module load nope" in told.what and "`setup` of the cluster profile" in said(told)
    assert told.lines == ("dptrain: setup line failed with exit code 1: module load nope",)
    write_json(run.paths.environment, {"executable": "/opt/own/python"})
    states.no_python(run)
    _, told = why(run, job("FAILED"))
    assert "/opt/own/python" in said(told) and "execve(): /nope/python" in said(told)


def test_a_divergence_says_what_is_kept_and_what_calms_it(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.paths.spec.write_text("name: demo\nalgorithm: {step_size: 0.5}\ndenoiser: {weights: random}\n")
    (run.paths.output / "last-good.npy").write_bytes(b"")
    states.going(run)
    run.fail(1, "diverged")
    _, told = why(run, job("FAILED"))
    assert "output/last-good.npy" in said(told)
    for change in ("denoiser.weights=builtin", "algorithm.step_size=auto", "algorithm.sigma=0.1"):
        assert f"dptrain infer {run.paths.spec} --set {change}" in typed(told).splitlines()
    run.change(task="train")
    run.paths.spec.write_text("name: demo\ntrain: {learning_rate: 1.0e-3}\n")
    assert f"dptrain train {run.paths.spec} --set train.learning_rate=0.0001" in typed(why(run, job("FAILED"))[1])


def test_memory_of_a_card_is_told_with_plans_terms(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    terms = {"images": 0.5, "tile_batch": 6.25}
    write_json(run.paths.plan, {"memory": {"peak_gib": 7.5, "terms": terms, "capacity_gib": 16}, "disk": {}})
    run.event(1, "start", rank=1, host="n2", device="cuda")
    run.event(1, "failure", **{"class": "out-of-memory (device)"}, step=0, message="x", peak_memory_bytes=15 * 2**30)
    _, told = why(run, job("FAILED"))
    assert "plan forecasts 7.5 GiB" in said(told) and "the card has 16 GiB" in said(told)
    assert "tile_batch, one batch of tiles inside the network: 6.2 GiB" in said(told)
    assert "rank 1 had up to 15.0 GiB" in said(told)
    # Of the host's memory the card's terms say nothing.
    run.event(0, "start", rank=0, host="n1", device="cuda")
    run.event(0, "failure", **{"class": "out-of-memory (host)"}, t=0.0, step=0, message="x")
    _, told = why(run, job("FAILED"))
    assert told.what.startswith("rank 0 on n1") and "mem_per_node_gib" in said(told) and "6.2 GiB" not in said(told)


def test_a_command_names_the_folder_of_a_run_that_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = WrittenRun(tmp_path / "of others")
    states.raised(run)
    assert f"dptrain resume '{run.paths.dir}'" in typed(why(run, job("FAILED"))[1])
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "of others"))
    assert "dptrain resume demo-1" in typed(why(run, job("FAILED"))[1])


def test_damaged_files_are_no_reason_to_say_nothing(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.paths.plan.write_text("[" * 100_000)
    run.paths.spec.write_text("a: &a [*a]")
    run.paths.submission.write_text("exec srun 'x\n")
    run.paths.environment.mkdir()
    run.paths.attempt(1).rank_log(1).mkdir()
    states.going(run)
    for kind, _, _ in CLASSES:
        run.paths.attempt(1).rank_events(1).unlink()
        run.start(1)
        run.fail(1, kind)
        _, told = why(run, job("FAILED"))
        assert told.kind == f"failed: {kind}" and told.advice


def test_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert excerpt(log) == ()
    log.write_text("".join(f"{i}\n" for i in range(40)))
    assert excerpt(log) == tuple(str(i) for i in range(32, 40))
    trace = "".join(f"  frame {i}\n" for i in range(20))
    chain = "Traceback (most recent call last):\nOSError: a\n\nDuring handling of the above exception, another\n\n"
    log.write_text(f"Traceback (most recent call last):\nof long ago\nstep 1\rstep 2\r\n\x1b[31mb\x1b[0m\n{chain}")
    with log.open("a") as file:
        file.write(f"Traceback (most recent call last):\n{trace}ValueError: c\n")
    lines = excerpt(log)
    assert lines[:5] == ("of long ago", "step 2", "b", "Traceback (most recent call last):", "OSError: a")
    assert "..." in lines and lines[-1] == "ValueError: c" and len(lines) == 15
    log.write_text(
        "Thread 0x1 (most recent call first):\n  watch\nThread 0x2 (most recent call first):\n  inner\n  outer\n"
    )
    assert excerpt(log, stalled=True) == ("Thread 0x2 (most recent call first):", "  inner", "  outer")


@pytest.mark.parametrize("steps", [0, 1])
def test_stacks_are_looked_for_where_they_are(steps: int, tmp_path: Path) -> None:
    """A frozen rank has written none; and after a step the network is not to blame."""
    run = WrittenRun(tmp_path)
    for rank in range(2):
        run.start(rank)
        if steps:
            run.step(rank, steps)
    run.fail(0, "stalled", waiting=True, message="no progress for 40 s")
    _, told = why(run, job("FAILED"))
    command = told.advice[0].command
    assert "rank 1" in told.what and command is not None and command.endswith("demo-1 --rank 0")
    assert any("interface" in advice.text for advice in told.advice) == (steps == 0)
