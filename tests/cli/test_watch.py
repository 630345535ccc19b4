"""`status --watch` as a person sees it: in a terminal of either encoding, and in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.cli.cli import Cli
from tests.status.helpers import WrittenRun


def in_a_terminal(cli: Cli, *words: str, **env: str) -> str:
    """What a command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    environment = {**cli.env, "TERM": "xterm", "COLUMNS": "100", "LINES": "24", **env}
    command = [sys.executable, "-m", "dptrain.cli.main", *words]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cli.folder, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal is closed once nobody has it open
                break
            if not piece:
                break
            seen += piece
        process.wait(timeout=60)
    os.close(ours)
    return seen.decode("utf-8")


def two_runs(folder: Path) -> None:
    for i in (1, 2):
        WrittenRun(folder / "runs", f"demo-{i}", world_size=1, launcher="local").finish()


def test_blocks_in_a_terminal_that_has_them(cli: Cli) -> None:
    two_runs(cli.folder)
    seen = in_a_terminal(cli, "status", "--watch", PYTHONIOENCODING="utf-8")
    assert "▁▅█" in seen and "2 runs: 2 completed, 0 running, 0 failed, 0 queued" in seen
    assert "TREND" in seen and "STEPS/S" in seen and "MEMORY" in seen


def test_plain_characters_in_one_that_has_not(cli: Cli) -> None:
    two_runs(cli.folder)
    seen = in_a_terminal(cli, "status", "--watch", PYTHONIOENCODING="ascii")
    assert "_=@" in seen or "_+@" in seen
    assert seen.isascii()


def test_no_control_characters_in_a_pipe(cli: Cli) -> None:
    two_runs(cli.folder)
    done = cli("status", "--watch")
    assert done.code == 0 and "\x1b" not in done.out
    assert done.out.count("completed  step 3/3") == 2 and "2 runs: 2 completed" in done.out
