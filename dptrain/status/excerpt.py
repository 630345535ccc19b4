"""The few lines of a log that say what happened, fit for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dptrain.status.collect import LOG_TAIL_BYTES, tail_text

BEFORE, HEAD, TAIL = 3, 3, 8
"""Lines before a traceback, of its beginning, and of its end."""
MOST_CHARACTERS = 200
_TRACEBACK = re.compile(r"(\S+: )?Traceback \(most recent call last\)")
_CARETS = re.compile(r"\s+[~^]+")
"""Below a line of a traceback, what of it failed."""
_CHAIN = re.compile(r"^(\S+: )?(During handling of the above exception|The above exception was the direct cause)")
_STACK = re.compile(r"(\S+: )?(Current thread|Thread) 0x")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def excerpt(log: Path, *, stalled: bool = False) -> tuple[str, ...]:
    """Lines around the traceback, or the last lines; none of a log that cannot be read.

    :param stalled: look for the stack of the main thread instead, which faulthandler writes last.
    """
    text = tail_text(log, LOG_TAIL_BYTES).rstrip()
    lines = [_plain(line) for line in text.split("\n") if not _CARETS.fullmatch(line)] if text else []
    mark = _STACK if stalled else _TRACEBACK
    found = [i for i, line in enumerate(lines) if mark.match(line)]
    if not found:
        return tuple(lines[-TAIL:])
    if stalled:  # the innermost call comes first
        return tuple(lines[found[-1] : found[-1] + 1 + TAIL])
    first = _begin(lines, found)
    start = max(0, first - BEFORE)
    shown = lines[start:]
    head = first - start + HEAD
    return tuple(shown) if len(shown) <= head + TAIL else (*shown[:head], "...", *shown[-TAIL:])


def _begin(lines: Sequence[str], found: Sequence[int]) -> int:
    """Where the last traceback begins; of a chain of them the first, which began it."""
    at = len(found) - 1
    while at > 0 and any(_CHAIN.search(line) for line in lines[found[at - 1] : found[at]]):
        at -= 1
    return found[at]


def _plain(line: str) -> str:
    # Of a line that a progress bar has overwritten the last version counts.
    text = _CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2])
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."
