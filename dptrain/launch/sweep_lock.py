"""One command at a time starts the runs of a sweep: two that look at once would both find the same members missing."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dptrain.errors import Interrupted, WaitTimeout
from dptrain.records.places import writing

POLL_S = 0.5


@contextmanager
def sweep_lock(root: Path, name: str, on_wait: Callable[[str], None], timeout_s: float | None = None) -> Iterator[None]:
    """Hold the lock of the sweep of this name; it ends with the process, however that ends.

    :param on_wait: told once, in words, where another command holds it.
    :raises WaitTimeout: after `timeout_s` of waiting.
    :raises Interrupted: Ctrl-C while waiting.
    """
    path = root / f".sweep-{name}.lock"
    with writing("the lock of the sweep", path, "export DPTRAIN_RUNS=/a/folder/you/can/write"):
        root.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            _take(fd, name, on_wait, timeout_s)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was started") from None
        yield
    finally:
        os.close(fd)


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
