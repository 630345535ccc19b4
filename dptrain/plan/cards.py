"""A card, and how much more than forecast it must hold: a factor by kind of card, from runs that were measured on it.

A forecast counts tensors. What a card needs beside them (workspaces of convolutions, gaps of the allocator) depends on its kind,
and is known once runs on it have been reported. Until then a default stands in, and its reason says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dptrain.plan.forecast import GIB, Forecast
from dptrain.records.calibration import CPU, Measured, read_measured
from dptrain.records.paths import calibration_file, runs_root
from dptrain.spec.cluster import ClusterProfile

ALLOWANCE = 1.13
"""Memory of a card over the tracker's peak where nothing was measured. From published peaks of V100 cards: 6 to 9 % above it for
small images, up to 17 % for large ones, whose workspaces are larger."""
KEY = "memory.allowance"
FEWEST = 3
"""Runs of different size that it takes to believe a factor."""
NEWEST = 20
"""Runs that are looked at: drivers and libraries change."""
SMALLEST_BYTES = {CPU: 2**20}
SMALLEST_ON_GPU_BYTES = 2**28
"""Smaller forecasts are left out: beside them stand things of a fixed size, on a GPU workspaces, which say nothing of a full card."""
GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""One of these is there where a driver for CUDA or ROCm is."""
LEAST, MOST = 0.9, 1.5
"""A factor outside is not believed. Below 1 it is taken for 1."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a step has to fit."""

    capacity_gib: float | None
    """None: not known."""
    factor: float = ALLOWANCE
    """Memory of the card over the forecast's peak."""
    reason: str = "the default"
    """Where the factor is from."""

    @property
    def allowance(self) -> float:
        """The share of a peak that is added to it."""
        return self.factor - 1

    def needs_gib(self, answer: Forecast) -> float:
        """Peak and allowance."""
        return answer.peak_bytes * self.factor / GIB

    def fits(self, answer: Forecast, share: float = 1.0) -> bool | None:
        """Whether peak and allowance are within a share of the card; None where either is not known."""
        if answer.error is not None or self.capacity_gib is None:
            return None
        return self.needs_gib(answer) <= share * self.capacity_gib


def card_of(profile: ClusterProfile) -> Card:
    """The card of a profile, its factor from what runs on cards of that kind have needed."""
    factor, reason = _factor(runs_on(profile), profile.name, runs_root(profile.runs))
    return Card(capacity_gib=profile.gpu_memory_gib, factor=factor, reason=reason)


def runs_on(profile: ClusterProfile) -> list[Measured]:
    """What reported runs have needed, without those of this cluster whose ranks were to have a GPU and found none."""
    measured = read_measured(runs_root(profile.runs))
    return [m for m in measured if m.cluster != profile.name or m.card != CPU or not has_gpus(profile)]


def has_gpus(profile: ClusterProfile) -> bool:
    """Whether ranks are to have one: what a job asks for, and what this machine has for its own processes."""
    if profile.launcher == "slurm":
        return profile.gpu_request != "none"
    return any(device.exists() for device in GPU_DEVICES)


def _factor(measured: Sequence[Measured], cluster: str, root: Path) -> tuple[float, str]:
    """The largest factor over the kinds of card that runs of this cluster had, and why."""
    kinds = list(dict.fromkeys(m.card for m in measured if m.cluster == cluster))
    if not kinds:
        return (
            ALLOWANCE,
            f"the default: {calibration_file(root)} has no run of cluster {cluster} (dptrain report RUN... adds them)",
        )
    return max((_of_kind(measured, kind, root) for kind in kinds), key=lambda found: found[0])


def _of_kind(measured: Sequence[Measured], card: str, root: Path) -> tuple[float, str]:
    pairs = [(m.measured_bytes, m.forecast_bytes) for m in measured if m.card == card]
    smallest = SMALLEST_BYTES.get(card, SMALLEST_ON_GPU_BYTES)
    large = [(most, made) for most, made in pairs if most is not None and made is not None and made >= smallest]
    newest = large[-NEWEST:]
    # One wrong record must not hide what the others say.
    usable = [(most, made) for most, made in newest if LEAST <= most / made <= MOST] or newest
    sizes = len({made for _, made in usable})
    if sizes < FEWEST:
        asked = f"{FEWEST} forecasts of different size, of {smallest / 2**20:g} MiB or more, that a factor takes"
        return ALLOWANCE, f"the default: {calibration_file(root)} has {sizes} on {card} of the {asked}"
    found = max(most / made for most, made in usable)
    left_out = f", without {len(newest) - len(usable)} that are not believed," if len(usable) < len(newest) else ""
    runs = f"{len(usable)} runs on {card} in {calibration_file(root)}{left_out}"
    if not LEAST <= found <= MOST:
        return (
            ALLOWANCE,
            f"the default: {runs} needed up to {found:.3g} times their forecast, which is not believed ({LEAST} to {MOST})",
        )
    return max(1.0, found), f"{runs} needed up to {found:.3f} times their forecast"
