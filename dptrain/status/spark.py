"""A series of numbers as a line of characters, one per column."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"
"""The same eight heights where the terminal's encoding has no blocks."""
LOG_FROM = 10.0
"""A series of positive numbers that spans so many times its least is drawn on a logarithmic scale: a loss falls fast, then slowly."""


def sparkline(values: Sequence[float], width: int, marks: str = BLOCKS) -> str:
    """At most `width` characters, the lowest mark for the least value, the highest for the largest; equal values in the middle.

    More values than columns are averaged in groups of nearly equal size; numbers that are not finite are left out.
    """
    assert width >= 1 and len(marks) >= 2
    numbers = [value for value in values if math.isfinite(value)]
    if not numbers:
        return ""
    columns = min(width, len(numbers))
    edges = [len(numbers) * i // columns for i in range(columns + 1)]
    scale = max(map(abs, numbers)) or 1.0  # so that no sum or difference overflows
    means = [math.fsum(n / scale for n in numbers[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    if min(means) > 0 and max(means) / min(means) >= LOG_FROM:
        means = [math.log(mean) for mean in means]
    low, high = min(means), max(means)
    if not high > low:
        return marks[(len(marks) - 1) // 2] * columns
    top = len(marks) - 1
    return "".join(marks[round((mean - low) / (high - low) * top)] for mean in means)


def marks_for(encoding: str | None) -> str:
    """Blocks where the encoding has them."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS
