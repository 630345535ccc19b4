"""Starts a local run and watches it from outside: the supervisor lives on when the command that started it ends."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dptrain.errors import UsageError, WaitTimeout
from dptrain.records.events import read_events
from dptrain.records.intent import read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.records.process import Alive, alive, start_ticks
from dptrain.records.reading import whole_number
from dptrain.scheduler.commands import without_rank
from dptrain.spec.cluster import ClusterProfile

SUPERVISOR = "dptrain.engine.local_launcher"
_REQUEUE_EXIT_CODE = 75


def start_local(paths: RunPaths, profile: ClusterProfile | None = None) -> int:
    """Start the supervisor of the run's next attempt in a session of its own, and note its pid in the intent.

    :param profile: its `python` and `env` are used.
    :return: the supervisor's pid.
    """
    _check(profile)
    attempt = next_attempt(paths)
    files = paths.attempt(attempt)
    files.dir.mkdir(parents=True, exist_ok=True)
    python = (profile.python if profile else None) or sys.executable
    words = [python, "-P", "-u", "-m", SUPERVISOR, str(paths.dir.absolute()), str(attempt)]
    env = {**without_rank(os.environ), **(profile.env if profile else {})}
    pid = _spawn_detached(words, env, files.launcher_log)
    update_intent(
        paths,
        submission="submitted",
        job_id=str(pid),
        host=socket.gethostname(),
        refusal=None,
        first_attempt=attempt,
        asked_attempt=attempt,
    )
    return pid


def supervisor_alive(paths: RunPaths) -> Alive:
    """Whether the supervisor noted in the intent still runs; a reused pid does not count."""
    intent = read_intent(paths)
    if intent.launcher != "local" or intent.job_id is None:
        return "gone"
    if (pid := whole_number(int(intent.job_id), 1)) is None:
        raise ValueError(f"{paths.intent}: {intent.job_id!r} is no pid")
    _reap(pid)
    launched = [
        e for k in paths.attempts() for e in read_events(paths.attempt(k).launcher_events) if e["kind"] == "launched"
    ]
    mine = [e for e in launched if e.get("pid") == pid]
    state = alive(pid, intent.host, whole_number(mine[-1].get("start_ticks"), most=10**18) if mine else None)
    # Before it has noted itself, or where its note is lost, its command line tells it from one that reuses the pid.
    return "gone" if state == "alive" and not mine and not may_be_supervisor(_words_of(pid)) else state


def may_be_supervisor(words: list[str]) -> bool:
    """Whether a command line is a supervisor's; also while the kernel has started the program and not yet filled it in."""
    return SUPERVISOR in words or words == [""]


def wait_local(paths: RunPaths, timeout_s: float | None = None) -> int | None:
    """Wait until the supervisor has ended; its exit code, or None where it died without noting one.

    :raises WaitTimeout: after `timeout_s`; the run goes on.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while supervisor_alive(paths) == "alive":
        if deadline is not None and time.monotonic() > deadline:
            raise WaitTimeout(f"{paths.run_id} still runs after {timeout_s:.0f} s; it goes on")
        time.sleep(0.1)
    ended = [e for k in paths.attempts() for e in read_events(paths.attempt(k).launcher_events) if e["kind"] == "ended"]
    code = ended[-1].get("exitcode") if ended else None
    return code if isinstance(code, int) and code != _REQUEUE_EXIT_CODE else None


def rank_pids(paths: RunPaths) -> list[int]:
    """Processes of this machine that are ranks of the run, found by their command line."""
    wanted = ["rank", str(paths.dir.absolute())]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        words = _words_of(int(entry.name))
        if SUPERVISOR in words and words[words.index(SUPERVISOR) + 1 :][:2] == wanted and start_ticks(int(entry.name)):
            found.append(int(entry.name))
    return sorted(found)


def _words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has just ended, or it is another user's
        return []


def _check(profile: ClusterProfile | None) -> None:
    if profile is None:
        return
    for key in ("setup", "command_prefix"):
        if getattr(profile, key):
            raise UsageError(
                f"profile {profile.name}: {key} is for batch scripts; a local run starts in the environment of this command\n"
                f"    write: launcher: slurm, or no {key}"
            )


def next_attempt(paths: RunPaths) -> int:
    """The first attempt nobody has started: 1, or one more than the last."""
    started = [k for k in paths.attempts() if paths.attempt(k).launcher_events.exists() or paths.attempt(k).ranks()]
    return max(started, default=0) + 1


def _spawn_detached(words: list[str], env: Mapping[str, str], log: Path) -> int:
    write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), write, 0o666),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        return os.posix_spawn(words[0], words, env, file_actions=actions, setsid=True)
    except FileNotFoundError:
        raise UsageError(f"the profile's python does not exist: {words[0]}") from None


def _reap(pid: int) -> None:
    # Where this process is its parent: otherwise the ended supervisor stays as a zombie.
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
