"""Where the time of parallel work goes: compute, transfer and waiting, per section and rank, from what every rank saw.

A call (an exchange or collective) takes every rank that takes part some time. The least of these is what the call takes when nobody
is late: transfer. What a rank takes more is waiting for others. All other time is compute.

Efficiencies are those of the POP Centre of Excellence (https://pop-coe.eu/node/69): with the compute time c_r of rank r and the
runtime T, load balance = mean c / max c, communication efficiency = max c / T, parallel efficiency = their product = mean c / T.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BETWEEN = "between"
"""The section of what is between steps: metrics, saves, data, agreement."""
Key = tuple[str, str]
"""(section, what tells a call from others): the n-th call of a key is the same one on every rank that has it."""


class Misaligned(ValueError):
    """Ranks saw different numbers of the same calls, so that nobody knows which belong together."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank saw of the measured steps."""

    seconds: Mapping[str, float]
    """Wall time by section, calls included."""
    bytes_sent: Mapping[str, int] = field(default_factory=dict)
    """By section."""
    calls: Mapping[Key, Sequence[float]] = field(default_factory=dict)
    """Seconds of every call, in order."""


@dataclass(kw_only=True)
class _Share:
    """Of one rank in one section."""

    seconds: float = 0.0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    bytes_sent: int = 0
    calls: int = 0

    @property
    def compute_s(self) -> float:
        return self.seconds - self.transfer_s - self.wait_s


def split(ranks: Sequence[Seen], steps: int) -> dict[str, Any]:
    """`communication` of result.json (docs/run-directory.md).

    :param ranks: in rank order.
    :param steps: how many were measured.
    :raises Misaligned: where ranks do not fit together.
    """
    names = list(dict.fromkeys(name for seen in ranks for name in (*seen.seconds, *seen.bytes_sent)))
    names.sort(key=lambda name: name == BETWEEN)
    shares = {name: [_Share(seconds=seen.seconds.get(name, 0.0)) for seen in ranks] for name in names}
    for seen, mine in zip(ranks, zip(*shares.values(), strict=True), strict=True):
        for name, share in zip(names, mine, strict=True):
            share.bytes_sent = seen.bytes_sent.get(name, 0)
    for key in dict.fromkeys(key for seen in ranks for key in seen.calls):
        _share_calls(key, ranks, shares[key[0]])
    within = [shares[name] for name in names if name != BETWEEN]
    return {
        "steps": steps,
        "sections": {name: _described(shares[name]) for name in names},
        "step": _described(_added(within, len(ranks))),
        "whole": _described(_added(shares.values(), len(ranks))),
    }


def efficiencies(compute_s: Sequence[float], runtime_s: float) -> dict[str, float | None]:
    """Load balance, communication and parallel efficiency; null where nothing was computed.

    :param compute_s: per rank.
    :param runtime_s: of the slowest rank, at least as long as any compute.
    """
    names = ("load_balance", "communication_efficiency", "parallel_efficiency")
    most = max(compute_s)
    if most <= 0 or runtime_s <= 0:
        return dict.fromkeys(names)
    mean = sum(compute_s) / len(compute_s)
    return dict(zip(names, (round(v, 4) for v in (mean / most, most / runtime_s, mean / runtime_s)), strict=True))


def _share_calls(key: Key, ranks: Sequence[Seen], shares: Sequence[_Share]) -> None:
    """Add the calls of one key to the shares of the ranks that take part."""
    part = [rank for rank, seen in enumerate(ranks) if key in seen.calls]
    counts = {len(ranks[rank].calls[key]) for rank in part}
    if len(counts) > 1:
        raise Misaligned(f"between {min(counts)} and {max(counts)} calls of {key[1].strip()!r} in {key[0]}")
    times = np.array([ranks[rank].calls[key] for rank in part])
    least = float(times.min(axis=0).sum())
    for rank, total in zip(part, times.sum(axis=1).tolist(), strict=True):
        shares[rank].transfer_s += least
        shares[rank].wait_s += total - least
        shares[rank].calls += times.shape[1]


def _added(sections: Iterable[Sequence[_Share]], ranks: int) -> list[_Share]:
    total = [_Share() for _ in range(ranks)]
    for shares in sections:
        for into, share in zip(total, shares, strict=True):
            for name, value in vars(share).items():
                setattr(into, name, getattr(into, name) + value)
    return total


def _described(shares: Sequence[_Share]) -> dict[str, Any]:
    compute_s = [share.compute_s for share in shares]
    return {
        "seconds": [round(share.seconds, 6) for share in shares],
        "compute_s": [round(value, 6) for value in compute_s],
        "transfer_s": [round(share.transfer_s, 6) for share in shares],
        "wait_s": [round(share.wait_s, 6) for share in shares],
        "bytes_sent": [share.bytes_sent for share in shares],
        "calls": [share.calls for share in shares],
        **efficiencies(compute_s, max(share.seconds for share in shares)),
    }
