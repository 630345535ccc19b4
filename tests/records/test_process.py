"""Processes that must not outlive the command that started them."""

from __future__ import annotations

import subprocess
import sys
import time

from dptrain.records.process import start_ticks

CHILD = "from dptrain.records.process import end_with_parent; end_with_parent(); print('up', flush=True); import time; time.sleep(60)"
PARENT = f"""\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "up\\n"
print(child.pid, flush=True)
child.wait()
"""


def test_a_helper_ends_with_the_command_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert start_ticks(child) is not None
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while start_ticks(child) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert start_ticks(child) is None
