"""Places that cannot be written are the user's to change: one message instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dptrain.errors import UsageError


@contextmanager
def writing(what: str, path: Path, write: str) -> Iterator[None]:
    """Around whatever makes or writes `path`.

    :param what: what the place is for, e.g. `the run folder`.
    :param write: what the user should write instead.
    :raises UsageError: where the system refuses: read-only, no right, a file in the way, a full disk.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be written: {error.strerror or error}\n    write: {write}") from None
