"""`resume` and `clean` on this machine: never started, killed, completed, running; what changes is kept and recorded."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
from typing import Any

import pytest

from dptrain.launch.locks import run_lock
from dptrain.records.events import read_events
from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.records.saves import save_steps
from tests.cli.cli import TINY, Cli
from tests.cli.test_local_runs import TRAIN, steps_of
from tests.local_runs import events, wait_for
from tests.status.helpers import WrittenRun

SAVING = TRAIN.replace("steps: 2", "steps: 100000, save_every_steps: 1")


def entry(cli: Cli) -> dict[str, Any]:
    (value,) = json.loads(cli("status", "last", "--json").out)
    assert isinstance(value, dict)
    return value


def only(cli: Cli) -> RunPaths:
    (paths,) = find_runs(cli.folder / "runs")
    return paths


def steps_of_attempt(paths: RunPaths, attempt: int) -> list[int]:
    return [e["step"] for e in read_events(paths.attempt(attempt).rank_events(0)) if e["kind"] == "step"]


@pytest.mark.acceptance
def test_a_dry_run_is_started_and_a_completed_run_is_left_alone_until_it_has_more_to_do(cli: Cli) -> None:
    assert cli("train", cli.write("learn.yaml", TRAIN), "--dry-run").code == 0
    done = cli("resume", "last")
    assert done.code == 0 and "has no save and begins at the beginning" in done.err, done.err
    assert entry(cli)["state"] == "completed" and only(cli).attempts() == [1]
    again = cli("resume", "last")
    assert (again.code, again.err) == (0, "") and "is completed: 2 of 2 steps" in again.out
    wrong = cli("resume", "last", "--set", "algorithm.iterations=3")
    assert wrong.code == 2 and "algorithm.iterations: 2 -> 3: the result would be another one" in wrong.err
    more = cli("resume", "last", "--gpus", "1", "--set", "train.steps=4", "--json")
    assert more.code == 0, more.err
    status = json.loads(more.out)
    assert (status["state"], status["step"], status["attempt"], status["world_size"]) == ("completed", 4, 2, 1)
    assert status["history"] == ["attempt 1: done at step 2"]
    paths = only(cli)
    plan = json.loads(paths.plan.read_text())
    assert [(o["key"], o["value"], o["origin"]) for o in plan["overrides"]] == [
        ("train.steps", "4", "--set"),
        ("resources.gpus", "1", "--gpus"),
    ]
    assert "gpus: 2" in paths.attempt(1).frozen(paths.spec).read_text() and "gpus: 1" in paths.spec.read_text()
    assert json.loads(paths.attempt(1).frozen(paths.plan).read_text())["world_size"] == 2
    assert [e["step"] for e in events(paths, 0, "step")] == [1, 2, 3, 4]


def test_a_killed_run_goes_on_from_its_save_and_is_cleaned(cli: Cli) -> None:
    with cli.start("train", cli.write("learn.yaml", SAVING)) as process:
        paths = steps_of(cli)
        refused = cli("resume", "last")
        assert refused.code == 2 and f"(job {read_intent(paths).job_id})" in refused.err and "running" in refused.err
        assert "only what has ended is cleaned" in cli("clean", "last").err
        os.kill(events(paths, 1, "start")[0]["pid"], signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode == 1
    reached = save_steps(paths)[-1]
    with cli.start("resume", "last", "--set", "tiling.max_batch_size=1", "--json") as process:
        wait_for(lambda: steps_of_attempt(paths, 2), "a step of attempt 2", 120)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    (resumed,) = re.findall(r"resumed from the save of step (\d+)", paths.attempt(2).rank_log(0).read_text())
    assert int(resumed) >= reached and steps_of_attempt(paths, 2)[0] == int(resumed) + 1
    assert entry(cli)["history"][0].startswith("attempt 1: ") and entry(cli)["state"] == "cancelled"
    paths.partial_save(77).mkdir()
    (paths.partial_save(77) / "state.pt").write_bytes(b"half")
    kept = save_steps(paths)[-1]
    (only_entry,) = json.loads(cli("clean", "last", "--dry-run", "--json").out)
    assert {r["what"] for r in only_entry["removed"]} == {"older save", "unfinished save", "meeting place"}
    assert len(save_steps(paths)) == 2, "a dry run removes nothing"
    done = cli("clean", "last")
    assert done.code == 0 and "unfinished save saves/.step-77.partial, 4 bytes" in done.out
    assert save_steps(paths) == [kept] and not paths.partial_save(77).exists()
    assert not any(paths.attempt(k).rendezvous.exists() for k in paths.attempts())


def test_resume_says_where_a_change_belongs(cli: Cli) -> None:
    cli("infer", cli.write("tiny.yaml", TINY), "--dry-run")
    both = cli("resume", "last", "--gpus", "1", "--set", "resources.gpus=1")
    assert both.code == 2 and "use one of them" in both.err
    with run_lock(only(cli)):
        for command in ("resume", "clean"):
            busy = cli(command, "last")
            assert busy.code == 2 and "another command is resuming or cleaning it" in busy.err
    assert cli("resume", "no-such-run").code == 5
    assert read_intent(only(cli)).submission == "dry-run" and only(cli).attempts() == [1]


def test_a_run_of_which_nobody_knows_is_resumed_by_force_alone(cli: Cli) -> None:
    assert cli("infer", cli.write("tiny.yaml", TINY), "--dry-run").code == 0
    paths = only(cli)
    update_intent(paths, submission="submitted", job_id="5", host="elsewhere")
    unknown = cli("resume", "last")
    assert unknown.code == 6 and "its host cannot be asked from here" in unknown.err and "--force" in unknown.err
    forced = cli("resume", "last", "--force", "--cluster", "nowhere")
    assert forced.code == 2 and "there is none called 'nowhere'" in forced.err


def test_clean_keeps_the_newest_save_that_is_whole_and_what_is_no_leftover(cli: Cli) -> None:
    run = WrittenRun(cli.folder / "runs", "demo-1", launcher="local", job_id="1", host="here")
    run.finish()
    run.launcher("ended", exitcode=0)
    paths = run.paths
    for step in (1, 2, 3):
        paths.save(step).mkdir()
        (paths.save(step) / "state.pt").write_bytes(b"x" * step)
        file = {"bytes": step, "sha256": hashlib.sha256(b"x" * step).hexdigest()}
        (paths.save(step) / "manifest.json").write_text(json.dumps({"step": step, "files": {"state.pt": file}}))
    (paths.save(3) / "state.pt").write_bytes(b"broken")
    array = RunPaths(cli.folder / "runs" / "arrays" / "part-1")
    for folder in (array.submitit, array.batch_log):
        folder.mkdir(parents=True)
    for call in (array.submitted_call("7_0"), array.submitted_call("7_1"), paths.submitted_call("12")):
        call.write_bytes(b"call")
    paths.batch_log_of("7_0").symlink_to(os.path.relpath(array.batch_log_of("7_0"), paths.batch_log))
    (paths.output / "reconstruction.npy").write_bytes(b"mine")
    outside = cli.folder / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"mine")
    paths.partial_save(4).symlink_to(outside)
    untouched = {
        p: p.read_bytes() for p in paths.dir.rglob("*") if p.is_file() and p.suffix in (".jsonl", ".npy", ".yaml")
    }
    going = WrittenRun(
        cli.folder / "runs", "demo-2", launcher="local", job_id=str(os.getpid()), host=socket.gethostname()
    )
    going.start(0)
    going.paths.save(1).mkdir()
    done = cli("clean", "--all-completed")
    assert done.code == 0, done.err
    assert save_steps(paths) == [2]
    assert not paths.submitted_call("12").exists() and not array.submitted_call("7_0").exists()
    assert array.submitted_call("7_1").exists(), "another member's"
    assert not paths.partial_save(4).is_symlink() and (outside / "precious").read_bytes() == b"mine"
    assert {p: p.read_bytes() for p in untouched} == untouched
    assert going.paths.save(1).exists() and "demo-2" not in done.out
    assert cli("clean").code == 2 and cli("clean", "demo-1", "--all-completed").code == 2
