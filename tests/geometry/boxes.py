"""Strategies for boxes, shared by the tests of the geometry and of the exchange."""

from __future__ import annotations

from hypothesis import strategies as st

from dptrain.geometry.boxes import Box


def shapes(longest: int = 24, shortest: int = 1) -> st.SearchStrategy[tuple[int, ...]]:
    """Images in 2-D and 3-D."""
    return st.lists(st.integers(shortest, longest), min_size=2, max_size=3).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...], periodic: tuple[bool, ...] | None = None) -> Box:
    """A box in an image, possibly empty; along periodic axes up to two image lengths outside."""
    box = []
    for axis, length in enumerate(shape):
        reach = 2 * length if periodic is not None and periodic[axis] else 0
        start = draw(st.integers(-reach, length + reach))
        box.append((start, draw(st.integers(start, length + reach))))
    return tuple(box)
