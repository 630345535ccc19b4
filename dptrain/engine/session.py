"""One rank's part of one attempt: its log, its event file, its watch and signals, from opening to the last record."""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import torch

from dptrain.engine.context import RankContext, RankEnvironment, WorldMismatch, connect
from dptrain.engine.faults import Faults
from dptrain.engine.measure import Meter, resident_peak_bytes
from dptrain.engine.observers import make_window
from dptrain.engine.watch import Requests, Watch, number_of
from dptrain.errors import DptrainError
from dptrain.records.events import EventLog
from dptrain.records.intent import Intent, read_intent
from dptrain.records.paths import AttemptPaths, RunPaths
from dptrain.scheduler.sbatch import JOB_BEGAN
from dptrain.spec.load import load_spec
from dptrain.spec.schema import Spec

STARTED_S = time.time()
"""When this process was young."""
LOSE_S = 60
"""Collectives wait so much longer than a watchdog, so that the rank that does not get on is named before the others lose it."""
LONGEST_MESSAGE, LONGEST_TRACEBACK = 8_000, 32_000
"""Characters of a failure record: its end is what `status` reads of a file."""
LOST_CONNECTION = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket timeout",
    "timed out waiting",
    "remote process exited",
    "heartbeat monitor",
    "wait timeout after",
)
"""Words of gloo, NCCL and the store when another rank is gone: the consequence of a failure, not the failure."""


def told(number: int, of: int) -> bool:
    """Whether the log gets a line about the `number`-th of so many: few enough that ten thousand stay far below 100 kB."""
    return number <= 10 or number % max(1, of // 200) == 0


class NotRestarted(RuntimeError):
    """The run is saved and nobody will start it again; `reason` is timed-out or preempted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Diverged(RuntimeError):
    """The numbers run away; `here`: it is this rank's part that does, so that the others only learnt of it."""

    def __init__(self, message: str, *, here: bool) -> None:
        super().__init__(message)
        self.here = here


@dataclass(kw_only=True)
class Session:
    """What the loops need; everything a rank knows of its run."""

    paths: RunPaths
    attempt: AttemptPaths
    env: RankEnvironment
    intent: Intent
    events: EventLog
    watch: Watch
    requests: Requests
    spec: Spec
    plan: dict[str, Any]
    ctx: RankContext
    meter: Meter
    faults: Faults
    started_s: float
    """Start of this attempt's job, seconds since the epoch."""
    steps: int
    """Steps of the whole run: the intent's, until a user's data says how many images there are (`count_steps`)."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes what the run has once."""
        return self.env.rank == 0

    @property
    def decided(self) -> dict[str, Any]:
        """What plan decided and the ranks follow: `max_batch_size` and `checkpoint`."""
        return {key: self.plan[key] for key in ("max_batch_size", "checkpoint")}

    def enter(self, phase: str) -> None:
        """Enter a phase: run, close. Its limit holds for the rank's progress and, somewhat longer, for any one collective."""
        self.watch.enter(phase)
        self.ctx.limit_collectives(self.watch.limits_s[phase] + LOSE_S)

    def count_steps(self, steps: int) -> None:
        """Set and record the number of steps of the whole run."""
        self.steps = steps
        self.events.write("steps", steps=steps)

    def done(self, step: int, seconds: float, **numbers: float | None) -> None:
        """Record that a step is over."""
        self.watch.progress(step)
        self.events.write(
            "step",
            step=step,
            seconds=round(seconds, 6),
            peak_memory_bytes=self.meter.peak_memory_bytes,
            bytes_sent=self.ctx.bytes_sent,
            **numbers,
        )
        if self.first and told(step, self.steps):
            shown = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items() if value is not None)
            print(f"step {step}/{self.steps} {seconds:.3g} s {shown}", flush=True)

    def leave_diverged(self, message: str, *, here: bool) -> NoReturn:
        """End a run whose numbers run away, all ranks together: they have agreed.

        :param here: whether it is this rank's part.
        :raises Diverged: always.
        """
        # The first rank to leave has the others ended: not while rank 0 writes.
        self.ctx.barrier()
        raise Diverged(message, here=here)

    def final(self, tiles: set[int]) -> None:
        """Record that this rank did all it was asked for; its last line."""
        for fault in self.faults.unstruck():
            print(f"injected fault without an occasion: {fault}", file=sys.stderr, flush=True)
        self.events.write(
            "final",
            step=self.watch.step,
            steps=self.steps,
            peak_memory_bytes=self.meter.peak_memory_bytes,
            resident_peak_bytes=resident_peak_bytes(),
            bytes_sent=self.ctx.bytes_sent,
            tiles=sorted(tiles),
        )


def open_session(run_dir: str) -> tuple[RunPaths, AttemptPaths, RankEnvironment, EventLog]:
    """Move stdout and stderr into this rank's log and write the start event.

    From here on everything this process prints, also from C code, ends in `rank-<r>.log`.
    """
    paths = RunPaths(Path(run_dir))
    env = RankEnvironment.read()
    attempt = paths.attempt(env.attempt)
    # Not its parents: a run whose folder was removed meanwhile must not come back.
    attempt.dir.mkdir(exist_ok=True)
    log = os.open(attempt.rank_log(env.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    cpus = len(os.sched_getaffinity(0))
    header = (
        f"# job {env.job_id} attempt {env.attempt} host {env.host} rank {env.rank}/{env.world_size} pid {os.getpid()}"
    )
    print(f"{header} cpus {cpus}", flush=True)
    threads = int(os.environ.get("OMP_NUM_THREADS") or cpus)
    torch.set_num_threads(threads)
    events = EventLog(attempt.rank_events(env.rank), room=attempt.rank_room(env.rank))
    events.write(
        "start",
        rank=env.rank,
        world_size=env.world_size,
        host=env.host,
        pid=os.getpid(),
        job_id=env.job_id,
        attempt=env.attempt,
        device="cuda" if torch.cuda.is_available() else "cpu",
        cpus=cpus,
        threads=threads,
        python=sys.executable,
        versions={"python": platform.python_version(), **{n: version(n) for n in ("torch", "deepinv", "dptrain")}},
    )
    return paths, attempt, env, events


def job_began_s() -> float:
    """When the job's script began, seconds since the epoch: setup lines may take minutes of the time limit. Without a script: now."""
    said = os.environ.get(JOB_BEGAN, "")
    return float(said) if said.isdecimal() else STARTED_S


def start_session(
    paths: RunPaths, attempt: AttemptPaths, env: RankEnvironment, events: EventLog, watch: Watch, requests: Requests
) -> Session:
    """Read what was planned, meet the other ranks, choose the device."""
    spec = load_spec(paths.spec).spec
    intent = read_intent(paths)
    watch.limits_s = {
        "setup": spec.run.setup_timeout_s,
        "run": spec.run.stall_timeout_s,
        "close": spec.run.setup_timeout_s,
    }
    faults = Faults(intent.faults, env.rank, env.attempt, events, requests)
    env.export()
    timeout_s = spec.run.setup_timeout_s + LOSE_S
    connect(env, intent.world_size, attempt, timeout_s, max(timeout_s, spec.run.stall_timeout_s + LOSE_S))
    ctx = RankContext(env, spec.run.seed, watch.progress, replicas=spec.resources.replicas, timeout_s=timeout_s)
    ctx.__enter__()
    faults.at_step(0)
    window = make_window(spec.run, attempt, env.rank, ctx.device)
    meter = Meter(ctx.device, track=not spec.resources.compile, window=window)
    watch.peak_memory_bytes = lambda: meter.peak_memory_bytes
    watch.bytes_sent = lambda: ctx.bytes_sent
    return Session(
        paths=paths,
        attempt=attempt,
        env=env,
        intent=intent,
        events=events,
        watch=watch,
        requests=requests,
        spec=spec,
        plan=json.loads(paths.plan.read_text(encoding="utf-8")),
        ctx=ctx,
        meter=meter,
        faults=faults,
        started_s=job_began_s(),
        steps=intent.steps,
    )


def leave_failed(error: BaseException, events: EventLog, watch: Watch) -> NoReturn:
    """Write the failure record and leave at once: no collective, no teardown; the launcher ends the other ranks."""
    text = "".join(traceback.format_exception(error))
    message = (str(error) if isinstance(error, DptrainError) else f"{type(error).__name__}: {error}")[:LONGEST_MESSAGE]
    lost = any(words in message.lower() for words in LOST_CONNECTION)
    events.last_words(
        "failure",
        **{"class": failure_class(error, watch.phase)},
        step=watch.step,
        signal=None,
        message=message,
        traceback=text[-LONGEST_TRACEBACK:],
        peak_memory_bytes=number_of(watch.peak_memory_bytes) or None,
        secondary=lost or (isinstance(error, Diverged) and not error.here),
    )
    with suppress(OSError):  # a full disk takes no words
        print(text, file=sys.stderr, flush=True)
    os._exit(1)


def failure_class(error: BaseException, phase: str) -> str:
    """The class of a failure, as `status` shows it."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out-of-memory (device)"
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or no_memory or "can't allocate memory" in str(error):
        return "out-of-memory (host)"
    if isinstance(error, NotRestarted):
        return error.reason
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk-full"
    if isinstance(error, WorldMismatch):
        return "world-mismatch"
    if isinstance(error, Diverged):
        return "diverged"
    return "setup" if phase == "setup" else "exception"
