"""Commands over runs of which one is damaged: it has its row and its exit code, the others are as ever."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from dptrain.launch.local import rank_pids
from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from dptrain.records.process import start_ticks
from tests.cli.cli import LONG, Cli
from tests.status.helpers import WrittenRun


@pytest.fixture
def damaged(cli: Cli) -> Path:
    root = cli.folder / "runs"
    WrittenRun(root, "sound").finish()
    torn = WrittenRun(root, "torn", launcher="local", job_id="999999999")
    torn.start(0)
    torn.fail(0, message="no file '\ud800\u00e9\U0001f600'")
    broken = WrittenRun(root, "broken")
    broken.paths.intent.write_text("null")
    return root


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_listings_go_on(cli: Cli, damaged: Path, encoding: str) -> None:
    cli = Cli(cli.folder, PYTHONIOENCODING=encoding)
    for words in (
        ["status"],
        ["status", "--ranks"],
        ["status", "--json"],
        ["report", "sound", "torn", "broken", "--json"],
    ):
        done = cli(*words)
        assert "Traceback" not in done.err and done.code in (0, 6), done.err
        if "--json" in words:
            states = {row["run"]: row["state"] for row in json.loads(done.out)}
            assert states == {"sound": "completed", "torn": "failed: exception", "broken": "unknown"}
    assert "broken: intent.json: " in cli("status").out
    assert cli("report", "torn", "--csv", "rows.csv").code == 0


def test_a_named_damaged_run_is_unknown(cli: Cli, damaged: Path) -> None:
    assert (cli("status").code, cli("status", "sound").code, cli("status", "broken").code) == (0, 0, 6)
    for command in ("logs", "cancel"):
        done = cli(command, "broken")
        assert done.code == 6 and "intent.json: " in done.err and "Traceback" not in done.err


def test_a_followed_run_whose_folder_is_removed(cli: Cli) -> None:
    with cli.start("infer", cli.write("long.yaml", LONG)) as process:
        deadline = time.monotonic() + 100
        while not (runs := find_runs(cli.folder / "runs")) or not runs[0].attempt(1).ranks():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (paths,) = runs
        pid = int(str(read_intent(paths).job_id))
        shutil.rmtree(paths.dir, ignore_errors=True)
        shutil.rmtree(paths.dir, ignore_errors=True)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1 and f"its folder {paths.dir} is gone" in err and "Traceback" not in err
    deadline = time.monotonic() + 40
    while start_ticks(pid) is not None or rank_pids(paths):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not paths.dir.exists()
