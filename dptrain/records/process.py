"""Processes of this machine: whether one is still the one that was started (/proc, since a pid alone is reused), and when it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Literal

Alive = Literal["alive", "gone", "unknown"]
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """From now on the kernel ends this process when the one that started it ends, however that ends. Does nothing but on Linux.

    :param parent: its pid: it may have ended before the call.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def program(module: str) -> list[str]:
    """Words that start a module of the engine in a process that ends with this one; -P: the current folder's modules are not dptrain's."""
    return [sys.executable, "-P", "-m", "dptrain.engine.program", module, str(os.getpid())]


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of its stat file); None where it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command, in parentheses, may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def alive(pid: int, host: str | None, started: int | None) -> Alive:
    """Whether the process still runs; unknown on another host, which cannot be looked into from here.

    :param started: its `start_ticks` when it was recorded; None: not recorded, so any process of that pid counts.
    """
    if host not in (None, socket.gethostname()):
        return "unknown"
    if not Path("/proc/self/stat").exists():
        return _alive_without_proc(pid)
    now = start_ticks(pid)
    return "gone" if now is None or (started is not None and now != started) else "alive"


def _alive_without_proc(pid: int) -> Alive:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        return "alive"
    return "alive"
