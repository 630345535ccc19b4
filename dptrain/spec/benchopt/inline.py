"""`name[param=value, 'a, b'=[(1, 2)]]`: benchopt's one-line way to choose a solver or dataset with its parameters."""

from __future__ import annotations

import re
from dataclasses import replace

from dptrain.errors import SpecError
from dptrain.spec.benchopt.remarks import Notes
from dptrain.spec.scalars import quote
from dptrain.spec.tree import Entry, Items, Node, Refused, Scalar, Table, Where, read_tree

_TOKENS = re.compile(r"""'[^']*'|"[^"]*"|[=()]|[^'"=()]+""")
_AS_YAML = {"=": ": ", "(": "[", ")": "]"}


def split_name(node: Scalar, notes: Notes) -> tuple[str, Table]:
    """(name, parameters) of one line; parameters are positioned at the line."""
    name, bracket, rest = node.text.partition("[")
    if not bracket:
        return name.strip(), Table({}, node.where)
    if not rest.endswith("]"):
        notes.problem(node.where, f"{quote(node.text)} has a bracket that is not closed", f"{name}[param=[value]]")
        return name.strip(), Table({}, node.where)
    inside = "".join(_AS_YAML.get(token, token) for token in _TOKENS.findall(rest[:-1]))
    try:
        tree, found = read_tree("{" + inside + "}", node.where.source)
    except SpecError as error:
        notes.problem(node.where, f"{quote(node.text)} cannot be read: {error.problems[0].found}", f"{name}[param=[v]]")
        return name.strip(), Table({}, node.where)
    notes.found += [replace(problem, where=node.where) for problem in found]
    assert isinstance(tree, Table)
    table = _placed(tree, node.where)
    assert isinstance(table, Table)
    if any(isinstance(e.value, Scalar) and e.value.plain and e.value.text == "" for e in table.entries.values()):
        notes.problem(
            node.where, f"{quote(node.text)} has a value without the name of its parameter", f"{name}[param=v]"
        )
    return name.strip(), table


def _placed(node: Node, where: Where) -> Node:
    """The tree with one position for all of it: columns within the line would be those of another text."""
    if isinstance(node, Table):
        return Table({k: Entry(where, _placed(e.value, where)) for k, e in node.entries.items()}, where)
    if isinstance(node, Items):
        return Items(tuple(_placed(item, where) for item in node.items), where)
    if isinstance(node, Scalar):
        return Scalar(node.text, node.plain, where)
    return Refused(where)
