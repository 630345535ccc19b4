"""Strikes a rank with the faults its run was made with (`records/faults.py` has the grammar).

A fault does what its name says wherever that can be had: real signals, a real refusal of the allocator, a real NaN that the
arithmetic spreads. Stand-ins: `full-disk` is the kernel's error from a disk that is not full, and `out-of-memory` is a request no
machine can meet rather than memory filled up. Every strike is an event of the rank before it happens.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from dptrain.engine.watch import Requests
from dptrain.records.events import EventLog
from dptrain.records.faults import SAVE_KINDS, STEP_KINDS, Fault, check_restart, parse_faults

OBEYED_S = 30.0
"""A signal to oneself is obeyed by a thread of its own within so long."""


class InjectedFault(RuntimeError):
    """What the fault `raise` raises."""


class Faults:
    """The faults of one rank in one attempt; each strikes once, but `slow` in every step."""

    def __init__(self, planned: str | None, rank: int, attempt: int, events: EventLog, requests: Requests) -> None:
        """
        :param planned: those of the run's intent.
        :raises UsageError: this process was given others: they would silently do nothing.
        """
        check_restart(os.environ, planned)
        every = parse_faults(planned) if planned else ()
        self._left = [fault for fault in every if fault.meant_for(rank, attempt)]
        self._struck: set[Fault] = set()
        self._events, self._requests = events, requests

    def at_step(self, step: int, *tensors: torch.Tensor) -> None:
        """Called as a step begins.

        :param step: 0 in the set-up.
        :param tensors: what `non-finite` spoils, in place.
        """
        for fault in self._due(STEP_KINDS, step):
            self._strike(fault, step)
            if fault.kind == "non-finite":
                for tensor in tensors:
                    tensor.fill_(math.nan)
            elif fault.kind == "preempt":
                os.kill(os.getpid(), signal.SIGUSR2)
                _wait(lambda: self._requests.save_and_stop)
            else:
                _AT_STEP[fault.kind](fault)

    @contextmanager
    def saving(self, step: int, folder: Path) -> Iterator[None]:
        """Around a save, on every rank.

        :param folder: where the save goes.
        """
        with ExitStack() as strikes:
            for fault in self._due(SAVE_KINDS, step):
                self._strike(fault, step)
                strikes.enter_context(_SAVING[fault.kind](fault, folder))
            yield

    def unstruck(self) -> list[str]:
        """Those that the run's end left without an occasion."""
        return [str(fault) for fault in self._left if fault not in self._struck]

    def _due(self, kinds: dict[str, str], step: int) -> list[Fault]:
        due = [fault for fault in self._left if fault.kind in kinds and _now(fault, step)]
        self._left = [fault for fault in self._left if fault not in due or fault.kind == "slow"]
        return due

    def _strike(self, fault: Fault, step: int) -> None:
        if fault in self._struck:  # slow: once is enough to say so
            return
        self._struck.add(fault)
        self._events.write("fault", fault=str(fault), step=step)
        print(f"injected fault: {fault}", file=sys.stderr, flush=True)


def _now(fault: Fault, step: int) -> bool:
    return step >= fault.step if fault.kind == "slow" or fault.kind in SAVE_KINDS else step == fault.step


def _raise(fault: Fault) -> None:
    raise InjectedFault(f"injected on purpose: {fault}")


def _hang(fault: Fault) -> None:
    while True:
        time.sleep(1)


def _terminate(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    _wait(lambda: False)


def _out_of_memory(fault: Fault) -> None:
    # More than any address space holds: refused at once, by the same allocator and with the same words as one byte too many.
    torch.empty(2**60, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu")


_AT_STEP: dict[str, Callable[[Fault], Any]] = {
    "raise": _raise,
    "kill": lambda fault: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda fault: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": _hang,
    "slow": lambda fault: time.sleep(fault.seconds or 0.0),
    "exit": lambda fault: os._exit(fault.code),
    "terminate": _terminate,
    "out-of-memory": _out_of_memory,
}


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + OBEYED_S
    while not done():
        assert time.monotonic() < deadline, "nobody obeys the signal"
        time.sleep(0.01)


@contextmanager
def _kill_during_save(fault: Fault, folder: Path) -> Iterator[None]:
    def kill(*event: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if fault.seconds is None:
        # A file of the unfinished save is opened to be measured: this one is written, its manifest is not.
        _on_file_operation(folder, ("open",), kill)
    else:
        threading.Timer(fault.seconds, kill).start()
    yield
    kill()  # The save was faster, or this rank wrote nothing.


@contextmanager
def _full_disk(fault: Fault, folder: Path) -> Iterator[None]:
    def refuse(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    _on_file_operation(folder, ("open", "os.mkdir"), refuse)
    yield
    refuse(str(folder))  # This rank wrote nothing.


_SAVING: dict[str, Callable[[Fault, Path], AbstractContextManager[None]]] = {
    "kill-during-save": _kill_during_save,
    "full-disk": _full_disk,
}


def _on_file_operation(folder: Path, names: tuple[str, ...], act: Callable[[str], None]) -> None:
    """Call `act` when Python is about to do one of these in the folder; for the rest of the process, as audit hooks are."""
    inside = f"{folder.absolute()}{os.sep}"

    def hook(name: str, words: tuple[Any, ...]) -> None:
        if name in names and words and isinstance(words[0], (str, os.PathLike)):
            path = str(Path(words[0]).absolute())
            if path.startswith(inside):
                act(path)

    sys.addaudithook(hook)
