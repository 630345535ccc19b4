"""A network that stands in for most of its own calls, so that a step with hundreds of tiles takes seconds.

Of every pass over a rank's tiles the first two, the middle and the last two calls are real. The others are exchanged for one
operation that returns a tensor of the same shape and keeps as many bytes for the backward pass as the first call kept, and its input
where the network keeps that. Everything
around the network stays real. At a peak one call is in the middle of its work, and what others keep then is most at one of the ends
of a pass; a tile inside the image may need a little more than one at its border. So nothing is lost, as long as all calls but the
last have one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dptrain.engine.measure import StorageTracker, allocated_bytes
from dptrain.engine.memory_terms import FORWARD, TILE, TermTracker

REAL_AT_EACH_END = 2
"""Calls of a pass. One is not enough: before the first gradient of a neighbouring tile, a buffer is missing."""


@dataclass(frozen=True, kw_only=True)
class _Made:
    """What the network makes of a batch."""

    dtype: torch.dtype
    elements: int
    """Of its storage: a network that pads returns a part of a larger tensor; 0: it returns its input."""


class ThinForward:
    """What takes the place of a network's `forward`; on the object, so that its type and the names of its weights stay."""

    def __init__(self, network: torch.nn.Module, *, thin: bool) -> None:
        """
        :param network: called as network(x, sigma).
        :param thin: whether to leave calls out; else all are real.
        """
        self.tracker: TermTracker | None = None
        """Until there is one, calls are only counted."""
        self.calls_per_pass = 0
        self._network, self._forward, self._thin = network, network.forward, thin
        self._calls = 0
        self._kept_bytes = 0
        self._made = _Made(dtype=torch.float32, elements=0)
        self._gradient_bytes = 0
        self._keeps_input: bool | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, calls of the network come here."""
        self._network.forward = self
        try:
            yield
        finally:
            del self._network.forward

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """The network, or what stands in for it."""
        if self.tracker is None:
            self.calls_per_pass += 1
            if self._thin and self._keeps_input is None:
                self._keeps_input = _keeps_input(self._forward, x, sigma)
            return x.clone()
        place = self._calls % self.calls_per_pass
        self._calls += 1
        if not self._thin or self._is_real(place):
            return self._real(x, sigma, self.tracker, first=place == 0)
        if not self._made.elements:
            return x
        anchor = next((p for p in self._network.parameters() if p.requires_grad), None)
        keep = (x,) if self._keeps_input else ()
        out: torch.Tensor = _StandIn.apply(x, anchor, self._kept_bytes, self._made, self._gradient_of_input, keep)
        return out

    def _is_real(self, place: int) -> bool:
        # The same read from both ends: recomputation in the backward pass may come by in the reverse order.
        from_end = min(place, self.calls_per_pass - 1 - place)
        return from_end < REAL_AT_EACH_END or from_end == (self.calls_per_pass - 1) // 2

    def _real(self, x: torch.Tensor, sigma: torch.Tensor, tracker: TermTracker, *, first: bool) -> torch.Tensor:
        before = tracker.current_bytes

        def begin(gradient: torch.Tensor) -> None:
            tracker.tag = TILE

        def end(gradient: torch.Tensor) -> None:
            tracker.tag = ""
            self._gradient_bytes = gradient.untyped_storage().nbytes()

        with tracker.tagged(TILE):
            out: torch.Tensor = self._forward(_Watched.apply(x, end) if x.requires_grad else x, sigma)
        if first and tracker.phase == FORWARD:
            same = out.untyped_storage()._cdata == x.untyped_storage()._cdata
            self._kept_bytes = max(0, tracker.current_bytes - before - (0 if same else allocated_bytes(out)))
            elements = 0 if same else out.untyped_storage().nbytes() // out.element_size()
            self._made = _Made(dtype=out.dtype, elements=elements)
        if out.requires_grad and out is not x:
            # Between the gradient of the output and that of the input the network's backward pass is at work.
            out.register_hook(begin)  # type: ignore[no-untyped-call]
        return out

    def _gradient_of_input(self, x: torch.Tensor) -> torch.Tensor:
        """As large as a real call's, which may be the part of a larger tensor that belongs to the image and not to its noise map."""
        elements = max(x.numel(), self._gradient_bytes // x.element_size())
        return x.new_empty(elements)[: x.numel()].view(x.shape)


def _keeps_input(network: Callable[..., torch.Tensor], x: torch.Tensor, sigma: torch.Tensor) -> bool:
    """Whether the storage of its input lives as long as the graph of its output, as that of a convolution with trained weights does."""
    with torch.enable_grad(), StorageTracker() as tracker:
        # Not a leaf, which its own graph holds.
        given = x.detach().requires_grad_().clone()
        key = given.untyped_storage()._cdata
        out = network(given, sigma)
        same = out.untyped_storage()._cdata == key
        del given
        return not same and tracker.is_alive(key)


class _Watched(torch.autograd.Function):
    """The same tensor; its gradient is shown as soon as it is there. A hook would wait for whatever else goes first."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, show: Callable[[torch.Tensor], None]) -> torch.Tensor:
        ctx.show = show
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.show(gradient)
        return gradient, None


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        anchor: torch.Tensor | None,
        kept_bytes: int,
        made: _Made,
        gradient_like: Callable[[torch.Tensor], torch.Tensor],
        keep: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        ctx.dtype, ctx.gradient_like = x.dtype, gradient_like
        ctx.save_for_backward(x.new_empty(kept_bytes, dtype=torch.uint8), *keep)
        return x.new_empty(made.elements, dtype=made.dtype)[: x.numel()].view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        _ = ctx.saved_tensors
        return ctx.gradient_like(gradient.to(ctx.dtype)), None, None, None, None, None
