"""How much a rank's log tells of a long run."""

from __future__ import annotations

import pytest

from dptrain.engine.session import told


@pytest.mark.parametrize(("of", "most"), [(1, 1), (10, 10), (200, 200), (399, 399), (10_000, 220), (1_000_000, 220)])
def test_a_log_has_a_few_hundred_lines_however_long_the_run(of: int, most: int) -> None:
    numbers = [number for number in range(1, of + 1) if told(number, of)]
    assert numbers[: min(10, of)] == list(range(1, min(10, of) + 1)) and len(numbers) <= most
    assert of - numbers[-1] < max(1, of // 200), "the end is near the last line"
