"""From axes of parameters to a base spec and the lines of `sweep:`.

A key of the spec may be made of several parameters, e.g. ranks of nodes and tasks per node. Where such a key truly depends on two
axes, these become one axis of all their combinations, comma-joined; every other axis stays a line of its own, so that a grid stays a
grid. Combinations that come out as the same run are one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dptrain.spec.benchopt.reader import Axis
from dptrain.spec.benchopt.remarks import Notes
from dptrain.spec.benchopt.targets import Row, Target, Wrong
from dptrain.spec.benchopt.values import flow_text
from dptrain.spec.sweep import MOST_MEMBERS
from dptrain.spec.tree import Node, Where

Point = tuple[int, ...]
"""The chosen row of some axes."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of `sweep:`."""

    keys: tuple[str, ...]
    points: tuple[tuple[Node, ...], ...]
    where: Where


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What the file says: values of all runs, and those that differ between them."""

    base: Mapping[str, Node]
    lines: tuple[Line, ...]


@dataclass
class _Values:
    """One target over the combinations of the axes that it depends on."""

    target: Target
    axes: tuple[int, ...]
    at: dict[Point, Node | None] = field(default_factory=dict)

    def of(self, chosen: Mapping[int, int]) -> Node | None:
        return self.at[tuple(chosen[i] for i in self.axes)]

    def reduced(self) -> _Values:
        """Without the axes on which nothing depends."""
        axes = tuple(a for i, a in enumerate(self.axes) if self._depends_on(i))
        keep = [self.axes.index(a) for a in axes]
        at: dict[Point, Node | None] = {}
        for point, node in self.at.items():
            at.setdefault(tuple(point[i] for i in keep), node)
        return _Values(self.target, axes, at)

    def _depends_on(self, i: int) -> bool:
        seen: dict[Point, str | None] = {}
        for point, node in self.at.items():
            rest = point[:i] + point[i + 1 :]
            if seen.setdefault(rest, _text(node)) != _text(node):
                return True
        return False


def make_grid(axes: Sequence[Axis], targets: Sequence[Target], where: Where, notes: Notes) -> Grid | None:
    """The values of every target; None where some have none, which the notes say."""
    values = [_evaluate(axes, target, where, notes) for target in targets]
    if notes.found:
        return None
    reduced = [v.reduced() for v in values]
    base = {v.target.key: node for v in reduced if not v.axes and (node := v.at[()]) is not None}
    lines = []
    for group in _groups(reduced):
        line = _line(axes, group, [v for v in reduced if v.axes and set(v.axes) <= set(group)], base, notes)
        if line is not None:
            lines.append(line)
    return None if notes.found else Grid(base=base, lines=tuple(lines))


def combinations(axes: Sequence[Axis], keys: Sequence[str], where: Where, notes: Notes) -> Iterator[tuple[Point, Row]]:
    """Every combination of the axes that hold one of the keys, with the values of these axes."""
    mine = [axis for axis in axes if set(axis.keys) & set(keys)]
    for point in itertools.product(*(range(len(axis.rows)) for axis in mine)):
        values = {
            key: node
            for axis, i in zip(mine, point, strict=True)
            for key, node in zip(axis.keys, axis.rows[i], strict=True)
        }
        yield point, Row(values=values, where=where, notes=notes)


def _evaluate(axes: Sequence[Axis], target: Target, where: Where, notes: Notes) -> _Values:
    mine = tuple(i for i, axis in enumerate(axes) if set(axis.keys) & set(target.sources))
    values = _Values(target, mine)
    count = math.prod(len(axes[i].rows) for i in mine)
    if count > MOST_MEMBERS:
        notes.problem(axes[mine[0]].where, f"{target.key} has {count} combinations, more than {MOST_MEMBERS}", "fewer")
        return values
    for point, row in combinations(axes, target.sources, where, notes):
        try:
            values.at[point] = target.make(row)
        except Wrong as error:
            notes.problem(error.where, error.found, error.write)
    return values


def _groups(values: Sequence[_Values]) -> list[list[int]]:
    """Axes that a key ties together, in the order of the file; those on which nothing depends are in none."""
    groups: list[set[int]] = []
    for axes in (set(v.axes) for v in values if v.axes):
        touched = [group for group in groups if group & axes]
        groups = [group for group in groups if not group & axes] + [axes.union(*touched)]
    return sorted(sorted(group) for group in groups)


def _line(
    axes: Sequence[Axis], group: Sequence[int], values: Sequence[_Values], base: dict[str, Node], notes: Notes
) -> Line | None:
    """The line of some axes; keys with one value of their own go to the base instead."""
    points = [
        dict(zip(group, point, strict=True)) for point in itertools.product(*(range(len(axes[i].rows)) for i in group))
    ]
    if len(points) > MOST_MEMBERS:
        notes.problem(axes[group[0]].where, f"{len(points)} combinations, more than {MOST_MEMBERS}", "shorter lists")
        return None
    swept = []
    for value in values:
        nodes = [node for node in value.at.values() if node is not None]
        if len({_text(node) for node in nodes}) == 1:  # absent in the others: another kind, which does not take it
            base[value.target.key] = nodes[0]
        elif len(nodes) < len(value.at):
            problem = f"{value.target.key} has several values, and in some of the runs none"
            notes.problem(axes[group[0]].where, problem, "one file for each kind of run")
        else:
            swept.append(value)
    if not swept:
        return None
    rows: dict[tuple[str | None, ...], tuple[Node, ...]] = {}
    for chosen in points:
        row = tuple(node for value in swept if (node := value.of(chosen)) is not None)
        rows.setdefault(tuple(map(_text, row)), row)
    where = axes[group[0]].where
    if len(rows) < len(points):
        kept = next(iter(rows.values()))[0]
        keys = ", ".join(value.target.key for value in swept)
        notes.choice(keys, kept, f"{len(points)} combinations come out as {len(rows)} different runs")
    return Line(keys=tuple(value.target.key for value in swept), points=tuple(rows.values()), where=where)


def _text(node: Node | None) -> str | None:
    return None if node is None else flow_text(node)
