"""Single values of a benchopt file: what its raw text means there."""

from __future__ import annotations

import json
import re

from dptrain.spec.scalars import Unreadable, is_empty, is_null, read_int, read_minutes
from dptrain.spec.tree import Items, Node, Scalar, Table, Where, shown

_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""Truth values of YAML 1.1, in any case: what benchopt's reader takes for one."""
_PLAIN = re.compile(r"[A-Za-z0-9_./+~-][A-Za-z0-9_./@%+=~-]*(:[A-Za-z0-9_./@%+=~-]+)*")
"""Texts that YAML takes as they are, also inside brackets."""


def word(text: str | int, where: Where) -> Scalar:
    """A value of our own at the position that it was made from."""
    return Scalar(str(text), True, where)


def is_none(node: Node) -> bool:
    """Nothing: `null`, `~`, nothing at all, or Python's `None` in quotes, as solvers of several kinds take it."""
    return is_null(node) or is_empty(node) or (isinstance(node, Scalar) and node.text == "None")


def as_bool(node: Node) -> bool:
    """A truth value as YAML 1.1 has them. Raises Unreadable."""
    if isinstance(node, Scalar) and node.plain and node.text.lower() in _BOOLS:
        return _BOOLS[node.text.lower()]
    raise Unreadable(f"{shown(node)}, not true or false", "true or false")


def as_int(node: Node, at_least: int = 0) -> int:
    """A whole number in plain digits. Raises Unreadable."""
    if not isinstance(node, Scalar):
        raise Unreadable(f"{shown(node)}, not a whole number", "one number")
    value = read_int(node)
    if value < at_least:
        raise Unreadable(f"{value}, below {at_least}", f"at least {at_least}")
    return value


def as_text(node: Node) -> str:
    """A text. Raises Unreadable."""
    if not isinstance(node, Scalar) or is_none(node):
        raise Unreadable(f"{shown(node)}, not a text", "one word")
    return node.text


def time_min(node: Node) -> tuple[int, bool]:
    """(minutes, whether the number was seconds): a bare number is seconds, as in `slurm_time: 1800`; `H:MM:SS` is read from its raw text.

    :raises Unreadable: two-field times, which YAML, SLURM and people read differently.
    """
    if not isinstance(node, Scalar):
        raise Unreadable(f"{shown(node)}, not a time", "H:MM:SS, or seconds")
    if node.text.isascii() and node.text.isdigit():
        return -(-as_int(node, at_least=1) // 60), True
    try:
        return read_minutes(node), False
    except Unreadable as error:
        raise Unreadable(error.found, error.write if ":" in error.write else "H:MM:SS, or seconds") from None


def pixels(node: Node) -> list[int]:
    """Edges of an image or patch: one number stands for itself, a list for its numbers. Raises Unreadable."""
    if isinstance(node, Items):
        if not node.items:
            raise Unreadable("an empty list", "[64, 64]")
        return [as_int(item, at_least=1) for item in node.items]
    return [as_int(node)]


def flow_text(node: Node) -> str:
    """The whole value as YAML on one line; a text with characters that mean something there comes in quotes."""
    if isinstance(node, Scalar):
        return node.text if node.plain and _PLAIN.fullmatch(node.text) else json.dumps(node.text, ensure_ascii=False)
    if isinstance(node, Items):
        return "[" + ", ".join(flow_text(item) for item in node.items) + "]"
    assert isinstance(node, Table), f"{node.where}: a value that was refused is not written"
    return "{" + ", ".join(f"{key_text(k)}: {flow_text(e.value)}" for k, e in node.entries.items()) + "}"


def key_text(key: str) -> str:
    """A key, in quotes unless it is one plain word."""
    return key if _PLAIN.fullmatch(key) else json.dumps(key, ensure_ascii=False)
