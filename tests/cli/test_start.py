"""Starting the tool: help, version, exit codes, what is imported, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli import TINY, Cli
from tests.status.helpers import WrittenRun
from tests.status.test_state import fake_squeue

COMMANDS = [
    "init",
    "plan",
    "prepare",
    "train",
    "infer",
    "sweep",
    "resume",
    "rehearse",
    "status",
    "logs",
    "report",
    "cancel",
    "clean",
]
COMMANDS += ["doctor"]
HEAVY = ["torch", "deepinv", "submitit", "numpy", "matplotlib", "PIL"]
PROBE = """
import sys
from dptrain.cli.main import app
try:
    app({words!r})
except SystemExit as end:
    code = end.code
print("loaded:", [name for name in {heavy!r} if name in sys.modules], "code:", code)
"""


def probe(cli: Cli, *words: str) -> str:
    """The last line: which heavy modules a command loads."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(words=list(words), heavy=HEAVY)],
        capture_output=True,
        text=True,
        env=cli.env,
        cwd=cli.folder,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def test_help_lists_every_command(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0 and "\x1b" not in done.out
    for command in COMMANDS:
        assert f"  {command} " in done.out
        assert cli(command, "--help").code == 0


def test_version(cli: Cli) -> None:
    assert cli("--version").out.startswith("dptrain ")


def test_help_loads_nothing_heavy(cli: Cli) -> None:
    assert probe(cli, "--help") == "loaded: [] code: 0"


def test_plan_loads_nothing_heavy(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    assert probe(cli, "plan", str(spec)) == "loaded: [] code: 0"


def test_dry_run_loads_nothing_heavy(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY)
    assert probe(cli, "infer", str(spec), "--dry-run") == "loaded: [] code: 0"


def test_status_over_200_runs_loads_nothing_heavy_and_asks_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(199):
        WrittenRun(cli.folder / "runs", f"done-{i}", job_id=str(i)).finish()
    going = WrittenRun(cli.folder / "runs", "going-1", job_id="900")
    going.start(0)
    tools = cli.folder / "tools"
    tools.mkdir()
    calls = fake_squeue(tools, monkeypatch)
    cli.env = {**cli.env, "PATH": f"{tools}:/usr/bin:/bin"}
    assert probe(cli, "status") == "loaded: [] code: 0"
    assert len(calls.read_text().splitlines()) == 1
    states = [entry["state"] for entry in json.loads(cli("status", "--json").out)]
    assert states.count("completed") == 199 and len(states) == 200


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["status", "nope"], 5, "nope"),
        (["logs", "nope"], 5, "nope"),
        (["cancel", "last"], 5, "no runs"),
        (["plan", "none.yaml"], 2, "none.yaml"),
        (["infer", "bad.yaml"], 2, "bad.yaml:2:1"),
        (["infer", "tiny.yaml", "--set", "nonsense"], 2, "nonsense"),
        (["infer", "tiny.yaml", "--cluster", "nowhere"], 2, "nowhere"),
        (["infer", "tiny.yaml", "--detach", "--wait"], 2, "--detach"),
        (["sweep", "tiny.yaml"], 2, "has no sweep"),
        (["infer", "swept.yaml"], 2, "dptrain sweep"),
        (["train", "tiny.yaml"], 3, "train"),
        (["plan", "tiny.yaml", "--task", "guess"], 2, "guess"),
        (["infer", "tiny.yaml", "--nope"], 2, "--nope"),
        (["infer", "tiny.yaml", "--cluster", "generic-slurm", "--timeout", "1"], 2, "--wait"),
        (["init"], 2, "a name is missing"),
    ],
)
def test_exit_codes_and_messages(cli: Cli, words: list[str], code: int, says: str) -> None:
    cli.write("tiny.yaml", TINY)
    cli.write("bad.yaml", "name: bad\nprobelm: {}\n")
    cli.write("swept.yaml", TINY + "sweep: {algorithm.iterations: [1, 2]}\n")
    done = cli(*words)
    assert done.code == code, done.err
    assert says in done.err and "Traceback" not in done.err and "\x1b" not in done.err
    assert not (cli.folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "runs", "says"),
    [
        (["infer", "tiny.yaml"], "tiny.yaml/runs", "DPTRAIN_RUNS=/a/folder/you/can/write"),
        (["infer", "tiny.yaml", "--dry-run"], "tiny.yaml", "DPTRAIN_RUNS=/a/folder/you/can/write"),
        (["sweep", "swept.yaml"], "/proc/nope", "/proc/nope"),
        (["report", "demo-1", "--csv", "/proc/nope/x.csv"], "runs", "/proc/nope/x.csv"),
        (["report", "demo-1", "--csv", "tiny.yaml/x.csv"], "runs", "x.csv"),
        (["init", "new", "--cluster-profile", "local"], "runs", "local.yaml"),
    ],
)
def test_places_that_cannot_be_written_are_one_message(cli: Cli, words: list[str], runs: str, says: str) -> None:
    cli.write("tiny.yaml", TINY)
    cli.write("swept.yaml", TINY + "sweep: {algorithm.iterations: [1, 2]}\n")
    WrittenRun(cli.folder / "runs", "demo-1").finish()
    cli.env = {**cli.env, "DPTRAIN_RUNS": str(cli.folder / runs), "XDG_CONFIG_HOME": str(cli.folder / "tiny.yaml")}
    done = cli(*words)
    assert done.code == 2, done.err
    assert "cannot be written" in done.err and says in done.err and "Traceback" not in done.err


def test_init_in_a_folder_that_cannot_be_written(cli: Cli) -> None:
    cli.folder = Path("/proc")
    done = cli("init", "z")
    assert done.code == 2 and "/proc/z.yaml cannot be written" in done.err and "Traceback" not in done.err


def test_a_job_that_failed_at_once_gives_slurms_reason(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = cli.folder / "tools"
    tools.mkdir()
    line = (
        "12".ljust(96)
        + "FAILED".ljust(32)
        + "BadConstraints".ljust(128)
        + "".ljust(2048)
        + "256".ljust(16)
        + "0".ljust(312)
    )
    fake_squeue(tools, monkeypatch, f"echo '{line}'")
    (tools / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 12\n")
    (tools / "sbatch").chmod(0o755)
    cli.env = {**cli.env, "PATH": f"{tools}:/usr/bin:/bin"}
    done = cli("infer", cli.write("tiny.yaml", TINY), "--cluster", "generic-slurm")
    assert done.code == 1 and "BadConstraints (no node has what was asked for)" in done.err, done.err
    assert "its log is empty" not in done.err and "dptrain cancel" not in done.out
    (entry,) = json.loads(cli("status", "last", "--json").out)
    assert entry["state"] == "failed: never-started" and entry["reason"].startswith("BadConstraints")
    logs = cli("logs", "last")
    assert logs.code == 0 and "/attempts/1" in logs.err and "/batch" in logs.err and "BadConstraints" in logs.err


def test_a_narrow_terminal_breaks_no_command_of_an_advice(cli: Cli) -> None:
    above, below = os.openpty()
    env = {**cli.env, "COLUMNS": "40", "TERM": "xterm"}
    with subprocess.Popen(cli.words("init"), stdout=below, stderr=below, env=env, cwd=cli.folder) as process:
        process.wait(timeout=60)
    os.close(below)
    said = os.read(above, 65536).decode()
    os.close(above)
    assert "a name is missing; write: dptrain init NAME [--template T]" in said


def test_completion_is_on(cli: Cli) -> None:
    WrittenRun(cli.folder / "runs", "demo-1")
    cli.env = {**cli.env, "_DPTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": "dptrain status de", "COMP_CWORD": "2"}
    program = Path(sys.executable).with_name("dptrain")
    done = subprocess.run([program], capture_output=True, text=True, env=cli.env, cwd=cli.folder, check=False)
    assert "demo-1" in done.stdout


def test_status_without_runs(cli: Cli) -> None:
    assert "no runs" in cli("status").out
    assert json.loads(cli("status", "--json").out) == []


def test_exit_code_of_status_is_about_the_runs_asked_for(cli: Cli) -> None:
    bad = WrittenRun(cli.folder / "runs", "bad-1", submission="refused", refusal="invalid partition", job_id=None)
    assert cli("status").code == 0
    done = cli("status", bad.paths.run_id)
    assert done.code == 1 and "never-submitted" in done.out and "invalid partition" in done.out
    good = WrittenRun(cli.folder / "runs", "good-1")
    good.finish()
    assert cli("status", "good").code == 0


def test_a_closed_pipe_is_no_error(cli: Cli) -> None:
    for i in range(400):
        WrittenRun(cli.folder / "runs", f"done-{i}", submission="dry-run", job_id=None)
    with cli.start("status") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


def test_a_forgotten_fault_starts_no_run(tmp_path: Path) -> None:
    cli = Cli(tmp_path, DPTRAIN_FAULT="raise@rank=1")
    done = cli("infer", cli.write("tiny.yaml", TINY))
    assert done.code == 2 and "DPTRAIN_FAULT_ALLOW=1 does not say that this is meant" in done.err
    assert "Traceback" not in done.err and not (tmp_path / "runs").exists()
