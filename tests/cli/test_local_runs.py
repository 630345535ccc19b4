"""Real local runs through the command line: to their end, detached, killed, interrupted, timed out."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from dptrain.launch.local import rank_pids
from dptrain.records.index import find_runs
from dptrain.records.paths import RunPaths
from tests.cli.cli import LONG, TINY, Cli

TRAIN = TINY.replace("tiny", "learn").replace("{name: identity}", "{name: dncnn, weights: random, depth: 3, width: 8}")
TRAIN += "train: {steps: 2, images: 2, held_out: 1}\n"


def steps_of(cli: Cli, timeout_s: float = 120) -> RunPaths:
    """The only run, once both ranks have made a step."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        runs = find_runs(cli.folder / "runs")
        if runs and all('"step"' in _text(runs[0].attempt(1).rank_events(r)) for r in (0, 1)):
            return runs[0]
        time.sleep(0.2)
    raise AssertionError("no step was made")


def undocumented(cli: Cli) -> set[str]:
    """Keys of the newest run's result.json and of its sections that docs/run-directory.md does not list."""
    result = json.loads(find_runs(cli.folder / "runs")[-1].result.read_text())
    page = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text().partition("## `result.json`")[2]
    return {key for key in (*result, *result["sections"]) if f"`{key}`" not in page}


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def test_infer_is_followed_to_its_end(cli: Cli) -> None:
    done = cli("infer", cli.write("tiny.yaml", TINY))
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err
    assert "PSNR" in done.out and "->" in done.out
    picture = next(line.split(": ", 1)[1] for line in done.out.splitlines() if line.startswith("side by side"))
    assert Path(picture).is_file()
    assert "running" in done.err and "completed" in done.err
    (status,) = json.loads(cli("status", "last", "--json", "--ranks").out)
    assert (status["state"], status["step"], status["steps"]) == ("completed", 2, 2)
    assert [rank["state"] for rank in status["ranks"]] == ["done", "done"]
    logs = cli("logs", "last").out
    assert "rank 0 on" in logs and "rank 1/2" in logs
    assert (
        "rank 1/2" in cli("logs", "last", "--rank", "1").out
        and "rank 0/2" not in cli("logs", "last", "--rank", "1").out
    )
    assert cli("logs", "last", "--rank", "7").code == 2
    assert cli("logs", "last", "-f").out.count("# job") == 2
    header, row = cli("report", "last").out.splitlines()
    assert header.split()[:5] == ["RUN", "TASK", "STATE", "RANKS", "LAYOUT"] and "sharded" in row and "\x1b" not in row
    assert cli("report", "last", "--csv", "-").out.startswith("run,state,task,")
    report = cli("report", "last", "--json")
    assert json.loads(report.out)[0]["spec.algorithm.iterations"] == 2
    assert cli("report", "last", "--csv", "out.csv").code == 0 and (cli.folder / "out.csv").is_file()
    assert "had already ended" in cli("cancel", "last").out
    assert undocumented(cli) == set()


def test_train_reports_loss_and_json_alone_on_stdout(cli: Cli) -> None:
    done = cli("train", cli.write("learn.yaml", TRAIN), "--json")
    assert done.code == 0, done.err
    status = json.loads(done.out)
    assert (status["state"], status["task"], status["step"]) == ("completed", "train", 2)
    assert status["loss"] is not None
    assert undocumented(cli) == set()


def test_a_failing_rank_is_named(cli: Cli) -> None:
    cli.write("broken.py", "def denoiser(**kw):\n    raise ValueError('no such luck')\n")
    spec = cli.write(
        "broken.yaml", TINY.replace("tiny", "broken").replace("{name: identity}", '{factory: "broken:denoiser"}')
    )
    done = cli("infer", spec)
    assert done.code == 1
    assert "first failure" in done.err and "no such luck" in done.err and "rank" in done.err and "log: " in done.err
    logs = cli("logs", "last", "--failed")
    assert "failed first" in logs.out.splitlines()[0] and "no such luck" in logs.out
    assert cli("status", "last").code == 1
    told = cli("status", "--why", "last")
    assert told.code == 1 and "first: rank" in told.out and "no such luck" in told.out and "dptrain resume" in told.out
    assert cli("status", "--why").code == 2


def test_killed_rank_is_named_and_the_run_is_over(cli: Cli) -> None:
    with cli.start("infer", cli.write("long.yaml", LONG)) as process:
        paths = steps_of(cli)
        (status,) = json.loads(cli("status", "last", "--json", "--ranks").out)
        assert status["state"] == "running"
        os.kill(status["ranks"][1]["pid"], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 1" in err and "SIGKILL" in err and status["ranks"][1]["host"] in err
    (after,) = json.loads(cli("status", "last", "--json").out)
    assert after["state"] == "failed: killed"
    assert (after["failure"]["rank"], after["failure"]["signal"]) == (1, "SIGKILL")
    assert rank_pids(paths) == []


def test_interrupt_ends_all_ranks(cli: Cli) -> None:
    with cli.start("infer", cli.write("long.yaml", LONG)) as process:
        paths = steps_of(cli)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "cancelled" in err and "Traceback" not in err
    assert rank_pids(paths) == []
    (status,) = json.loads(cli("status", "last", "--json").out)
    assert status["state"] == "cancelled"


def test_detached_timed_out_and_cancelled(cli: Cli) -> None:
    done = cli("infer", cli.write("long.yaml", LONG), "--detach")
    assert done.code == 0 and "dptrain cancel" in done.out
    paths = steps_of(cli)
    watched = cli.start("status", "last", "--watch")
    assert "cancelled" in cli("cancel", "last").out
    assert rank_pids(paths) == []
    out, _ = watched.communicate(timeout=60)
    assert watched.returncode == 1 and "cancelled" in out


def test_timeout_leaves_the_run_going(cli: Cli) -> None:
    done = cli("infer", cli.write("long.yaml", LONG), "--timeout", "1")
    assert done.code == 124 and "goes on" in done.err
    assert json.loads(cli("status", "last", "--json").out)[0]["state"] in ("starting", "running")
    assert cli("cancel", "last").code == 0


def test_doctor(cli: Cli) -> None:
    done = cli("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(done.out)}
    assert done.code == 0, done.out
    assert "torch" in findings["python"]["found"] and findings["cluster profile"]["found"].startswith("local")
    wrong = cli("doctor", "--cluster", "nowhere")
    assert wrong.code == 1 and "fail  cluster profile: there is none called 'nowhere'" in wrong.out


@pytest.mark.acceptance
def test_sweep_runs_each_member_once(cli: Cli) -> None:
    spec = cli.write("sw.yaml", TINY.replace("name: tiny", "name: sw") + "sweep: {algorithm.iterations: [1, 2]}\n")
    listed = cli("sweep", spec, "--dry-run")
    assert listed.code == 0 and listed.out.count("to run") == 2 and not (cli.folder / "runs").exists()
    done = cli("sweep", spec, "--max-parallel", "2")
    assert done.code == 0, done.err
    table = (cli.folder / "runs" / "sweep-sw.csv").read_text().splitlines()
    assert len(table) == 3 and all(",completed," in line for line in table[1:])
    again = cli("sweep", spec, "--json")
    assert again.code == 0 and "0 to run" in again.err
    assert [run["state"] for run in json.loads(again.out)["runs"]] == ["completed", "completed"]
    assert len(find_runs(cli.folder / "runs")) == 2


def test_interrupted_sweep_starts_no_other_member_and_goes_on_later(cli: Cli) -> None:
    text = LONG.replace("name: long", "name: sw").replace("iterations: 200000", "iterations: 2")
    spec = cli.write("sw.yaml", text + "sweep: {algorithm.iterations: [200000, 1]}\n")
    with cli.start("sweep", spec) as process:
        paths = steps_of(cli)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "not started: 1;" in err
    assert rank_pids(paths) == [] and len(find_runs(cli.folder / "runs")) == 1
    later = cli("sweep", spec)
    assert (
        later.code == 1
        and "1 failed or cancelled (again with --retry), 1 to run" in later.err
        and "cancelled" in later.err
    )
    members = json.loads(cli("sweep", spec, "--dry-run", "--retry", "--json").out)
    assert [m["state"] for m in members] == ["to run", "completed"]
