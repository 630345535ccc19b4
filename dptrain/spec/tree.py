"""YAML text -> a tree of raw texts with positions. Nothing here decides what a text means.

PyYAML's own constructors are not used: they turn `12:00:00` into 43200, `0123` into 83 and `no` into False, and let the last
of two equal keys win. Only its parser is, event by event, so that no tag, alias or merge key is ever acted on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Refused:
    """A value whose problem is noted already: an alias, or something with a tag."""

    where: Where


Node = Scalar | Items | Table | Refused


@dataclass(frozen=True, kw_only=True)
class Found:
    """A problem that still knows its position as numbers, for sorting, and its key."""

    where: Where
    path: tuple[str, ...] = ()
    found: str
    write: str

    def problem(self) -> Problem:
        return Problem(printable(str(self.where)), printable(self.found), printable(self.write))

    @property
    def order(self) -> tuple[bool, int, int]:
        return (not self.where.source.is_file, self.where.line, self.where.column)


def raise_found(found: Sequence[Found]) -> None:
    """Raise SpecError with every problem once, by line, those of `--set` last; do nothing where there is none."""
    if found:
        unique = {(str(f.where), f.found): f for f in found}
        raise SpecError([f.problem() for f in sorted(unique.values(), key=lambda f: f.order)])


def printable(text: str) -> str:
    """Characters that a terminal would act on, written as escapes."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def shown(node: Node) -> str:
    """A value as it is quoted in a message: short, on one line."""
    if isinstance(node, Scalar):
        text = node.text if len(node.text) <= 60 else node.text[:57] + "..."
        return text if node.plain else f'"{text}"'
    if isinstance(node, Items):
        return "[" + ", ".join(shown(i) for i in node.items[:4]) + (", ..." if len(node.items) > 4 else "") + "]"
    if isinstance(node, Refused):
        return "..."
    return "{" + ", ".join(f"{k}: {shown(e.value)}" for k, e in list(node.entries.items())[:3]) + "}"


def read_tree(text: str, source: Source) -> tuple[Node | None, list[Found]]:
    """The one document of a text (None: there is none) and its structural problems. Raises SpecError where it cannot be read on."""
    bad = UNPRINTABLE.search(text)
    if bad is not None:
        found = f"the character U+{ord(bad[0]):04X} cannot be in this file"
        raise_found([Found(where=_position(text, bad.start(), source), found=found, write="delete it")])
    assembly = _Assembly(source)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            assembly.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Where(source, mark.line + 1, mark.column + 1) if mark else Where(source, 1, 1)
        raise_found([*assembly.found, _syntax_problem(error, at)])
    except (ValueError, OverflowError):
        # PyYAML hands the digits of "\\U00110000" to chr() unchecked.
        beyond = re.search(r"\\U(?!000[0-9a-fA-F]|0010)", text)
        at = _position(text, beyond.start() if beyond else 0, source)
        raise_found(
            [*assembly.found, Found(where=at, found="this escape names no character", write="\\U0010FFFF at most")]
        )
    return assembly.root, assembly.found


def _position(text: str, offset: int, source: Source) -> Where:
    lines = re.split(r"\r\n|\r|\n", text[:offset])
    return Where(source, len(lines), len(lines[-1]) + 1)


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


@dataclass
class _Open:
    """A container that is being read."""

    where: Where
    is_table: bool
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    key: tuple[str, Where] | None = None
    refused: bool = False

    def closed(self) -> Node:
        if self.refused:
            return Refused(self.where)
        return Table(self.entries, self.where) if self.is_table else Items(tuple(self.items), self.where)


class _Assembly:
    """Builds the tree event by event, without recursion, and notes what a spec does not use: tags, anchors, merges, repeats."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: list[Found] = []
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
            write = f'the value, or "*{event.anchor}" for a text'
            self._note(where, f"*{event.anchor} is a YAML alias; every value is written where it is used", write)
            self._put(Refused(where), where)
        elif isinstance(event, yaml.ScalarEvent):
            refused = self._refuses(event, where)
            self._put(Refused(where) if refused else Scalar(event.value, event.style is None, where), where)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(where, isinstance(event, yaml.MappingStartEvent), self._refuses(event, where))
        elif isinstance(event, yaml.CollectionEndEvent):
            node = self._stack.pop().closed()
            self._put(node, node.where)

    def _refuses(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, where: Where) -> bool:
        """Note anchors and tags; a value with a tag is not read."""
        if event.anchor is not None:
            found = f"&{event.anchor} is a YAML anchor; every value is written where it is used"
            self._note(where, found, f"the value without &{event.anchor}")
        if event.tag is not None:
            self._note(where, f"the tag {event.tag} is not read; types come from the key", "the value without its tag")
        return event.tag is not None

    def _open(self, where: Where, is_table: bool, refused: bool) -> None:
        if self._stack and self._stack[-1].is_table and self._stack[-1].key is None:
            self._stop(
                where, "a list or mapping cannot be a key", "a key of letters; text with braces or brackets in quotes"
            )
        if len(self._stack) >= DEEPEST:
            self._stop(where, f"nested deeper than {DEEPEST} levels", "fewer levels")
        self._stack.append(_Open(where, is_table, refused=refused))

    def _put(self, node: Node, where: Where) -> None:
        if not self._stack:
            self.root = node
            return
        into = self._stack[-1]
        if not into.is_table:
            into.items.append(node)
        elif into.key is None:
            into.key = (node.text if isinstance(node, Scalar) else "", where)
            if isinstance(node, Scalar) and node.plain and node.text == "<<":
                self._note(
                    where,
                    "<< is a YAML merge key; every value is written where it is used",
                    "the merged keys themselves",
                )
                into.key = ("", where)
        else:
            (key, key_where), into.key = into.key, None
            first = into.entries.setdefault(key, Entry(key_where, node))
            if first.value is not node:
                self._note(
                    key_where,
                    f"{key!r} is written twice here; the first is at line {first.where.line}",
                    "only one of them",
                )

    def _note(self, where: Where, found: str, write: str) -> None:
        self.found.append(Found(where=where, found=found, write=write))

    def _stop(self, where: Where, found: str, write: str) -> None:
        """Note a problem after which the rest of the text means nothing."""
        self._note(where, found, write)
        raise_found(self.found)


def _syntax_problem(error: yaml.MarkedYAMLError, where: Where) -> Found:
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
    return Found(where=where, found=f"this is not YAML: {said}" + (f" ({context})" if context else ""), write=write)
