"""Derived numbers of runs, as pure functions of measured ones. No function here reads a file.

The POP efficiencies are those of the POP Centre of Excellence (Performance Optimisation and Productivity, "Standard Metrics for
Performance Analysis"): load balance = mean / largest useful computation of the ranks, communication efficiency = largest useful
computation / run time, parallel efficiency = their product = mean useful computation / run time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959964
"""Two-sided 95 % of a normal distribution."""
FEWEST_FOR_INTERVAL = 6
"""Steps: of fewer not even the smallest and the largest enclose the median with 95 %."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One run as scaling sees it."""

    ranks: int
    step_s: float
    """Seconds of a step."""
    work: float | None = 1.0
    """Pixels that the denoiser is given over those of the image: 1 where it is not tiled; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A run against a base run of the same problem."""

    ranks: int
    step_s: float
    speedup: float
    """Base step time over step time."""
    efficiency: float
    """Rank-seconds of the base's step over those of this one."""
    work_normalised: float | None
    """Efficiency times (work of this run over work of the base): what is left when halos are counted as work, not as loss."""


def scaled(timing: Timing, base: Timing) -> Scaled:
    """Speedup and efficiency of one run; those of the base itself are 1."""
    speedup = base.step_s / timing.step_s
    efficiency = speedup * base.ranks / timing.ranks
    known = timing.work is not None and base.work
    return Scaled(
        ranks=timing.ranks,
        step_s=timing.step_s,
        speedup=speedup,
        efficiency=efficiency,
        work_normalised=efficiency * (timing.work or 0.0) / (base.work or 1.0) if known else None,
    )


def weak_efficiency(step_s: float, base_s: float) -> float:
    """Base step time over step time, where each rank has as many pixels as in the base."""
    return base_s / step_s


def price(value: float, reference: float) -> float:
    """What is paid on top of the reference, as a share of it: 0.23 for 23 % more."""
    return value / reference - 1


def load_balance(compute_s: Sequence[float]) -> float:
    """Mean over largest useful computation of the ranks (POP)."""
    return statistics.fmean(compute_s) / max(compute_s)


def communication_efficiency(compute_s: Sequence[float], runtime_s: float) -> float:
    """Largest useful computation of a rank over the run time (POP)."""
    return max(compute_s) / runtime_s


def parallel_efficiency(compute_s: Sequence[float], runtime_s: float) -> float:
    """Load balance times communication efficiency (POP)."""
    return load_balance(compute_s) * communication_efficiency(compute_s, runtime_s)


def largest_difference(a: Sequence[float | None], b: Sequence[float | None]) -> float | None:
    """The largest absolute difference of two paths, entry by entry.

    None where they are not of one length, where one has a number and the other has none, and where neither has any.
    """
    if [x is None for x in a] != [y is None for y in b]:
        return None
    return max((abs(x - y) for x, y in zip(a, b, strict=True) if x is not None and y is not None), default=None)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; of one value that value twice."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval that holds the median of what the values are drawn from, at 95 % (of fewer than six values less).

    Order statistics: of n values, those of ranks n/2 -+ 0.98 sqrt(n). No distribution is assumed, but that steps do not depend on
    each other.
    """
    ordered, n = sorted(values), len(values)
    if n < FEWEST_FOR_INTERVAL:
        return ordered[0], ordered[-1]
    reach = Z_95 * math.sqrt(n) / 2
    low = max(0, math.floor(n / 2 - reach - 0.5))
    high = n - 1 - low
    return ordered[low], ordered[high]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median over median, and how far it may be off."""

    value: float
    low: float
    high: float


def ratio_of_medians(values: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Median of the values over that of the reference; the ends are those of both `median_interval`s, so rather too wide."""
    (low, high), (r_low, r_high) = median_interval(values), median_interval(reference)
    return Ratio(
        value=statistics.median(values) / statistics.median(reference),
        low=low / r_high,
        high=high / r_low,
    )
