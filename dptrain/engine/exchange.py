"""The one communication primitive: boxes that ranks hold become boxes that ranks want, and the adjoint adds them back.

Both directions are linear, are each other's derivative and keep nothing, so they can be differentiated to any order. Per
exchange each rank sends at most one packed buffer to each other rank and copies once more what it unpacks; what stays on the rank
is copied while the buffers are under way. Additions follow the ranks' order, never that of arrival.

Letters: tensors are (B, C, *box): B images, C channels, then the spatial axes of one box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist

from dptrain.engine.observe import NOTHING, Range, communicating
from dptrain.geometry.boxes import Box, cells, shape_of
from dptrain.geometry.messages import ExchangePlan, Message

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class _Piece:
    """A part of one of this rank's tensors."""

    number: int
    """Which of the tensors."""
    start: tuple[int, ...]
    """Its corner in the tensor, spatial axes."""
    shape: tuple[int, ...]
    full: bool
    """Whether it is the whole tensor."""

    def of(self, tensors: Tensors) -> torch.Tensor:
        """A view of the pixels, (B, C, *shape)."""
        part = tensors[self.number]
        if not self.full:
            for axis, (start, length) in enumerate(zip(self.start, self.shape, strict=True), 2):
                if length != part.shape[axis]:
                    part = part.narrow(axis, start, length)
        return part


Route = dict[int, list[_Piece]]
"""Per other rank, ascending, the pieces of its buffer in the order both sides know."""


@dataclass
class _Flight:
    """Buffers under way."""

    received: dict[int, torch.Tensor]
    """Per peer; filled once waited for."""
    sent: list[torch.Tensor]
    """Kept alive until they have left."""
    requests: list[Any]
    call: Range
    """Entered while this rank starts them, and while it waits for them."""

    def wait(self) -> None:
        with self.call:
            for request in self.requests:
                request.wait()


class Exchange:
    """One plan as one rank carries it out, forwards (`gather`) and as its adjoint (`scatter_add`)."""

    def __init__(
        self,
        plan: ExchangePlan,
        rank: int,
        group: dist.ProcessGroup | None = None,
        on_sent: Callable[[int], None] | None = None,
        name: str = "exchange",
    ) -> None:
        """
        :param plan: the same on every rank of the group.
        :param rank: this rank within the group.
        :param group: its process group; None: the default one. Not touched where nothing is sent.
        :param on_sent: called with the bytes of every exchange that sends any.
        :param name: what observers call it.
        """
        self.plan, self.rank, self.group, self.name, self._on_sent = plan, rank, group, name, on_sent
        self.bytes_sent = 0
        self.held, self.wanted = plan.held[rank], plan.wanted[rank]
        self._held_shapes = [shape_of(box) for box in self.held]
        self._wanted_shapes = [shape_of(box) for box in self.wanted]
        out: Route = {}
        into: Route = {}
        self._own: list[tuple[_Piece, _Piece]] = []
        for message in plan.messages:
            if message.source == rank == message.target:
                self._own.append((self._source(message), self._target(message)))
            elif message.source == rank:
                out.setdefault(message.target, []).append(self._source(message))
            elif message.target == rank:
                into.setdefault(message.source, []).append(self._target(message))
        self._out, self._in = dict(sorted(out.items())), dict(sorted(into.items()))
        # Nothing moves: a tensor is its own copy.
        self.trivial = not out and not into and self.held == self.wanted

    def gather(self, *held: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The wanted tensors, from the held ones of every rank.

        :param held: one per held box of this rank, (B, C, *box).
        """
        self._check(held, self._held_shapes)
        return held if self.trivial else cast(tuple[torch.Tensor, ...], _Gather.apply(self, *held))

    def scatter_add(self, *wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The adjoint: every held pixel is the sum over all places it was wanted at.

        :param wanted: one per wanted box of this rank, (B, C, *box).
        """
        self._check(wanted, self._wanted_shapes)
        return wanted if self.trivial else cast(tuple[torch.Tensor, ...], _ScatterAdd.apply(self, *wanted))

    def copy_out(self, held: Tensors) -> tuple[torch.Tensor, ...]:
        """`gather` without a graph."""
        lead = held[0].shape[:2]
        made = tuple(held[0].new_empty((*lead, *shape)) for shape in self._wanted_shapes)
        flight = self._send(held, self._out, self._in)
        for source, target in self._own:
            target.of(made).copy_(source.of(held))
        flight.wait()
        for peer, buffer in flight.received.items():
            for piece, part in _parts(buffer, self._in[peer], lead):
                piece.of(made).copy_(part)
        return made

    def add_back(self, wanted: Tensors) -> tuple[torch.Tensor, ...]:
        """`scatter_add` without a graph: own pieces first, then those of each peer by rank."""
        lead = wanted[0].shape[:2]
        flight = self._send(wanted, self._in, self._out)
        sums, rest = self._start_sums(wanted)
        for source, target in rest:
            source.of(sums).add_(target.of(wanted))
        flight.wait()
        for peer, buffer in flight.received.items():
            for piece, part in _parts(buffer, self._out[peer], lead):
                piece.of(sums).add_(part)
        return tuple(sums)

    def _start_sums(self, wanted: Tensors) -> tuple[list[torch.Tensor], list[tuple[_Piece, _Piece]]]:
        """Sums that start with an own piece where it is the whole held box, else with zeros; and the own pieces left."""
        first: dict[int, torch.Tensor] = {}
        rest = []
        for source, target in self._own:
            if source.full and source.number not in first:
                first[source.number] = target.of(wanted).clone(memory_format=torch.contiguous_format)
            else:
                rest.append((source, target))
        lead = wanted[0].shape[:2]
        shapes = enumerate(self._held_shapes)
        return [first[i] if i in first else wanted[0].new_zeros((*lead, *shape)) for i, shape in shapes], rest

    def _send(self, tensors: Tensors, out: Route, into: Route) -> _Flight:
        """Start every buffer on its way."""
        if not out and not into:
            return _Flight({}, [], [], NOTHING)
        lead = tensors[0].shape[:2]
        received = {peer: tensors[0].new_empty(_length(pieces, lead)) for peer, pieces in into.items()}
        sent = {peer: _packed(tensors, pieces, lead) for peer, pieces in out.items()}
        # `group_peer`: ranks of the plan are ranks of the group, not of the world.
        operations = [dist.P2POp(dist.irecv, t, group=self.group, group_peer=peer) for peer, t in received.items()]
        operations += [dist.P2POp(dist.isend, t, group=self.group, group_peer=peer) for peer, t in sent.items()]
        call = communicating(
            self.name, self.group, lambda: f"{self.plan.digest} {'out' if out is self._out else 'back'}"
        )
        with call:
            requests = dist.batch_isend_irecv(operations)
        sent_bytes = sum(buffer.numel() * buffer.element_size() for buffer in sent.values())
        self.bytes_sent += sent_bytes
        if self._on_sent is not None:
            self._on_sent(sent_bytes)
        return _Flight(received, list(sent.values()), requests, call)

    def _source(self, message: Message) -> _Piece:
        return _piece(message.held, message.box, self.held[message.held])

    def _target(self, message: Message) -> _Piece:
        return _piece(message.wanted, message.place, self.wanted[message.wanted])

    def _check(self, tensors: Tensors, shapes: list[tuple[int, ...]]) -> None:
        got = [tuple(tensor.shape[2:]) for tensor in tensors]
        assert got == shapes, f"rank {self.rank} exchanges boxes of shapes {shapes}, not {got}"


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *held: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.exchange = exchange
        return exchange.copy_out(held)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, *_ScatterAdd.apply(ctx.exchange, *gradients)


class _ScatterAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.exchange = exchange
        return exchange.add_back(wanted)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, *_Gather.apply(ctx.exchange, *gradients)


def _piece(number: int, part: Box, of: Box) -> _Piece:
    start = tuple(a - o for (a, _), (o, _) in zip(part, of, strict=True))
    return _Piece(number, start, shape_of(part), cells(part) == cells(of))


def _length(pieces: list[_Piece], lead: torch.Size) -> int:
    return math.prod(lead) * sum(math.prod(piece.shape) for piece in pieces)


def _packed(tensors: Tensors, pieces: list[_Piece], lead: torch.Size) -> torch.Tensor:
    if len(pieces) == 1:
        # What lies together already, such as rows of a single channel, is sent from where it is.
        return pieces[0].of(tensors).contiguous().view(-1)
    buffer = tensors[0].new_empty(_length(pieces, lead))
    for piece, part in _parts(buffer, pieces, lead):
        part.copy_(piece.of(tensors))
    return buffer


def _parts(buffer: torch.Tensor, pieces: list[_Piece], lead: torch.Size) -> list[tuple[_Piece, torch.Tensor]]:
    """The pieces of a buffer, as views of shape (B, C, *piece)."""
    if len(pieces) == 1:
        return [(pieces[0], buffer.view(*lead, *pieces[0].shape))]
    lengths = [_length([piece], lead) for piece in pieces]
    return [(p, part.view(*lead, *p.shape)) for p, part in zip(pieces, buffer.split_with_sizes(lengths), strict=True)]
