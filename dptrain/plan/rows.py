"""Plans of one spec on several numbers of ranks and sizes of image, one row each, and where more ranks stop paying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

from dptrain.plan.layouts import ELEMENT_BYTES
from dptrain.plan.plan import Plan

KNEE_GAIN = 0.5
"""Ranks pay as long as each that is added brings at least this share of what a rank of the first row does."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of ranks and one image; numbers are null where the spec cannot be read with them."""

    image_size: tuple[int, ...]
    gpus: int
    fits: bool | None
    """As `fits` of a plan."""
    peak_gib: float | None
    """As `memory.peak_gib` of a plan."""
    terms_gib: Mapping[str, float] | None = None
    """As `memory.terms` of a plan, and the allowance; None: not known."""
    capacity_gib: float | None = None
    """Of one card."""
    patch: int | str | None = None
    max_batch_size: int | None = None
    checkpoint: str | None = None
    tiles: int | None = None
    tiles_per_rank_max: int | None = None
    tiles_per_rank_mean: float | None = None
    idle_ranks: int | None = None
    balance: float | None = None
    """Mean over largest number of tiles per rank."""
    work_multiplier: float | None = None
    bytes_per_step: int | None = None
    communication_s: float | None = None
    """Seconds a rank sends per step at the profile's bandwidth, gradients of weights included; None: not known."""
    efficiency_bound: float | None = None
    """Balance over work multiplier, times the share of computation in a step where the profile allows an estimate."""
    knee: bool = False
    """The largest number of ranks that pay, where a larger one that does not was looked at, see `mark_knees`."""
    reasons: tuple[str, ...] = ()


def row_of(plan: Plan) -> Row:
    """The numbers of one plan."""
    value = plan.to_json()
    counts = plan.tiles_per_rank
    balance = counts.mean / counts.most
    sent = communication_s(plan)
    return Row(
        image_size=plan.spec.problem.image_size,
        gpus=plan.world_size,
        fits=plan.fits,
        peak_gib=value["memory"]["peak_gib"],
        terms_gib=_terms(value["memory"]),
        capacity_gib=plan.profile.gpu_memory_gib,
        patch=value["patch"],
        max_batch_size=value["max_batch_size"],
        checkpoint=value["checkpoint"],
        tiles=len(plan.grid),
        tiles_per_rank_max=counts.most,
        tiles_per_rank_mean=counts.mean,
        idle_ranks=counts.idle,
        balance=balance,
        work_multiplier=plan.grid.work_multiplier,
        bytes_per_step=plan.bytes_per_step,
        communication_s=sent,
        efficiency_bound=balance / plan.grid.work_multiplier * compute_share(plan, sent),
        reasons=plan.refusals,
    )


def _terms(memory: Mapping[str, Any]) -> dict[str, float] | None:
    if memory["peak_gib"] is None:
        return None
    return {**memory["terms"], "allowance": memory["allowance_gib"]}


def largest_fitting(rows: Sequence[Row]) -> dict[int, tuple[int, ...] | None]:
    """The largest of several images that fits on each number of ranks; None where none does. Empty where no card is known."""
    known = [row for row in rows if row.fits is not None]
    largest: dict[int, tuple[int, ...] | None] = {}
    for row in sorted(known, key=lambda row: (row.gpus, prod(row.image_size))):
        largest[row.gpus] = row.image_size if row.fits else largest.get(row.gpus)
    return largest if any(row.fits for row in known) else {}


def communication_s(plan: Plan) -> float | None:
    """Seconds that the rank which sends most needs for a step, over the slowest link that its ranks have."""
    if plan.world_size == 1:
        return 0.0
    sent, profile = plan.bytes_per_step, plan.profile
    several = plan.job is not None and plan.job.nodes > 1
    bandwidth = profile.inter_node_gb_s if several else profile.intra_node_gb_s
    if sent is None or bandwidth is None:
        return None
    if plan.task == "train" and plan.spec.train is not None and "denoiser" in plan.spec.train.trainable:
        if plan.receptive is None:
            return None
        weights = plan.receptive.parameters * ELEMENT_BYTES[plan.spec.resources.precision]
        sent += 2 * weights * (plan.world_size - 1) // plan.world_size
    return sent / (bandwidth * 1e9)


def compute_share(plan: Plan, sent_s: float | None) -> float:
    """Share of computation in a step without overlap; 1 where the speed of a card or of its links is not known."""
    computed = computation_s(plan)
    return 1.0 if computed is None or not sent_s else computed / (computed + sent_s)


def computation_s(plan: Plan) -> float | None:
    """Seconds the busiest rank's denoiser calls take at the profile's speed; None: not known."""
    if plan.receptive is None or plan.profile.gpu_tflops is None:
        return None
    pixels = plan.tiles_per_rank.most * prod(plan.grid.window_shape)
    passes = 1
    if plan.task == "train" and plan.spec.train is not None:
        # A backward pass costs two forward ones; recomputing is one more.
        each = 3 if plan.choice("tiling.checkpoint") == "never" else 4
        passes = each * plan.spec.algorithm.iterations * plan.spec.train.batch_size
    return passes * pixels * plan.receptive.flops_per_pixel / (plan.profile.gpu_tflops * 1e12)


def mark_knees(rows: Sequence[Row]) -> list[Row]:
    """The rows, the knee of each image marked where it has several.

    Speed is ranks times efficiency. Going up from the fewest ranks, a row takes over as the knee where the ranks it adds to the
    last one each bring at least `KNEE_GAIN` of what a rank of the first row does. Refused rows are left out. Where all pay there
    is none: it lies beyond.
    """
    marked: list[Row] = []
    for _, group in groupby(rows, key=lambda row: row.image_size):
        of_image = list(group)
        able = sorted((row for row in of_image if row.fits is not False), key=lambda row: row.gpus)
        knee = _knee(able) if able else None
        if able and knee is able[-1]:
            knee = None
        marked += [replace(row, knee=row is knee) for row in of_image]
    return marked


def _knee(rows: Sequence[Row]) -> Row:
    first = knee = rows[0]
    for row in rows[1:]:
        gained = _speed(row) - _speed(knee)
        if gained >= KNEE_GAIN * _speed(first) / first.gpus * (row.gpus - knee.gpus):
            knee = row
    return knee


def _speed(row: Row) -> float:
    assert row.efficiency_bound is not None, "only rows that could not be planned have none, and those are refused"
    return row.gpus * row.efficiency_bound
