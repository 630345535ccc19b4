"""One command at a time: of those that start the runs of a sweep, and of those that change one run.

Two that look at once would both find the same members missing, or the same run not running.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dptrain.errors import Interrupted, UsageError, WaitTimeout
from dptrain.records.paths import RunPaths
from dptrain.records.places import writing

POLL_S = 0.5
_HELD: set[int] = set()


def held_locks() -> list[int]:
    """File descriptors of the locks that this process holds: a child that gets them holds the locks as long as it lives."""
    return sorted(_HELD)


@contextmanager
def run_lock(paths: RunPaths) -> Iterator[None]:
    """Hold the lock of a run; it ends with the process, however that ends, and with an sbatch of it.

    :raises UsageError: where another command holds it.
    """
    with writing("the lock of the run", paths.lock, "a run of your own, in a folder that is not full"):
        fd = _open(paths.lock)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(f"{paths.run_id}: another command is resuming or cleaning it") from None
    _HELD.add(fd)
    try:
        yield
    finally:
        _HELD.remove(fd)
        os.close(fd)


def run_is_held(paths: RunPaths) -> bool:
    """Whether a command holds the lock of a run now."""
    try:
        fd = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def sweep_lock(root: Path, name: str, on_wait: Callable[[str], None], timeout_s: float | None = None) -> Iterator[None]:
    """Hold the lock of the sweep of this name; it ends with the process, however that ends, and with an sbatch of it.

    :param on_wait: told once, in words, where another command holds it.
    :raises WaitTimeout: after `timeout_s` of waiting.
    :raises Interrupted: Ctrl-C while waiting.
    """
    path = _sweep_file(root, name)
    with writing("the lock of the sweep", path, "export DPTRAIN_RUNS=/a/folder/you/can/write"):
        root.mkdir(parents=True, exist_ok=True)
        fd = _open(path)
    try:
        try:
            _take(fd, name, on_wait, timeout_s)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was started") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        _HELD.add(fd)
        yield
    finally:
        _HELD.discard(fd)
        os.close(fd)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The command that holds the lock of a sweep."""

    pid: int
    host: str


def sweep_holder(root: Path, name: str) -> Holder | None:
    """Who is starting the runs of a sweep now; None where nobody is."""
    try:
        fd = os.open(_sweep_file(root, name), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid, _, host = os.pread(fd, 1000, 0).decode(errors="replace").strip().partition(" ")
        return Holder(pid=int(pid), host=host) if pid.isdigit() else None
    finally:
        os.close(fd)
    return None


def _sweep_file(root: Path, name: str) -> Path:
    return root / f".sweep-{name}.lock"


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _take(fd: int, name: str, on_wait: Callable[[str], None], timeout_s: float | None) -> None:
    began = time.monotonic()
    told = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                on_wait(f"another command is starting the runs of sweep {name}: waiting for it")
            told = True
        else:
            return
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            raise WaitTimeout(f"waited {timeout_s:.0f} s; another command is starting the runs of sweep {name}")
        time.sleep(POLL_S)
