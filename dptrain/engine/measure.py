"""What a step costs: seconds per section, and the peak of storages alive at once.

On CUDA the allocator keeps the peak. On CPU nothing does, so `StorageTracker` sees every tensor that an operation returns and
adds up the storages that are alive; it costs some microseconds per operation and nothing in memory.
"""

from __future__ import annotations

import resource
import statistics
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepinv.utils import TensorList
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

from dptrain.engine import observe
from dptrain.engine.observers import Window
from dptrain.records.calibration import CPU

ALLOCATION_BYTES = 512
"""CUDA's caching allocator rounds every block up to this; the tracker does the same, so that both speak of one thing."""


def allocated_bytes(tensor: torch.Tensor) -> int:
    """What a tensor's storage takes from the allocator."""
    return -(-tensor.untyped_storage().nbytes() // ALLOCATION_BYTES) * ALLOCATION_BYTES


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all tensor storages alive, and their peak, from the moment of entering."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current_bytes = 0
        self.peak_bytes = 0
        self.largest_bytes = 0
        """The largest single storage so far."""
        self._alive: dict[int, int] = {}

    def watch(self, *values: Any) -> None:
        """Count tensors that existed before: parameters and buffers of modules, tensors in any nesting."""
        for value in tree_iter(values):
            if isinstance(value, torch.nn.Module):
                self.watch(*value.parameters(), *value.buffers())
            elif isinstance(value, TensorList):  # torch takes it for a leaf
                self.watch(*value)
            elif isinstance(value, torch.Tensor):
                self._add(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor):
                self._add(value)
        return out

    def is_alive(self, key: int) -> bool:
        """Whether a storage that was seen, of this `_cdata`, is still there."""
        return key in self._alive

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        self._born(key, allocated_bytes(tensor))
        weakref.finalize(storage, self._died, key)

    def _born(self, key: int, size: int) -> None:
        self._alive[key] = size
        self.current_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        self.largest_bytes = max(self.largest_bytes, size)

    def _died(self, key: int) -> None:
        self.current_bytes -= self._alive.pop(key, 0)


class Meter:
    """Seconds per section of each step, and this rank's peak memory."""

    def __init__(self, device: torch.device, *, track: bool, window: Window | None = None) -> None:
        """
        :param device: where the work runs.
        :param track: on CPU, follow storages; not possible around compiled code, where the process's peak stands in.
        :param window: the steps that are looked at more closely; None: none.
        """
        self.device = device
        self.window = window or Window(observe.Observer(), 0, 1)
        self.step_s = 0.0
        """Seconds of the newest step."""
        self.tracker = StorageTracker() if track and device.type == "cpu" else None
        self._open: dict[str, float] = defaultdict(float)
        self._steps: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def tracking(self, *existing: Any) -> Iterator[None]:
        """Track memory inside; `existing` are modules and tensors made before."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        if self.tracker is None:
            yield
            return
        self.tracker.watch(*existing)
        with self.tracker:
            yield

    def watch(self, *existing: Any) -> None:
        """Count modules and tensors made outside the tracking."""
        if self.tracker is not None:
            self.tracker.watch(*existing)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what happens inside out of the account: metrics are not part of the step."""
        with _disable_current_modes():
            yield

    @property
    def peak_memory_bytes(self) -> int:
        """Peak so far: the allocator's on CUDA, the tracker's on CPU, else the process's resident peak."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        if self.tracker is not None:
            return self.tracker.peak_bytes
        return resident_peak_bytes()

    @property
    def largest_storage_bytes(self) -> int | None:
        """The largest single tensor so far, on CPU where storages are followed; None: not known."""
        return None if self.tracker is None else self.tracker.largest_bytes

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time a part of a step; the parts of one name add up within the step."""
        self._wait()
        start = time.perf_counter()
        with observe.section(name):
            try:
                yield
            finally:
                self._wait()
                self._open[name] += time.perf_counter() - start

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed as a section."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.section(name):
                return function(*args, **kwargs)

        return wrapper

    @contextmanager
    def step(self, number: int, last: int, parts: tuple[str, ...]) -> Iterator[None]:
        """Time step `number` of the run; the section `other` is what `parts` do not explain of it.

        :param last: number of the last step of the run.
        """
        self.window.before(number, last)
        begin = time.perf_counter()
        with observe.step(number):
            yield
        self.step_s = time.perf_counter() - begin
        self.close_step(self.step_s, parts)
        self.window.after(number)

    def close_step(self, total_s: float, parts: tuple[str, ...]) -> None:
        """End a step of `total_s` seconds: what `parts` do not explain is `other`."""
        for name in parts:
            self._steps[name].append(self._open[name])
        self._steps["other"].append(max(0.0, total_s - sum(self._open[name] for name in parts)))
        self._open.clear()

    def medians(self) -> dict[str, float]:
        """Median seconds per section over the steps, without the first, which pays for warm-up, where there are more."""
        return {name: statistics.median(v[1:] if len(v) > 1 else v) for name, v in self._steps.items()}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def card_name(device: torch.device) -> str:
    """What a GPU calls itself; `cpu` for a processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else CPU


def resident_peak_bytes() -> int:
    """Largest resident size of this process so far, with libraries and what no tracker sees.

    Linux keeps it per program; `getrusage`, asked elsewhere, starts with that of the process which started this one.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
