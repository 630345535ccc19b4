"""Processes that must not outlive the command that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from dptrain.records.process import program, start_ticks

SLOW = "print('up', flush=True)\nimport time\ntime.sleep(60)\n"
"""A module that takes long to load."""
PARENT = """\
import subprocess
from dptrain.records.process import program
child = subprocess.Popen(program("slow"), stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "up\\n"
print(child.pid, flush=True)
child.wait()
"""


def test_a_program_ends_with_the_command_that_is_killed_also_while_it_loads(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environ)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert start_ticks(child) is not None
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while start_ticks(child) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert start_ticks(child) is None


def test_a_program_whose_starter_is_gone_already_does_nothing(tmp_path: Path) -> None:
    words = program("slow")
    # Not this process' child: the shell in between stays.
    script = f"{' '.join(words)}; echo $?"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "1\n"
