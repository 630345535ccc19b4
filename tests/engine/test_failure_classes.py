"""What an error is called; one row per kind."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from dptrain.engine.context import WorldMismatch
from dptrain.engine.session import Diverged, failure_class


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "phase", "word"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "run", "out-of-memory (device)"),
        (MemoryError(), "run", "out-of-memory (host)"),
        (os_error(errno.ENOMEM), "run", "out-of-memory (host)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "run", "out-of-memory (host)"),
        (os_error(errno.ENOSPC), "run", "disk-full"),
        (os_error(errno.EDQUOT), "run", "disk-full"),
        (os_error(errno.EACCES), "run", "exception"),
        (WorldMismatch("planned 4"), "setup", "world-mismatch"),
        (Diverged("not finite", here=True), "run", "diverged"),
        (ValueError("x"), "setup", "setup"),
        (ValueError("x"), "run", "exception"),
    ],
)
def test_every_kind_of_error_has_its_class(error: BaseException, phase: str, word: str) -> None:
    assert failure_class(error, phase) == word
