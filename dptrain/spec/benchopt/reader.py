"""The structure of an experiment file: which dataset and solver, and the axes of their parameters.

A parameter has one value or a list of them; comma-joined parameters change together, each value then a list of their length.
Everything multiplies. A parameter that is given twice has its last value, as in benchopt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dptrain.spec.advice import as_coupled, nearest
from dptrain.spec.benchopt.inline import split_name
from dptrain.spec.benchopt.remarks import Notes
from dptrain.spec.benchopt.values import is_none
from dptrain.spec.tree import Entry, Items, Node, Scalar, Table, Where, shown

SECTIONS = ("objective", "dataset", "solver")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Parameters that change together, and their values."""

    section: str
    keys: tuple[str, ...]
    rows: tuple[tuple[Node, ...], ...]
    """One node per key."""
    where: Where

    def __post_init__(self) -> None:
        assert self.rows and all(len(row) == len(self.keys) for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A dataset or solver with its parameters."""

    name: str
    where: Where
    axes: tuple[Axis, ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment file."""

    dataset: Chosen
    solver: Chosen
    options: Mapping[str, Entry]
    """Run options, `_` written as `-`."""


def read_experiment(root: Table, notes: Notes) -> Experiment | None:
    """The parts of the file; None where they cannot be told, which the notes say."""
    parts = {section: _only(root, section, notes) for section in SECTIONS}
    objective, dataset, solver = (parts[section] for section in SECTIONS)
    if objective is not None:
        for axis in objective.axes:
            for key, node in zip(axis.keys, axis.rows[0], strict=True):
                notes.unmapped(f"objective.{key}", node)
    options = {key.replace("_", "-"): entry for key, entry in root.entries.items() if key not in SECTIONS}
    if dataset is None or solver is None:
        return None
    return Experiment(dataset=dataset, solver=solver, options=options)


def _only(root: Table, section: str, notes: Notes) -> Chosen | None:
    """The one dataset or solver of the file."""
    entry = root.entries.get(section)
    if entry is None or is_none(entry.value):
        if section != "objective":
            near = nearest(section, [key for key in root.entries if key not in SECTIONS], cutoff=0.7)
            meant = f"; {near!r} is not read" if near else ""
            notes.problem(
                entry.where if entry else root.where, f"the file has no {section}{meant}", f"{section}: [- name: ...]"
            )
        return None
    items = entry.value.items if isinstance(entry.value, Items) else (entry.value,)
    chosen = [one for item in items for one in _chosen(item, section, notes)]
    if len(chosen) > 1:
        names = ", ".join(one.name for one in chosen)
        notes.problem(
            chosen[1].where,
            f"{len(chosen)} entries of {section}: {names}; a sweep has one",
            "one file for each of them",
        )
    return chosen[0] if chosen else None


def _chosen(item: Node, section: str, notes: Notes) -> list[Chosen]:
    if isinstance(item, Scalar) and not is_none(item):
        name, table = split_name(item, notes)
        return [Chosen(name=name, where=item.where, axes=_axes(table, section, notes))]
    if isinstance(item, Table):
        return [_from_mapping(name, entry, section, notes) for name, entry in item.entries.items()]
    notes.problem(item.where, f"{section} is {shown(item)}, not a name with parameters", f"{section}: [name: {{...}}]")
    return []


def _from_mapping(name: str, entry: Entry, section: str, notes: Notes) -> Chosen:
    value = entry.value
    axes: tuple[Axis, ...] = ()
    if isinstance(value, Table):
        axes = _axes(value, section, notes)
    elif not is_none(value):
        notes.problem(value.where, f"{section}.{name} is {shown(value)}, not parameters", f"{name}: {{param: value}}")
    return Chosen(name=name, where=entry.where, axes=axes)


def _axes(table: Table, section: str, notes: Notes) -> tuple[Axis, ...]:
    axes = []
    for text, entry in table.entries.items():
        keys = tuple(part.strip() for part in text.split(","))
        if not all(keys) or len(set(keys)) < len(keys):
            notes.problem(entry.where, f"{section}.{text} joins a key twice or nothing", "every key once, with commas")
            continue
        rows = _rows(keys, text, entry.value, section, notes)
        if rows:
            axes.append(Axis(section=section, keys=keys, rows=rows, where=entry.where))
    return tuple(axes)


def _rows(keys: tuple[str, ...], text: str, node: Node, section: str, notes: Notes) -> tuple[tuple[Node, ...], ...]:
    if isinstance(node, Items) and not node.items:
        notes.problem(node.where, f"{section}.{text} is an empty list: no run is left", "[value]")
        return ()
    if len(keys) == 1:
        return tuple((item,) for item in (node.items if isinstance(node, Items) else (node,)))
    values = node.items if isinstance(node, Items) else (node,)
    wrong = [v for v in values if not isinstance(v, Items) or len(v.items) != len(keys)]
    for value in wrong:
        has = f"{len(value.items)} values" if isinstance(value, Items) else shown(value)
        notes.problem(
            value.where,
            f"{section}.{text} has {has} where its {len(keys)} keys take {len(keys)}",
            as_coupled(value, keys),
        )
    return () if wrong else tuple(v.items for v in values if isinstance(v, Items))


def last_wins(axes: Sequence[Axis], notes: Notes) -> list[Axis]:
    """The axes with every parameter once: of several values of one, the last holds."""
    owner = {key: axis for axis in axes for key in axis.keys}
    kept = []
    for axis in axes:
        mine = [i for i, key in enumerate(axis.keys) if owner[key] is axis]
        for i, key in enumerate(axis.keys):
            if i not in mine:
                node = axis.rows[0][i]
                notes.choice(f"{axis.section}.{key}", node, f"{owner[key].where} says it too, and holds")
        if mine:
            rows = tuple(tuple(row[i] for i in mine) for row in axis.rows)
            kept.append(Axis(section=axis.section, keys=tuple(axis.keys[i] for i in mine), rows=rows, where=axis.where))
    return kept
