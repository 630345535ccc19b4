"""What a rank does besides working: it shows that it lives, notices that it does not get on, and remembers signals.

One daemon thread writes a heartbeat and compares the time since the last progress with the limit of the phase. Another reads
signals: the scheduler's warning only sets a flag, which the loops look at at step boundaries, where all ranks agree
(`Requests.agree`); SIGTERM ends the rank at once, also inside a collective.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from dptrain.engine.communication import all_reduce
from dptrain.records.events import EventLog

HEARTBEAT_S = 10.0
"""Seconds between heartbeats."""
STOPPED_S = 5.0
"""The watching thread waits a second between two turns; after so many the whole process was stopped, or its machine was."""
OTHERS_DUMP_S = 3.0
"""After a stall is noticed, seconds left to the other ranks to write their own stacks before the job is torn down."""
EXIT_REQUEUE = 75
"""Exit code of a rank whose work is saved and that asks to be started again (EX_TEMPFAIL of sysexits.h)."""
EXIT_CANCELLED = 128 + signal.SIGTERM


class Watch:
    """Phase, progress and limits of one rank."""

    def __init__(self, events: EventLog, *, setup_timeout_s: float, stall_timeout_s: float) -> None:
        self.events = events
        self.limits_s = {
            "setup": setup_timeout_s,
            "run": stall_timeout_s,
            "close": max(setup_timeout_s, stall_timeout_s),
        }
        self.phase = "setup"
        self.step = 0
        self.peak_memory_bytes: Callable[[], int] = lambda: 0
        self.bytes_sent: Callable[[], int] = lambda: 0
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)

    def start(self) -> None:
        """Enter the phase `setup` and begin watching."""
        self.enter("setup")
        self._thread.start()

    def enter(self, phase: str) -> None:
        """Enter a phase: setup, run, close."""
        self.phase = phase
        self.progress()
        self.events.write("phase", phase=phase)

    def progress(self, step: int | None = None) -> None:
        """Something was finished: a step, a section, a collective."""
        self._last = time.monotonic()
        if step is not None:
            self.step = step

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _loop(self) -> None:
        beat = turn = time.monotonic()
        while not self._stop.wait(min(1.0, min(self.limits_s.values()) / 4)):
            now = time.monotonic()
            limit_s = self.limits_s[self.phase]
            if now - turn > STOPPED_S:  # and not even this thread ran: a job that was suspended goes on
                self.progress()
            if now - self._last > limit_s:
                self._stalled(limit_s)
            if self._forgotten():
                print("the run's folder is gone: this rank ends", file=sys.stderr, flush=True)
                os._exit(1)
            if now - beat >= HEARTBEAT_S:
                beat = now
                self.events.try_write(
                    "heartbeat",
                    phase=self.phase,
                    step=self.step,
                    peak_memory_bytes=number_of(self.peak_memory_bytes),
                    bytes_sent=number_of(self.bytes_sent),
                )
            # Only the wait is timed: a slow file system, or device, holds up the turn of a process that was not stopped.
            turn = time.monotonic()

    def _forgotten(self) -> bool:
        """Whether the folder of the records was removed; a file system that does not answer is no reason to end."""
        try:
            self.events.path.parent.stat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def _stalled(self, limit_s: float) -> None:
        whats = {"setup": "set-up made", "close": "the end of the run made"}
        what = whats.get(self.phase, f"step {self.step + 1} made")
        message = f"{what} no progress for {limit_s:.0f} s"
        with suppress(OSError):  # a full disk
            print(f"stalled: {message}; stacks of all threads:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        self.events.last_words(
            "failure",
            **{"class": "stalled"},
            step=self.step,
            signal=None,
            message=message,
            traceback="",
            secondary=False,
            waiting=_in_collective(),
        )
        time.sleep(OTHERS_DUMP_S)
        os._exit(1)


def number_of(number: Callable[[], int]) -> int | None:
    """A number for a record; None where the device answers nothing any more: whoever asks has more to do than that."""
    try:
        return number()
    except Exception:  # a heartbeat without a number is one; without a watch nothing would end this rank
        return None


def _in_collective() -> bool:
    """Whether the main thread is communicating: it waits for other ranks, and is not what holds them up."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    # The exchange waits for a handle of torch's, and measured steps for the device, which is no frame of torch.distributed.
    own = [str(Path(__file__).with_name(name)) for name in ("exchange.py", "communication.py")]
    inside = (f"{Path(dist.__file__).parent}{os.sep}", *own)
    while frame is not None:
        if frame.f_code.co_filename.startswith(inside):
            return True
        frame = frame.f_back
    return False


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What the ranks agreed on at a step boundary."""

    stop: bool
    """Save and leave, to be started again."""
    diverged: bool


class Requests:
    """What signals asked for. SIGUSR2, the scheduler's warning, sets a flag; SIGTERM ends the rank as cancelled."""

    def __init__(self, events: EventLog, watch: Watch) -> None:
        self.events, self.watch = events, watch
        self.save_and_stop = False
        self.leaving = False
        """Saved and asked to be started again: the scheduler's SIGTERM that follows is not a cancellation."""

    def install(self) -> None:
        """Replace the handlers of whoever started this process; submitit's swallows SIGTERM.

        Python runs handlers in the main thread, which may sit in a collective that never returns. The number is therefore read
        from the wake-up pipe by a thread of its own, which acts at once.
        """
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._pipe = (reader, writer)
        threading.Thread(target=self._listen, args=(reader,), name="signals", daemon=True).start()
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)
        # On SLURM it is blocked until here, so that a warning during the imports waits instead of ending the rank.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches the command line tool, which ends the ranks in order.

    def agree(self, device: torch.device, *, diverged: bool) -> Agreement:
        """What any rank was asked for or found in this step; a collective, the same answer everywhere.

        :param diverged: whether this rank found that the numbers run away.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return Agreement(stop=self.save_and_stop, diverged=diverged)
        flags = torch.tensor([self.save_and_stop, diverged], dtype=torch.float32, device=device)
        all_reduce(flags)
        stop, wrong = flags.tolist()
        return Agreement(stop=stop > 0, diverged=wrong > 0)

    def _listen(self, reader: socket.socket) -> None:
        while True:
            for number in reader.recv(64):
                if number == signal.SIGUSR2:
                    self.save_and_stop = True
                    self.events.try_write("signal", signal="SIGUSR2")
                elif number == signal.SIGTERM:
                    self._terminate()

    def _terminate(self) -> None:
        self.events.try_write("signal", signal="SIGTERM")
        if self.leaving:
            os._exit(EXIT_REQUEUE)
        self.events.last_words(
            "failure",
            **{"class": "cancelled"},
            step=self.watch.step,
            signal="SIGTERM",
            message="ended by SIGTERM",
            traceback="",
            secondary=False,
        )
        os._exit(EXIT_CANCELLED)
