"""The supervisor of a local run: `python -m dptrain.engine.local_launcher RUN_DIR ATTEMPT`, one process above the ranks.

It starts the ranks with torch's multi-process launcher, ends all of them when one fails, records how each ended in
`launcher.jsonl`, and starts the next attempt when the ranks ask for it (exit code 75). torch's `elastic_launch` is one layer
higher: its rendezvous is not needed, the ranks meet by themselves, and it hides the pids and who was ended by whom.
With `rank RUN_DIR` the same module is a rank: it makes sure of its end when the supervisor dies, then runs the worker.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from dptrain.records.events import EventLog, read_events
from dptrain.records.intent import read_intent
from dptrain.records.paths import AttemptPaths, RunPaths
from dptrain.records.process import end_with_parent, start_ticks

REQUEUE_EXIT_CODE = 75
"""EX_TEMPFAIL: a rank has saved and wants to be started again as the next attempt."""
CANCELLED_EXIT_CODE = 128 + signal.SIGTERM
POLL_S = 0.2
KILL_AFTER_S = 10
"""Seconds between SIGTERM and SIGKILL."""
REQUEUE_WAIT_S = 60.0
"""How long the other ranks may take to leave once one has asked for the next attempt."""


class Stop:
    """Remembers that somebody asked for the end; the handler does nothing else."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def supervise(paths: RunPaths, attempt: int, stop: Stop) -> int:
    """Run attempts until one does not ask for another; the exit code of the last."""
    while True:
        code = run_attempt(paths, attempt, stop)
        if code != REQUEUE_EXIT_CODE or stop.requested:
            return code
        attempt += 1


def run_attempt(paths: RunPaths, attempt: int, stop: Stop) -> int:
    """Start the ranks, wait for them, record how they ended; the attempt's exit code."""
    files = paths.attempt(attempt)
    files.dir.mkdir(exist_ok=True)
    _redirect_output(files.launcher_log)
    events = EventLog(files.launcher_events)
    world_size = read_intent(paths).world_size
    ranks = _start_ranks(paths, attempt, world_size)
    pids = [handler.proc.pid for _, handler in sorted(ranks.subprocess_handlers.items())]
    host, pid = socket.gethostname(), os.getpid()
    events.write("launched", host=host, pid=pid, start_ticks=start_ticks(pid), world_size=world_size, pids=pids)
    code = _watch(ranks, events, stop, files)
    events.try_write("ended", exitcode=code)
    events.close()
    return code


def _redirect_output(log: Path) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _start_ranks(paths: RunPaths, attempt: int, world_size: int) -> Any:
    from torch.distributed.elastic.multiprocessing import start_processes
    from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

    class OwnLogs(LogsSpecs):  # type: ignore[misc]
        """Ranks inherit this process' output until they open their own log; torch's default leaves a folder in /tmp."""

        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            nothing = dict.fromkeys(envs, "")
            return LogsDest(stdouts=nothing, stderrs=nothing, error_files=nothing)

        @property
        def root_log_dir(self) -> str:
            return str(paths.attempt(attempt).dir)

    # torch's launcher would put its own handlers in place of ours, which raise wherever the program happens to be.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGURG"
    common = {
        # Idle threads that spin instead of sleeping took seconds per call where something else wanted the same cores.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY") or "PASSIVE",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "DPTRAIN_ATTEMPT": str(attempt),
        "DPTRAIN_JOB_ID": str(os.getpid()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(threads_per_rank(world_size)),
    }
    words = ("-P", "-u", "-m", "dptrain.engine.local_launcher", "rank", str(paths.dir))
    return start_processes(
        name="dptrain",
        entrypoint=sys.executable,
        args=dict.fromkeys(range(world_size), words),
        envs={rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)},
        logs_specs=OwnLogs(),
    )


def threads_per_rank(world_size: int) -> int:
    """This machine's cores divided among the ranks, at least one each."""
    return max(1, len(os.sched_getaffinity(0)) // world_size)


def _watch(ranks: Any, events: EventLog, stop: Stop, files: AttemptPaths) -> int:
    processes = {rank: handler.proc for rank, handler in ranks.subprocess_handlers.items()}
    asked_at: float | None = None
    well: set[int] = set()
    while True:
        codes: dict[int, int | None] = {rank: process.poll() for rank, process in processes.items()}
        running = [rank for rank, code in codes.items() if code is None]
        ended = [rank for rank, code in codes.items() if code is not None and rank not in well]
        failed = [rank for rank in ended if not _left_well(files.rank_events(rank), codes[rank])]
        well.update(rank for rank in ended if rank not in failed)
        if asked_at is None and any(codes[rank] == REQUEUE_EXIT_CODE for rank in well):
            asked_at = time.monotonic()
        late = asked_at is not None and time.monotonic() - asked_at > REQUEUE_WAIT_S
        # Who removes the run's folder wants it no more, and nobody could see what becomes of it.
        if stop.requested or failed or late or not running or not files.dir.is_dir():
            break
        time.sleep(POLL_S)
    # Between two looks several may have ended: who was killed by a signal, or left as if all were done, did not follow another's
    # end.
    failed.sort(key=lambda rank: (codes[rank] or 0) > 0 and codes[rank] != REQUEUE_EXIT_CODE)
    for rank in failed:
        _record_exit(events, rank, processes[rank], ended_by_launcher=False)
    ranks.close(signal.SIGTERM, timeout=KILL_AFTER_S)
    for rank in running:
        if processes[rank].poll() != 0:
            _record_exit(events, rank, processes[rank], ended_by_launcher=True)
    if stop.requested:
        return CANCELLED_EXIT_CODE
    if failed or running:
        return next((_shell_code(processes[rank].returncode) for rank in failed), 1)
    return REQUEUE_EXIT_CODE if asked_at is not None else 0


def _left_well(events: Path, code: int | None) -> bool:
    """Whether the rank said that it was done, or asked for the next attempt; user code may end the process with any code."""
    word = {0: "final", REQUEUE_EXIT_CODE: "requeue"}.get(code if code is not None else -1)
    try:
        return word is not None and any(event["kind"] == word for event in read_events(events))
    except (OSError, ValueError):
        return False


def _record_exit(events: EventLog, rank: int, process: Any, *, ended_by_launcher: bool) -> None:
    code: int | None = process.returncode
    name = signal.Signals(-code).name if code is not None and code < 0 else None
    events.try_write(
        "exit",
        rank=rank,
        host=socket.gethostname(),
        pid=process.pid,
        exitcode=code,
        signal=name,
        ended_by_launcher=ended_by_launcher,
    )


def _shell_code(returncode: int) -> int:
    if returncode in (0, REQUEUE_EXIT_CODE):  # of a rank that left too early
        return 1
    return returncode if returncode > 0 else 128 - returncode


def main(words: list[str]) -> int:
    """`RUN_DIR ATTEMPT`: the supervisor. `rank RUN_DIR`: one rank."""
    if words[0] == "rank":
        end_with_parent(int(os.environ["DPTRAIN_JOB_ID"]))
        from dptrain.engine import worker

        worker.main(words[1])
        return 0
    stop = Stop()
    return supervise(RunPaths(Path(words[0]).absolute()), int(words[1]), stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
