"""Which log files of a run to print, in which order, and reading on as they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dptrain.errors import StateUnknown, UsageError
from dptrain.records.paths import RunPaths
from dptrain.status.model import RunStatus
from dptrain.status.show import follower_lines, remark, where

CHUNK_BYTES = 1024 * 1024
POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Log:
    """One log and what it is."""

    title: str
    path: Path


def logs_of(paths: RunPaths, status: RunStatus, *, rank: int | None = None, failed_first: bool = False) -> list[Log]:
    """Logs of the newest attempt: the ranks', or, where no rank has one, the launcher's or the batch script's.

    :param rank: only this one.
    :param failed_first: the rank that failed first comes first, those it took along are labelled.
    """
    if status.world_size == 0:  # its files say nothing of its ranks
        raise StateUnknown(f"{status.run}: {status.reason}")
    attempt = paths.attempt(status.attempt)
    known = {rank.rank: rank for rank in status.ranks}
    numbers = [n for n in known if attempt.rank_log(n).is_file()]
    if rank is not None and rank not in known:
        raise UsageError(f"{status.run} has ranks 0 to {status.world_size - 1}, no rank {rank}")
    first = status.failure.rank if status.failure else None
    if failed_first:
        numbers.sort(key=lambda n: (n != first, not known[n].state.startswith("failed"), n))
    chosen = [n for n in numbers if rank is None or n == rank]
    logs = [Log(title=_title(n, n == first, status, known[n].state), path=attempt.rank_log(n)) for n in chosen]
    if not logs or (failed_first and first is not None and first not in numbers):
        # Death before the rank's own log: what it said is in the log of what started it.
        logs = [*_launch_logs(paths, status), *logs]
    return logs


def first_words(status: RunStatus) -> list[str]:
    """What the rank that failed first said, with its traceback, then a line per rank that failed because of it; empty where none did."""
    failure = status.failure
    if failure is None:
        return []
    words = (failure.traceback or failure.message).strip().splitlines()
    return [
        f"==> failed first: {where(failure) or 'the run'}: {failure.kind} <==",
        *words,
        *(f"==> {line} <==" for line in follower_lines(status)),
        "",
    ]


def nothing_to_read(paths: RunPaths, status: RunStatus) -> str:
    """Where was looked in vain, and how the run stands: a job that failed at once has no log at all."""
    attempt = paths.attempt(status.attempt).dir
    said = remark(status)
    return (
        f"{status.run}: {status.state}; no log: looked for rank-*.log and launcher.log in {attempt}, and in {paths.batch_log}"
        + (f"\n{said}" if said else "")
    )


def _title(rank: int, first: bool, status: RunStatus, state: str) -> str:
    host = next((r.host for r in status.ranks if r.rank == rank), None)
    return f"rank {rank}" + (f" on {host}" if host else "") + f": {state}" + (", failed first" if first else "")


def _launch_logs(paths: RunPaths, status: RunStatus) -> list[Log]:
    launcher = Log(title="launcher", path=paths.attempt(status.attempt).launcher_log)
    batch = [Log(title="batch script", path=path) for path in sorted(paths.batch_log.glob("*"))]
    return [log for log in (launcher, *batch) if log.path.is_file()]


def read_log(log: Log) -> Iterator[str]:
    """The text of a log, in pieces."""
    with log.path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece.decode("utf-8", errors="replace")


def follow_logs(logs: Callable[[], Sequence[Log]], ended: Callable[[], bool]) -> Iterator[tuple[Log, str]]:
    """Whole lines as they are written, until the run has ended and everything is read.

    :param logs: asked again at every look: logs appear as ranks start.
    """
    offsets: dict[Path, int] = {}
    while True:
        over = ended()
        for log in logs():
            start = offsets.get(log.path, 0)
            with log.path.open("rb") as file:
                file.seek(start)
                data = file.read()
            whole = data if over else data[: data.rfind(b"\n") + 1]
            offsets[log.path] = start + len(whole)
            if whole:
                yield log, whole.decode("utf-8", errors="replace")
        if over:
            return
        time.sleep(POLL_S)
