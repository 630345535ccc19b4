"""The ways to look at a run's measured steps, `run.measure` of the spec (docs/measuring.md), and which steps these are."""

from __future__ import annotations

import os
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dptrain.engine.observe import Observer, Range, observed_by
from dptrain.engine.split import BETWEEN, Key, Seen
from dptrain.records.paths import AttemptPaths
from dptrain.spec.schema import Run

OTHER = "other"
"""The section of what a step does outside its named sections."""
TABLE_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a window on one rank."""

    steps: tuple[int, int] | None
    """First and last; None: they did not all come to pass."""
    seen: Seen | None
    files: Sequence[Path]
    note: str | None


class Window:
    """The steps of an attempt that are measured: so many after the first few, which pay for warm-up."""

    def __init__(self, observer: Observer, warm_up_steps: int, active_steps: int) -> None:
        """An attempt with fewer steps has a shorter warm-up, so that its last steps are measured; with one step, that one."""
        self.observer, self._warm_up, self._active = observer, warm_up_steps, active_steps
        self._range: tuple[int, int] | None = None
        self._over = False

    @property
    def outcome(self) -> Outcome:
        """So far."""
        observer = self.observer
        if not self._over:
            return Outcome(steps=None, seen=None, files=(), note=observer.note)
        return Outcome(steps=self._range, seen=observer.seen, files=observer.files, note=observer.note)

    def before(self, step: int, last: int) -> None:
        """Step `step` is about to begin.

        :param last: of the run.
        """
        if self._range is not None:
            return
        warm_up = min(self._warm_up, last - step)
        first = step + warm_up
        self._range = (first, min(first + self._active - 1, last))
        self.observer.prepare(warm_up, self._range[1] - first + 1)
        if not warm_up:
            self._open()

    def after(self, step: int) -> None:
        """Step `step` is over."""
        assert self._range is not None
        if step > self._range[1]:
            return
        self.observer.after_step()
        if step == self._range[0] - 1:
            self._open()
        elif step == self._range[1]:
            observed_by(None)
            self.observer.close()
            self._over = True

    def _open(self) -> None:
        self.observer.open()
        observed_by(self.observer)


class CallTimes(Observer):
    """Seconds of every exchange and collective, and all seconds by section."""

    def __init__(self, wait: Callable[[], None]) -> None:
        """
        :param wait: returns when the device has done what it was given; around every call.
        """
        self._wait = wait
        self._seconds: dict[str, float] = defaultdict(float)
        self._bytes: dict[str, int] = defaultdict(int)
        self._calls: dict[Key, array[float]] = {}
        self._section, self._since = BETWEEN, 0.0

    @property
    def seen(self) -> Seen:
        """So far."""
        return Seen(seconds=dict(self._seconds), bytes_sent=dict(self._bytes), calls=dict(self._calls))

    def open(self) -> None:
        """Time counts from here."""
        self._since = time.perf_counter()

    def close(self) -> None:
        """To here."""
        self._enter(BETWEEN)

    def step(self, number: int) -> Range:
        """What it does outside its sections is a section of its own."""
        return self.section(OTHER)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Inside, time is this section's and not that of the one around it."""
        around = self._section
        self._enter(name)
        try:
            yield
        finally:
            self._enter(around)

    def call(self, name: str, key: str) -> Range:
        """Timed wherever it is entered."""
        times = self._calls.setdefault((self._section, key), array("d"))
        times.append(0.0)
        return _Timed(times, self._wait)

    def sent(self, bytes_sent: int) -> None:
        """Counted in the section."""
        self._bytes[self._section] += bytes_sent

    def _enter(self, section: str) -> None:
        now = time.perf_counter()
        self._seconds[self._section] += now - self._since
        self._section, self._since = section, now


class _Timed:
    """Adds to the newest time of a list."""

    def __init__(self, times: array[float], wait: Callable[[], None]) -> None:
        self._times, self._at, self._wait = times, len(times) - 1, wait

    def __enter__(self) -> None:
        self._wait()
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._wait()
        self._times[self._at] += time.perf_counter() - self._begin


class _Labelled:
    """A named range of a tool that can be entered again."""

    def __init__(self, make: Callable[[str], Any], name: str) -> None:
        self._make, self._name = make, name

    def __enter__(self) -> None:
        self._range = self._make(self._name)
        self._range.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._range.__exit__(*error)


class _Ranges(Observer):
    """Names steps, sections and calls for a tool that draws time lines."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make

    def step(self, number: int) -> Range:
        """`dptrain.step`."""
        return _Labelled(self._make, "dptrain.step")

    def section(self, name: str) -> Range:
        """`dptrain.section.<name>`."""
        return _Labelled(self._make, f"dptrain.section.{name}")

    def call(self, name: str, key: str) -> Range:
        """`dptrain.communication.<name>`."""
        return _Labelled(self._make, f"dptrain.communication.{name}")


class OperatorProfile(_Ranges):
    """torch.profiler: a table of operators and a Chrome trace, written when the measured steps are over."""

    def __init__(self, trace: Path, operators: Path) -> None:
        super().__init__(torch.profiler.record_function)
        self.files = (trace, operators)
        self._profiler: torch.profiler.profile | None = None

    def prepare(self, warm_up_steps: int, active_steps: int) -> None:
        """The profiler warms up in the last step before those that are measured."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        else:
            # A torch with CUDA looks for devices all the same, and calls it an error that there is none.
            os.environ.setdefault("KINETO_LOG_LEVEL", "5")
        warm_up = min(1, warm_up_steps)
        steps = torch.profiler.schedule(wait=warm_up_steps - warm_up, warmup=warm_up, active=active_steps, repeat=1)
        self._profiler = torch.profiler.profile(
            activities=activities, schedule=steps, on_trace_ready=self._write, acc_events=True
        )
        self._profiler.start()

    def after_step(self) -> None:
        """The profiler counts them."""
        assert self._profiler is not None
        self._profiler.step()

    def close(self) -> None:
        """The files are written by now."""
        assert self._profiler is not None
        self._profiler.stop()
        self._profiler = None

    def _write(self, profiler: torch.profiler.profile) -> None:
        trace, operators = self.files
        profiler.export_chrome_trace(str(trace))
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=order, row_limit=TABLE_ROWS)
        operators.write_text(table, encoding="utf-8")


class NoCuda(Observer):
    """In the place of `NvtxRanges` where there is no CUDA."""

    note = "run.measure is nvtx, but there is no CUDA device here: no ranges were written"

    def prepare(self, warm_up_steps: int, active_steps: int) -> None:
        """Say so in the log."""
        print(self.note, flush=True)


class NvtxRanges(_Ranges):
    """Ranges for Nsight Systems, which with `--capture-range=cudaProfilerApi` records the measured steps only."""

    def __init__(self) -> None:
        super().__init__(torch.cuda.nvtx.range)

    def open(self) -> None:
        """Nsight Systems starts to record."""
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """And stops."""
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def make_window(run: Run, attempt: AttemptPaths, rank: int, device: torch.device) -> Window:
    """What `run.measure` asks for, on this rank."""
    observer: Observer
    cuda = device.type == "cuda"
    if run.measure == "torch":
        observer = OperatorProfile(attempt.rank_trace(rank), attempt.rank_operators(rank))
    elif run.measure == "nvtx":
        observer = NvtxRanges() if cuda else NoCuda()
    else:
        observer = CallTimes((lambda: torch.cuda.synchronize(device)) if cuda else _no_wait)
    return Window(observer, run.measure_warmup_steps, run.measure_steps)


def _no_wait() -> None:
    """On CPU a call that has returned is over."""
