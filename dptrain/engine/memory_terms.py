"""What the bytes at a peak are: a storage tracker that knows in which phase, and for what, a storage was made.

The terms of a phase add up to its peak. A storage belongs to one: `weights`, `gradients`, `optimizer` (its state), `data` (truth,
measurements or A^T y, buffers of the physics), `retained` (made by the forward pass and kept for the backward pass), `tile_batch`
(inside the network), `exchange` (message buffers, the bucket of gradients), `images` (what else an iteration holds for a moment).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dptrain.engine.measure import Meter, StorageTracker

Terms = dict[str, int]
"""Bytes by term."""
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
WEIGHTS, DATA, GRADIENTS, TILE, EXCHANGE = "weights", "data", "gradients", "tile_batch", "exchange"
OPTIMIZER_STATE, RETAINED, IMAGES = "optimizer", "retained", "images"


class TermTracker(StorageTracker):  # type: ignore[no-untyped-call]
    """A storage tracker that keeps, per phase, the peak and its terms."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = FORWARD
        self.tag = ""
        """What storages made now are for; empty: not known."""
        self.peaks: dict[str, tuple[int, Counter[tuple[str, str]]]] = {}
        self._kinds: dict[int, tuple[str, str]] = {}
        self._now: Counter[tuple[str, str]] = Counter()
        self._kept: Counter[tuple[str, str]] = Counter()

    def enter(self, phase: str) -> None:
        """The next phase of a step."""
        if phase == BACKWARD:
            self._kept = self._now.copy()
        self.phase, self.tag = phase, ""

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        """Storages made inside are for `tag`."""
        before, self.tag = self.tag, tag
        try:
            yield
        finally:
            self.tag = before

    def mark(self, tensor: torch.Tensor, tag: str) -> None:
        """Say of a tensor that is alive what it is for."""
        key = tensor.untyped_storage()._cdata
        if key in self._kinds:
            size = self._alive[key]
            self._now[self._kinds[key]] -= size
            self._kinds[key] = (self.phase, tag)
            self._now[self._kinds[key]] += size

    def terms(self, phase: str) -> Terms:
        """Bytes by term at the peak of a phase."""
        named: Counter[str] = Counter()
        for (made_in, tag), size in self.peaks[phase][1].items():
            name = _term(phase, made_in, tag)
            if phase == made_in == FORWARD and name in (TILE, IMAGES):
                # The last step's temporaries take the place of what it keeps in the end.
                kept = min(size, self._kept[made_in, tag])
                named[RETAINED] += kept
                size -= kept
            named[name] += size
        return {name: size for name, size in named.items() if size}

    def _born(self, key: int, size: int) -> None:
        super()._born(key, size)
        self._kinds[key] = (self.phase, self.tag)
        self._now[self._kinds[key]] += size
        if self.phase not in self.peaks or self.current_bytes > self.peaks[self.phase][0]:
            self.peaks[self.phase] = (self.current_bytes, self._now.copy())

    def _died(self, key: int) -> None:
        if key in self._kinds:
            self._now[self._kinds.pop(key)] -= self._alive[key]
        super()._died(key)


def _term(phase: str, made_in: str, tag: str) -> str:
    if tag in (WEIGHTS, DATA, GRADIENTS, EXCHANGE):
        return tag
    if made_in == OPTIMIZER:
        return OPTIMIZER_STATE
    if phase != FORWARD and made_in == FORWARD:
        return RETAINED
    return tag or IMAGES


class TermMeter(Meter):
    """A meter whose sections are the tracker's phases."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        """
        :param parameters: those whose gradients count as such.
        """
        super().__init__(torch.device("cpu"), track=False)
        self.terms = TermTracker()
        self.tracker = self.terms
        self._parameters = parameters
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._mark_gradient)  # type: ignore[no-untyped-call]

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """A phase of the step, or a part of one."""
        if name == OPTIMIZER:
            for parameter in self._parameters:
                self._mark_gradient(parameter)
        if name in (FORWARD, BACKWARD, OPTIMIZER):
            self.terms.enter(name)
        yield

    def tagged(self, tag: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; storages that it makes are for `tag`."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.terms.tagged(tag):
                return function(*args, **kwargs)

        return wrapper

    def _mark_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.terms.mark(parameter.grad, GRADIENTS)
