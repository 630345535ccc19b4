"""Append-only JSON lines: one file per rank and attempt, one for the launcher. A torn last line is tolerated.

Every line has `kind` and `t` (seconds since the epoch). Lines of a rank, by kind:

    {"kind": "start", "t": 1.0, "rank": 0, "world_size": 4, "host": "n1", "pid": 71, "job_id": "12", "attempt": 1,
     "device": "cpu", "cpus": 2, "threads": 2, "python": "/usr/bin/python3", "versions": {"python": "3.11.2"}}
    {"kind": "phase", "t": 1.1, "phase": "setup"}            phases in order: setup, run, close
    {"kind": "steps", "t": 1.2, "steps": 100}                the planned number of steps, once known
    {"kind": "step", "t": 2.0, "step": 1, "seconds": 0.8, "psnr_db": 24.1, "loss": null, "lr": null,
     "peak_memory_bytes": 1048576, "bytes_sent": 8192}       after step 1; step counts over the whole run, not the attempt
    {"kind": "heartbeat", "t": 2.5, "phase": "run", "step": 1, "peak_memory_bytes": 1048576, "bytes_sent": 8192}
    {"kind": "save", "t": 3.0, "step": 20, "seconds": 0.2}
    {"kind": "signal", "t": 4.0, "signal": "SIGUSR2"}
    {"kind": "requeue", "t": 4.1, "step": 31, "reason": "preempted" | "timed-out"}
    {"kind": "fault", "t": 4.2, "fault": "slow@rank=0,step=3,attempt=1,seconds=2", "step": 3}    injected: about to strike
    {"kind": "final", "t": 9.0, "step": 100, "steps": 100, "peak_memory_bytes": 1048576, "bytes_sent": 8192,
     "tiles": [0, 2]}                                        last line of a rank that did all it was asked for
    {"kind": "failure", "t": 9.0, "class": "exception", "step": 12, "signal": null, "message": "ValueError: ...",
     "traceback": "...", "peak_memory_bytes": 1048576, "secondary": false}    (stalled also: "waiting", true in a collective)
                                                             last line of a rank that failed; class: see status

Lines of the launcher:

    {"kind": "launched", "t": 0.5, "host": "n1", "pid": 70, "start_ticks": 9876, "world_size": 2, "pids": [71, 72]}
    {"kind": "exit", "t": 9.1, "rank": 1, "host": "n1", "pid": 72, "exitcode": -9, "signal": "SIGKILL",
     "ended_by_launcher": false}                             only of ranks that did not end well
    {"kind": "ended", "t": 9.5, "exitcode": 1}
    {"kind": "cancel", "t": 5.0, "by": "dptrain cancel"}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dptrain.records.reading import open_file, parse_json

Event = dict[str, Any]
ROOM_BYTES = 16 * 1024
"""A failure record with its traceback, and the traceback once more in the log."""


class EventLog:
    """Appends events to one file; each line is one `write`, so that a reader sees whole lines but the last."""

    def __init__(self, path: Path, room: Path | None = None) -> None:
        """
        :param room: a file that keeps as much of the disk as last words need, given up for them or by `close`.
        """
        self.path = path.absolute()
        self._room = room.absolute() if room is not None else None
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._torn = False
        if self._room is not None:
            self._room.write_bytes(bytes(ROOM_BYTES))

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event; `t` is now. Non-finite numbers are written as null, since JSON has none."""
        record = {"kind": kind, "t": round(time.time(), 3), **fields}
        # A lone surrogate, as in the name of a file that is not UTF-8, becomes its JSON escape.
        text = json.dumps(_finite(record), ensure_ascii=False).encode("utf-8", errors="backslashreplace")
        data = (b"\n" if self._torn else b"") + text + b"\n"
        sent = 0
        try:
            while sent < len(data):
                sent += os.write(self._fd, data[sent:])
        finally:
            # A full disk takes a part of a line; the next line must not become the rest of it.
            if sent:
                self._torn = sent < len(data)

    def try_write(self, kind: str, **fields: Any) -> None:
        """As `write`, for those who have more to do than to be recorded: what the disk refuses is told to the log, and lost."""
        try:
            self.write(kind, **fields)
        except OSError as error:
            with suppress(OSError):
                print(f"event {kind} is not written: {error}", file=sys.stderr, flush=True)

    def last_words(self, kind: str, **fields: Any) -> None:
        """As `try_write`, in the room that was kept: why a disk is full has to be said on that disk."""
        self._give_up_room()
        self.try_write(kind, **fields)

    def close(self) -> None:
        self._give_up_room()
        os.close(self._fd)

    def _give_up_room(self) -> None:
        if self._room is not None:
            with suppress(OSError):
                self._room.unlink()


def append_event(path: Path, kind: str, **fields: Any) -> None:
    """Append one event to a file that is opened only for it."""
    log = EventLog(path)
    try:
        log.write(kind, **fields)
    finally:
        log.close()


def read_events(path: Path) -> Iterator[Event]:
    """Every whole line of the file, oldest first; a file that is absent has none, a torn line is skipped.

    :raises ValueError: where something else than such a file is in its place.
    """
    try:
        with open_file(path) as file:
            text = file.read()
    except FileNotFoundError:
        return
    yield from parse_events(text.split(b"\n"), path)


def parse_events(lines: Sequence[bytes], path: Path) -> list[Event]:
    """The events of some lines of a file, without those that are torn.

    :raises ValueError: where not even one of several lines is an event, so that it is no file of events.
    """
    written = [line for line in lines if line.strip()]
    events = [event for line in written if (event := _parse_line(line)) is not None]
    torn = len(lines) == 1 and lines[0].startswith(b"{")
    if written and not events and not torn:
        raise ValueError(f"{path}: no line of it is an event")
    return events


def _parse_line(line: bytes) -> Event | None:
    try:
        event = parse_json(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
