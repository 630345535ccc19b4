"""YAML text -> a tree of raw texts with positions. Nothing here decides what a text means.

PyYAML's own constructors are not used: they turn `12:00:00` into 43200, `0123` into 83 and `no` into False, and let the last
of two equal keys win. Only its parser is, event by event, so that no tag, alias or merge key is ever acted on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from dptrain.errors import Problem, SpecError

LARGEST_BYTES = 1 << 20
DEEPEST = 16

UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
"""Control characters, line separators, marks that reverse what a terminal shows; a tab or line end is legal between values only."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a tree came from: a file, or one `--set`."""

    label: str
    """As printed: the file as the user named it, or `--set key`."""
    folder: Path
    """Relative paths in it start here."""
    is_file: bool = True


@dataclass(frozen=True)
class Where:
    """A position, printed `file:line:col` (both from 1), or `--set key`."""

    source: Source
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.source.label}:{self.line}:{self.column}" if self.source.is_file else self.source.label


@dataclass(frozen=True)
class Scalar:
    """A value's text as YAML delivers it, before anyone has interpreted it."""

    text: str
    plain: bool
    """Written without quotes: a quoted `"null"` is a text, a plain one is nothing."""
    where: Where


@dataclass(frozen=True)
class Items:
    """A YAML sequence."""

    items: tuple[Node, ...]
    where: Where


@dataclass(frozen=True)
class Entry:
    """One line of a mapping."""

    where: Where
    """Of the key."""
    value: Node


@dataclass(frozen=True)
class Table:
    """A YAML mapping; keys are texts."""

    entries: dict[str, Entry]
    where: Where

    def with_entry(self, key: str, entry: Entry) -> Table:
        return Table({**self.entries, key: entry}, self.where)

    def without(self, keys: set[str]) -> Table:
        return Table({k: e for k, e in self.entries.items() if k not in keys}, self.where)


Node = Scalar | Items | Table


def shown(node: Node) -> str:
    """A value as it is quoted in a message: short, on one line."""
    if isinstance(node, Scalar):
        text = node.text if len(node.text) <= 60 else node.text[:57] + "..."
        return text if node.plain else f'"{text}"'
    if isinstance(node, Items):
        return "[" + ", ".join(shown(i) for i in node.items[:4]) + (", ..." if len(node.items) > 4 else "") + "]"
    return "{" + ", ".join(f"{k}: {shown(e.value)}" for k, e in list(node.entries.items())[:3]) + "}"


def read_tree(text: str, source: Source) -> Node | None:
    """The one document of a text, or None where there is none. Raises SpecError with every structural problem."""
    bad = UNPRINTABLE.search(text)
    if bad is not None:
        before = re.split(r"\r\n|\r|\n", text[: bad.start()])
        where = Where(source, len(before), len(before[-1]) + 1)
        raise SpecError([Problem(str(where), f"the character U+{ord(bad[0]):04X} cannot be in this file", "delete it")])
    assembly = _Assembly(source)
    try:
        for event in _events(text):
            assembly.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Where(source, mark.line + 1, mark.column + 1) if mark else Where(source, 1, 1)
        assembly.problems.append(_syntax_problem(error, at))
    if assembly.problems:
        raise SpecError(assembly.problems)
    return assembly.root


def read_bytes(data: bytes, source: Source) -> str:
    """The text of a file. Raises SpecError where it is not UTF-8 (a byte order mark is dropped) or too large to be a spec."""
    if len(data) > LARGEST_BYTES:
        raise SpecError(
            [Problem(f"{source.label}:1:1", f"{len(data)} bytes are too many for a YAML spec", "the path of a spec")]
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace").split("\n")
        where = Where(source, len(before), len(before[-1]) + 1)
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise SpecError([Problem(str(where), found, "save the file as UTF-8")]) from None


def _events(text: str) -> Iterator[yaml.Event]:
    yield from yaml.parse(text, Loader=yaml.SafeLoader)


@dataclass
class _Open:
    """A container that is being read."""

    where: Where
    is_table: bool
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    key: tuple[str, Where] | None = None

    def closed(self) -> Node:
        return Table(self.entries, self.where) if self.is_table else Items(tuple(self.items), self.where)


class _Assembly:
    """Builds the tree event by event, without recursion, and notes what a spec does not use: tags, anchors, merges, repeats."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self._stack: list[_Open] = []
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        mark = event.start_mark
        assert mark is not None
        where = Where(self.source, mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._stop(
                    where, "a second document starts here", "one spec per file; delete this line and what follows"
                )
        elif isinstance(event, yaml.AliasEvent):
            self._note(
                where,
                f"*{event.anchor} is a YAML alias; every value is written where it is used",
                f'the value, or "*{event.anchor}" for a text',
            )
            self._put(Scalar("", False, where), where)
        elif isinstance(event, yaml.ScalarEvent):
            self._check_node(event, where)
            self._put(Scalar(event.value, event.style is None, where), where)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._check_node(event, where)
            self._open(where, isinstance(event, yaml.MappingStartEvent))
        elif isinstance(event, yaml.CollectionEndEvent):
            node = self._stack.pop().closed()
            self._put(node, node.where)

    def _check_node(self, event: yaml.NodeEvent, where: Where) -> None:
        if event.anchor is not None:
            self._note(
                where,
                f"&{event.anchor} is a YAML anchor; every value is written where it is used",
                f"the value without &{event.anchor}",
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._note(where, f"the tag {tag} is not read; types come from the key", "the value without its tag")

    def _open(self, where: Where, is_table: bool) -> None:
        if self._stack and self._stack[-1].is_table and self._stack[-1].key is None:
            self._stop(
                where, "a list or mapping cannot be a key", "a key of letters; text with braces or brackets in quotes"
            )
        if len(self._stack) >= DEEPEST:
            self._stop(where, f"nested deeper than {DEEPEST} levels", "fewer levels")
        self._stack.append(_Open(where, is_table))

    def _put(self, node: Node, where: Where) -> None:
        if not self._stack:
            self.root = node
            return
        into = self._stack[-1]
        if not into.is_table:
            into.items.append(node)
        elif into.key is None:
            assert isinstance(node, Scalar)
            into.key = (node.text, where)
            if node.text == "<<" and node.plain:
                self._note(
                    where,
                    "<< is a YAML merge key; every value is written where it is used",
                    "the merged keys themselves",
                )
        else:
            key, key_where = into.key
            into.key = None
            first = into.entries.get(key)
            if first is None:
                into.entries[key] = Entry(key_where, node)
            elif key != "<<":
                self._note(
                    key_where,
                    f"{key} is written twice here; the first is at line {first.where.line}",
                    "only one of them",
                )

    def _note(self, where: Where, found: str, write: str) -> None:
        self.problems.append(Problem(str(where), found, write))

    def _stop(self, where: Where, found: str, write: str) -> None:
        """Note a problem after which the rest of the text means nothing."""
        self._note(where, found, write)
        raise SpecError(self.problems)


def _syntax_problem(error: yaml.MarkedYAMLError, where: Where) -> Problem:
    said = (error.problem or str(error)).replace("\n", " ")
    context = error.context or ""
    if "alias" in context:
        write = 'a text that starts with * in quotes, e.g. "*.tif"'
    elif "\\t" in said:
        write = "spaces instead of the tab"
    elif "mapping values" in said:
        write = "one `key: value` per line; a text that holds ': ' in quotes"
    elif "cannot start any token" in said:
        write = "a text that starts with this character in quotes"
    elif "expected ',' or" in said:
        write = "the missing comma or closing bracket"
    else:
        write = "`key: value` lines, equally indented within a section"
    return Problem(str(where), f"this is not YAML: {said}" + (f" ({context})" if context else ""), write)
