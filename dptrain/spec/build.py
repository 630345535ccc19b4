"""A tree of raw texts -> the schema's frozen objects, noting every problem on the way instead of stopping at the first.

What cannot be read keeps its default and its path is remembered as bad, so that `checks.py` does not judge it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from glob import escape, has_magic
from pathlib import Path as FolderPath
from typing import Any, Literal, NoReturn, get_args, get_origin

from dptrain.spec.advice import as_mapping, belongs, cleaned, corrected, dotted, forms, nearest
from dptrain.spec.constraints import FilePath, Length, Limits, Minutes, Pattern
from dptrain.spec.scalars import (
    Unreadable,
    is_empty,
    is_null,
    quote,
    read_bool,
    read_float,
    read_free,
    read_int,
    read_minutes,
    read_text,
)
from dptrain.spec.schema import Factory
from dptrain.spec.sections import (
    choose,
    classes_of,
    hints_of,
    keys_of,
    label_of,
    options_of,
    required_of,
    tag_of,
    unwrap,
)
from dptrain.spec.tree import Entry, Found, Items, Node, Refused, Scalar, Table, Where, shown

WEIGHTS_SUFFIXES = (".safetensors", ".pth", ".pt")
WEIGHTS_WORDS = ("builtin", "pretrained", "random")
Path = tuple[str, ...]


class Bad(Exception):
    """This value could not be read; the problem is already noted."""


SpecialKeys = Mapping[Path, Callable[["Builder", Node, Path], Any]]


@dataclass
class Builder:
    """Reads one tree. `special`: keys whose values are read by a function of their own (`sweep`, `extra_sbatch`)."""

    special: SpecialKeys = field(default_factory=dict)
    is_spec: bool = True
    """Unknown keys are looked for in all sections of a spec."""
    folder: FolderPath = FolderPath()
    """Of the file, whatever overrides came from elsewhere: where a factory's module is looked for."""
    found: list[Found] = field(default_factory=list)
    at: dict[Path, Where] = field(default_factory=dict)
    """Position of every value that was written."""
    bad: set[Path] = field(default_factory=set)
    """Keys that could not be read."""
    meant: set[Path] = field(default_factory=set)
    """Keys that an unknown key probably stands for."""

    def note(self, path: Path, where: Where, found: str, write: str, *, as_value: bool = False) -> None:
        """Note a problem; `as_value`: `write` is the value alone and is completed with its key."""
        if as_value and write and not path[-1].endswith("]"):
            write = f"{path[-1]}: {write}" if where.source.is_file else f"--set {dotted(path)}={write}"
        self.found.append(Found(where=where, path=path, found=found, write=write))
        self.bad.add(path)

    def section(self, cls: type, table: Table, path: Path) -> Any:
        """One object of a class from its mapping."""
        if not path:
            self.folder = table.where.source.folder
        self.at[path] = table.where
        valid, hints = keys_of(cls, table), hints_of(cls)
        values: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for key, entry in table.entries.items():
            inner = (*path, key)
            self.at[inner] = entry.value.where
            try:
                if key in valid:
                    values[key] = self.value(entry.value, hints[key], inner)
                elif cls is Factory:
                    arguments[key] = self._argument(key, entry, inner)
                else:
                    self._unknown(cls, key, entry, path, valid)
            except Bad:
                self.bad.add(inner)
        for key in required_of(cls):
            if key not in table.entries:
                self.note((*path, key), table.where, f"{dotted((*path, key))} is missing", f"{key}: ...")
            if key not in values:
                values[key] = ""
        if cls is Factory:
            values["arguments"] = arguments
            values.setdefault("search_path", str(self.folder))
        return cls(**values)

    def value(self, node: Node, hint: Any, path: Path) -> Any:
        """The value of one key. Raises Bad once its problem is noted."""
        if isinstance(node, Refused):
            raise Bad
        if path in self.special:
            return self.special[path](self, node, path)
        options = options_of(hint)
        if is_null(node) and type(None) in options:
            return None
        classes = classes_of(hint)
        if is_null(node) or is_empty(node):
            self._nothing(node, path, bool(classes), type(None) in options)
        if classes:
            return self._union(classes, node, path)
        rest = tuple(o for o in options if o is not type(None))
        if len(rest) > 1:
            return self._number_or_word(node, rest, path)
        base, marks = unwrap(rest[0])
        origin = get_origin(base)
        if origin is tuple:
            return self._list(node, get_args(base), marks, path)
        if origin is Literal:
            return self._word(node, get_args(base), path)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self.texts(node, path)
        return self._scalar(node, base, marks, path)

    # ---- alternatives

    def _union(self, classes: tuple[type, ...], node: Node, path: Path) -> Any:
        if not isinstance(node, Table):
            found = f"{dotted(path)} is {shown(node)}, not a mapping"
            self._refuse(node, path, found, as_mapping(classes, node), as_value=True)
        cls = choose(classes, node)
        if cls is None:
            self._which(classes, node, path)
        return self.section(cls, node, path)

    def _which(self, classes: tuple[type, ...], table: Table, path: Path) -> NoReturn:
        """Refuse a mapping that does not say which of several classes it is."""
        named, words = table.entries.get("name"), [tag for c in classes if (tag := tag_of(c)) is not None]
        if words and named is not None and isinstance(named.value, Scalar):
            self.at[(*path, "name")] = named.value.where
            self._word(named.value, tuple(words), (*path, "name"))
        near = [k for k in table.entries if not any(k in hints_of(c) for c in classes)]
        meant = nearest(near[0], [k for c in classes for k in hints_of(c)]) if near else None
        hint = f"; {near[0]} is perhaps {meant}" if meant else ""
        self._refuse(table, path, f"{dotted(path)} does not say which kind it is{hint}", forms(classes))

    def _number_or_word(self, node: Node, rest: tuple[Any, ...], path: Path) -> Any:
        words = tuple(w for o in rest if get_origin(o) is Literal for w in get_args(o))
        number = next(o for o in rest if get_origin(o) is not Literal)
        if isinstance(node, Scalar) and node.text in words:
            return node.text
        if isinstance(node, Scalar) and not re.match(r"[-+.]?[0-9]|[-+]?\.?(inf|nan)$", node.text.lower()):
            near = nearest(node.text, words) or " | ".join(words)
            self._refuse(
                node,
                path,
                f"{dotted(path)} is {quote(node.text)}; it takes a number, or {' or '.join(words)}",
                near,
                as_value=True,
            )
        base, marks = unwrap(number)
        return self._scalar(node, base, marks, path)

    # ---- single values

    def _word(self, node: Node, words: tuple[str, ...], path: Path) -> str:
        if not isinstance(node, Scalar):
            self._refuse(
                node,
                path,
                f"{dotted(path)} is {shown(node)}; it takes one of: {', '.join(words)}",
                words[0],
                as_value=True,
            )
        if node.text not in words:
            write = nearest(node.text, words) or " | ".join(words)
            self._refuse(
                node,
                path,
                f"{dotted(path)} is {quote(node.text)}; it takes one of: {', '.join(words)}",
                write,
                as_value=True,
            )
        return node.text

    def _scalar(self, node: Node, base: Any, marks: tuple[Any, ...], path: Path) -> Any:
        name = dotted(path)
        if isinstance(node, Refused):
            raise Bad
        if not isinstance(node, Scalar):
            kind = "a list" if isinstance(node, Items) else "a mapping"
            self._refuse(node, path, f"{name} is {shown(node)}, {kind}; it takes one {_TYPE_WORDS[base]}", "")
        read: Callable[[Scalar], Any] = read_minutes if any(isinstance(m, Minutes) for m in marks) else _READERS[base]
        try:
            value = read(node)
        except Unreadable as error:
            self._refuse(node, path, f"{name} is {error.found}", error.write or f"a {_TYPE_WORDS[base]}", as_value=True)
        for mark in marks:
            if isinstance(mark, Limits) and (complaint := mark.complaint(value)) is not None:
                self._refuse(node, path, f"{name} is {node.text}; it must be {complaint}", "")
            elif isinstance(mark, Pattern) and (complaint := mark.complaint(value)) is not None:
                self._refuse(
                    node, path, f"{name} is {quote(value)}; it takes {complaint}", cleaned(value, mark), as_value=True
                )
            elif isinstance(mark, FilePath):
                value = _absolute(value, mark, node.where)
        return value

    # ---- lists and mappings

    def _list(self, node: Node, args: tuple[Any, ...], marks: tuple[Any, ...], path: Path) -> tuple[Any, ...]:
        length = next((m for m in marks if isinstance(m, Length)), None)
        if length is None:
            length = Length(at_least=len(args), at_most=len(args), says="two numbers: [low, high]")
        name = dotted(path)
        if isinstance(node, Scalar) and length.bare:
            return (self.value(node, args[0], path),)
        if not isinstance(node, Items):
            same = isinstance(node, Scalar) and node.text.isdigit() and length in marks
            write = f"[{', '.join([shown(node)] * length.at_least)}]" if same else ""
            self._refuse(node, path, f"{name} is {shown(node)}; it takes {length.says}", write, as_value=True)
        count = len(node.items)
        if count < length.at_least or (length.at_most is not None and count > length.at_most):
            self._refuse(node, path, f"{name} has {count} items; it takes {length.says}", "")
        values = []
        for i, item in enumerate(node.items):
            try:
                values.append(self.value(item, args[0], (*path[:-1], f"{path[-1]}[{i}]")))
            except Bad:
                self.bad.add(path)
        if path in self.bad:
            raise Bad
        if length.unique and len(set(values)) < len(values):
            self._refuse(node, path, f"{name} names something twice: {shown(node)}", "each once")
        return tuple(values)

    def texts(self, node: Node, path: Path) -> dict[str, str]:
        """A mapping of texts to texts."""
        if not isinstance(node, Table):
            self._refuse(node, path, f"{dotted(path)} is {shown(node)}, not a mapping", f"{path[-1]}: {{NAME: value}}")
        texts = {}
        for key, entry in node.entries.items():
            inner = (*path, key)
            self.at[inner] = entry.value.where
            try:
                texts[key] = self._scalar(entry.value, str, (), inner)
            except Bad:
                self.bad.add(inner)
        return texts

    def _argument(self, key: str, entry: Entry, path: Path) -> Any:
        if not key.isidentifier():
            self._refuse(
                entry.value,
                path,
                f"{dotted(path)} cannot be an argument of a Python function",
                "letters, digits and '_'",
                where=entry.where,
            )
        return self.free(entry.value, path)

    def free(self, node: Node, path: Path) -> Any:
        """A value of no declared type."""
        if isinstance(node, Refused):
            raise Bad
        if isinstance(node, Items):
            return [self.free(item, (*path[:-1], f"{path[-1]}[{i}]")) for i, item in enumerate(node.items)]
        if isinstance(node, Table):
            return {key: self.free(entry.value, (*path, key)) for key, entry in node.entries.items()}
        if is_empty(node):
            self._refuse(node, path, f"{dotted(path)} has no value", 'null, or ""', as_value=True)
        try:
            return read_free(node)
        except Unreadable as error:
            self._refuse(node, path, f"{dotted(path)} is {error.found}", error.write, as_value=True)

    # ---- refusals

    def _refuse(
        self, node: Node, path: Path, found: str, write: str, *, as_value: bool = False, where: Where | None = None
    ) -> NoReturn:
        self.note(path, where or node.where, found, write, as_value=as_value)
        raise Bad

    def _nothing(self, node: Node, path: Path, is_section: bool, optional: bool) -> NoReturn:
        said = "null" if is_null(node) else "left empty"
        if is_section:
            write = "{} for its defaults" + (", or null for none" if optional else "")
        else:
            write = "null, or a value" if optional else "a value, or no such line for the default"
        self._refuse(node, path, f"{dotted(path)} is {said}", write, as_value=True)

    def _unknown(self, cls: type, key: str, entry: Entry, path: Path, valid: tuple[str, ...]) -> None:
        if not key and isinstance(entry.value, Refused):
            return
        named = key if re.fullmatch(r"[\w., -]+", key) else quote(key)
        full, section = dotted((*path, named)), dotted(path)
        kind = label_of(cls)
        of = (
            (f"{section} ({kind})" if kind else section)
            if section
            else ("a spec" if self.is_spec else "a cluster profile")
        )
        if self.is_spec:
            more, meant = belongs(section, key, valid)
        else:
            more, near = "", nearest(key, valid)
            meant = f"{section}.{near}" if section and near else near
        found = f"{full} is not a key of {of}{more}; valid keys: {', '.join(valid) or 'none'}"
        self.note((*path, key), entry.where, found, corrected(full, meant, section, entry))
        if meant is not None:
            self.meant.add(tuple(meant.split(".")))


_READERS: dict[Any, Callable[[Scalar], Any]] = {int: read_int, float: read_float, bool: read_bool, str: read_text}
_TYPE_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def _absolute(text: str, mark: FilePath, where: Where) -> str:
    folder = str(where.source.folder)
    expanded = os.path.expanduser(text)  # noqa: PTH111 - a glob is not a Path
    beside = os.path.join(folder, expanded)  # noqa: PTH118
    if mark.if_like_path and text in WEIGHTS_WORDS:
        return text
    if mark.if_like_path:
        like = "/" in expanded or expanded.endswith(WEIGHTS_SUFFIXES) or os.path.exists(beside)  # noqa: PTH110
        return beside if like else text
    if mark.glob and beside != expanded and has_magic(folder):
        beside = os.path.join(escape(folder), expanded)  # noqa: PTH118
    return beside
