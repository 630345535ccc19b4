"""Reading what others wrote, as files and as JSON: whatever is in its place, the answer is a value, an OSError or a ValueError."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe or a device in its place is not waited for.

    :raises OSError: where there is none.
    :raises ValueError: where it is something else than a file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{path}: not a file")
    return os.fdopen(fd, "rb")


def parse_json(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for everything that is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def whole_number(value: object, least: int = 0, most: int = 10**9) -> int | None:
    """The number, or None for what is not whole or out of range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        return None
    return int(value) if value == int(value) else None


def real_number(value: object, most: float = 1e300) -> float | None:
    """The number, or None for what is not finite, or larger than anything measured."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -most <= value <= most:
        return None
    return float(value)


def problem_of(error: Exception, folder: Path) -> str:
    """What is wrong with a file, in words that begin with its name."""
    if isinstance(error, OSError) and isinstance(error.filename, (str, os.PathLike)):
        text = f"{os.fspath(error.filename)}: {error.strerror}"
    else:
        text = str(error)
    return text.replace(f"{folder}{os.sep}", "")
