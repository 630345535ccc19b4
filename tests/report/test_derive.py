"""Derived numbers against ones worked out by hand."""

from __future__ import annotations

import random
import statistics

import pytest

from dptrain.report.derive import (
    Timing,
    communication_efficiency,
    largest_difference,
    load_balance,
    median_interval,
    parallel_efficiency,
    quartiles,
    ratio_of_medians,
    scaled,
    weak_efficiency,
)


def test_base_of_several_ranks() -> None:
    found = scaled(Timing(ranks=8, step_s=1.5), Timing(ranks=2, step_s=4.0))
    assert found.speedup == pytest.approx(8 / 3) and found.efficiency == pytest.approx(2 / 3)
    itself = scaled(Timing(ranks=2, step_s=4.0), Timing(ranks=2, step_s=4.0))
    assert (itself.speedup, itself.efficiency, itself.work_normalised) == (1, 1, 1)


def test_unknown_work_is_not_normalised() -> None:
    assert scaled(Timing(ranks=2, step_s=1.0, work=None), Timing(ranks=1, step_s=2.0)).work_normalised is None


def test_pop_efficiencies() -> None:
    compute = [3.0, 4.0, 1.0]
    assert load_balance(compute) == pytest.approx(8 / 3 / 4)
    assert communication_efficiency(compute, 5.0) == pytest.approx(0.8)
    assert parallel_efficiency(compute, 5.0) == pytest.approx(8 / 3 / 5)


def test_weak_efficiency() -> None:
    assert weak_efficiency(step_s=2.5, base_s=2.0) == pytest.approx(0.8)


def test_paths_are_compared_entry_by_entry() -> None:
    assert largest_difference([None, 1.0, 2.0], [None, 1.5, 2.0]) == 0.5
    assert largest_difference([None, 1.0], [1.0, None]) is None
    assert largest_difference([None], [None]) is None


def test_paths_of_other_lengths_have_no_difference() -> None:
    assert largest_difference([1.0, 2.0], [1.5, 1.0]) == 1.0
    assert largest_difference([1.0], [1.0, 2.0]) is None and largest_difference([], []) is None


def test_intervals_of_a_median_hold_it_as_often_as_said() -> None:
    generator, held, tries = random.Random(0), 0, 400
    for _ in range(tries):
        low, high = median_interval([generator.expovariate(1.0) for _ in range(25)])
        held += low <= 0.6931 <= high
    assert 0.93 <= held / tries <= 0.99


def test_few_steps_give_their_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0) and quartiles([2.0]) == (2.0, 2.0)


def test_ratio() -> None:
    a, b = [1.0 + k / 100 for k in range(20)], [2.0 + k / 100 for k in range(20)]
    ratio = ratio_of_medians(b, a)
    assert ratio.value == pytest.approx(statistics.median(b) / statistics.median(a))
    assert 1 < ratio.low < ratio.value < ratio.high < 2.1
