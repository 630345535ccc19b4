"""What a process that answers plan may take: memory beyond that of its libraries, and processor time.

So that a login node is not used up, and a busy one takes longer and fails nothing.
"""

from __future__ import annotations

import math
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OutOfTime(BaseException):
    """A request has taken its processor time. Not an `Exception`: libraries catch those."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Inside, no more than so much processor time is spent.

    :raises OutOfTime: where it is.
    """

    def stop(*_: object) -> None:
        raise OutOfTime(f"no answer within {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    # Again and again: the first may come where Python drops exceptions.
    signal.setitimer(signal.ITIMER_PROF, seconds if math.isfinite(seconds) else 0, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(more_gib: float) -> None:
    """Let this process take no more than so much more than it has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + int(more_gib * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def is_out_of_memory(error: Exception) -> bool:
    """Whether the limit is what an error is about; torch's allocator has no error of its own for this."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)
