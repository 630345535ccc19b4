"""Charts as SVG text: lines over a linear or logarithmic axis, and stacked bars.

Written here, not drawn by matplotlib: colours and text are classes of the page, so that one picture serves light, dark and print,
has the page's font, and takes 2 to 10 kB. Every text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 44
SLOTS = 8
"""Colours of the page; a chart has at most so many lines."""
BAR_ROW, BAR = 40, 16
MOST_TICKS = 6
MOST_LETTERS = 58
"""Of a bar's label: so many have room; its parts tell the whole when they are pointed at."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value, and where it is known how far it spreads."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points joined by a line."""

    label: str
    points: Sequence[Point]
    slot: int = 0
    """Number of its colour and marker; -1: a thin line for comparison, without markers."""
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis."""

    label: str
    scale: Literal["linear", "log2", "log10"] = "linear"
    ticks: Sequence[float] | None = None
    """Where it is labelled; None: at round values."""
    low: float | None = None
    """Where it begins at the latest."""
    high: float | None = None
    """Where it ends at the earliest."""
    whole: bool = False
    """Only whole numbers are labelled."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of stacked parts: (slot, label, length)."""

    label: str
    parts: Sequence[tuple[int, str, float]]
    note: str = ""
    """Text at its end."""


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """One chart.

    :param title: what a screen reader says of it.
    """
    points = [p for line in lines for p in line.points]
    across = _Scale(x, [p.x for p in points], LEFT, WIDTH - RIGHT)
    up = _Scale(y, [v for p in points for v in (p.y, p.low, p.high) if v is not None], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(across, up, x, y), *(part for line in lines for part in _line(line, across, up))]
    return _svg(title, WIDTH, HEIGHT, parts)


def bar_chart(title: str, bars: Sequence[Bar], axis: Axis) -> str:
    """Horizontal bars below each other, each under its label."""
    height = TOP + BAR_ROW * len(bars) + BOTTOM
    ends = [sum(length for _, _, length in bar.parts) for bar in bars]
    across = _Scale(Axis(label=axis.label, low=0, high=axis.high), ends, RIGHT, WIDTH - 90)
    parts = []
    for value in across.ticks:
        at = across(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        parts.append(_text(at, height - BOTTOM + 18, _short(value), "middle"))
    parts.append(_text(RIGHT, height - 6, axis.label, "start", "axis"))
    for row, bar in enumerate(bars):
        top = TOP + BAR_ROW * row
        label = bar.label if len(bar.label) <= MOST_LETTERS else f"{bar.label[: MOST_LETTERS - 1]}\u2026"
        parts.append(_text(RIGHT, top + 13, label, "start"))
        start = 0.0
        for slot, label, length in bar.parts:
            left, right = across(start), across(start + length)
            tip = escape(f"{bar.label}: {label} {_short(length)}")
            parts.append(
                f'<rect class="f{slot % SLOTS}" x="{left:.1f}" y="{top + 18}" width="{max(0.0, right - left):.1f}" '
                f'height="{BAR}"><title>{tip}</title></rect>'
            )
            start += length
        parts.append(_text(across(start) + 6, top + 31, bar.note, "start"))
    return _svg(title, WIDTH, height, parts)


class _Scale:
    """Maps values to pixels."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, stop: float) -> None:
        self.log = axis.scale != "linear"
        low = min([*values, *([] if axis.low is None else [axis.low])])
        high = max([*values, *([] if axis.high is None else [axis.high])])
        self.ticks = self._ticks(axis, low, high)
        self.start, self.stop = start, stop
        self.low, self.high = self._padded(axis, min(low, self.ticks[0]), max(high, self.ticks[-1]))

    def __call__(self, value: float) -> float:
        share = (self._at(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def _at(self, value: float) -> float:
        return math.log(value) if self.log else value

    def _padded(self, axis: Axis, low: float, high: float) -> tuple[float, float]:
        bottom, top = self._at(low), self._at(high)
        if top == bottom:
            bottom, top = bottom - 0.5, top + 0.5
        gap = 0.04 * (top - bottom)
        return bottom - (0 if axis.low is not None and not self.log else gap), top + gap

    def _ticks(self, axis: Axis, low: float, high: float) -> list[float]:
        if axis.ticks is not None:
            inside = sorted(set(axis.ticks))
            return inside[:: -(-len(inside) // 10)]
        if axis.scale == "linear":
            return _round_ticks(low, high, axis.whole)
        base = 2 if axis.scale == "log2" else 10
        first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
        powers = [float(base) ** k for k in range(first, last + 1)]
        if axis.scale == "log10" and last - first <= 2:
            powers = sorted({m * p for p in powers for m in (1, 2, 5) if low / 1.6 <= m * p <= high * 1.6})
        return (powers or [low, high])[:: -(-len(powers) // (MOST_TICKS + 1)) or 1]


def _round_ticks(low: float, high: float, whole: bool) -> list[float]:
    span = (high - low) or abs(high) or 1.0
    rough = span / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    step = max(1.0, round(step)) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, max(last, first + 1) + 1)]


def _grid(across: _Scale, up: _Scale, x: Axis, y: Axis) -> list[str]:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in up.ticks:
        at = up(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 7, at + 4, _short(value), "end"))
    for value in across.ticks:
        at = across(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{floor}"/>')
        parts.append(_text(at, floor + 18, _short(value), "middle"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 6, x.label, "middle", "axis"))
    middle = (TOP + floor) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" transform="translate(13 {middle:.0f}) rotate(-90)">{escape(y.label)}</text>'
    )
    return parts


def _line(line: Line, across: _Scale, up: _Scale) -> list[str]:
    places = [(across(p.x), up(p.y), p) for p in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    name = "ideal" if line.slot < 0 else f"s{line.slot % SLOTS}"
    parts = [f'<polyline class="{name}{" dashed" if line.dashed else ""}" points="{path}"/>']
    if line.slot < 0 or len(places) > 40:
        return parts
    for x, y, p in places:
        if p.low is not None and p.high is not None:
            parts.append(f'<line class="{name}" x1="{x:.1f}" x2="{x:.1f}" y1="{up(p.low):.1f}" y2="{up(p.high):.1f}"/>')
        tip = escape(f"{line.label}: {_short(p.x)}, {_short(p.y)}")
        parts.append(
            f'<path class="m{line.slot % SLOTS}" transform="translate({x:.1f} {y:.1f})" d="{_marker(line.slot)}">'
            f"<title>{tip}</title></path>"
        )
    return parts


def _marker(slot: int) -> str:
    """Shapes differ, so that colours need not be told apart."""
    shapes = (
        "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
        "M-3.5 -3.5H3.5V3.5H-3.5Z",
        "M0 -4.8L4.4 3.4H-4.4Z",
        "M0 -5L5 0L0 5L-5 0Z",
        "M0 4.8L4.4 -3.4H-4.4Z",
        "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
        "M-5 -2.5H5V2.5H-5Z",
        "M-2.5 -5H2.5V5H-2.5Z",
    )
    return shapes[slot % SLOTS]


def _text(x: float, y: float, text: str, anchor: str, name: str = "tick") -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    """`0.25`, `16`, `1e-6`."""
    if value == int(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        digits, _, power = f"{value:.3e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.4g}"


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    inside = "".join(parts)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{inside}</svg>'
