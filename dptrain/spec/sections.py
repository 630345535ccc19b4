"""What the schema's classes say about themselves: their keys, and which class a mapping means where several are possible."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from dptrain.spec.schema import DENOISER_KEYS, Denoiser, Factory, FileData, SourceData, Spec
from dptrain.spec.tree import Scalar, Table

LOADER_KEYS: dict[type, tuple[str, ...]] = {Factory: ("arguments",)}
"""Fields that are no keys of the file."""


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """Key -> annotation, marks included."""
    hidden = LOADER_KEYS.get(cls, ())
    return {k: v for k, v in get_type_hints(cls, include_extras=True).items() if k not in hidden}


@cache
def required_of(cls: type) -> tuple[str, ...]:
    """Keys without a default."""
    return tuple(f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)


def unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation without its marks, and the marks."""
    if get_origin(hint) is Annotated:
        base, *marks = get_args(hint)
        return base, tuple(marks)
    return hint, ()


def options_of(hint: Any) -> tuple[Any, ...]:
    """The alternatives of `A | B`, or the one type."""
    base, _ = unwrap(hint)
    return get_args(base) if get_origin(base) in (Union, types.UnionType) else (hint,)


def classes_of(hint: Any) -> tuple[type, ...]:
    """The section classes among the alternatives."""
    return tuple(o for o in options_of(hint) if isinstance(o, type) and is_dataclass(o))


def tag_of(cls: type) -> str | None:
    """The one value of `name` that means this class, e.g. `deblur`; None where it has no such key."""
    words = get_args(hints_of(cls).get("name"))
    return words[0] if get_origin(hints_of(cls).get("name")) is Literal and len(words) == 1 else None


def label_of(cls: type) -> str:
    """How messages call one of several classes of a section."""
    if cls is Factory:
        return "factory"
    return tag_of(cls) or {SourceData: "data without files", FileData: "data of files"}.get(cls, "")


def choose(classes: tuple[type, ...], table: Table) -> type | None:
    """The class that a mapping means; None where it does not say."""
    if len(classes) == 1:
        return classes[0]
    if Factory in classes and "factory" in table.entries:
        return Factory
    if FileData in classes:
        if "truth" in table.entries or "measurements" in table.entries:
            return FileData
        return SourceData if "source" in table.entries else None
    plain = tuple(c for c in classes if c is not Factory)
    if len(plain) == 1:
        return plain[0]
    name = table.entries.get("name")
    text = name.value.text if name is not None and isinstance(name.value, Scalar) else None
    return next((c for c in plain if tag_of(c) == text), None)


def keys_of(cls: type, table: Table | None = None) -> tuple[str, ...]:
    """Legal keys of a section; a denoiser's depend on its name."""
    if cls is Denoiser and table is not None:
        name = table.entries.get("name")
        text = name.value.text if name is not None and isinstance(name.value, Scalar) else "drunet"
        return DENOISER_KEYS.get(text, tuple(hints_of(cls)))
    return tuple(hints_of(cls))


@cache
def everything() -> tuple[tuple[str, str, str], ...]:
    """(section path, label, key) of every key of a spec, top level first."""
    return tuple(_walk(Spec, "", ""))


def _walk(cls: type, path: str, label: str) -> Iterator[tuple[str, str, str]]:
    hints = hints_of(cls)
    for key in hints:
        yield path, label, key
    for key, hint in hints.items():
        classes = classes_of(hint)
        for inner in classes:
            yield from _walk(inner, f"{path}.{key}" if path else key, label_of(inner) if len(classes) > 1 else "")
