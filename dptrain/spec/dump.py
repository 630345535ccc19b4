"""A spec as plain data and as YAML that reads back to an equal one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from dptrain.spec.schema import DENOISER_KEYS, Denoiser, Factory, Spec
from dptrain.spec.tree import UNPRINTABLE


def plain(value: Any) -> Any:
    """Sections as dicts, tuples as lists: what the YAML file holds, with every default written out."""
    if isinstance(value, Factory):
        return {
            "factory": value.factory,
            "search_path": value.search_path,
            **{k: plain(v) for k, v in value.arguments.items()},
        }
    if isinstance(value, Denoiser):
        return {k: plain(getattr(value, k)) for k in DENOISER_KEYS[value.name]}
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def dump_spec(spec: Spec) -> str:
    """YAML of a resolved spec: one line per key, every default written out."""
    return "\n".join(block(plain(spec), 0)) + "\n"


def block(table: Mapping[str, Any], indent: int) -> list[str]:
    """Lines of a mapping: sections indented, deeper mappings on one line."""
    lines = []
    for key, value in table.items():
        head = " " * indent + _key(key) + ":"
        if isinstance(value, Mapping) and value and indent < 4:
            lines += [head, *block(value, indent + 2)]
        else:
            lines.append(f"{head} {flow(value)}")
    return lines


def flow(value: Any) -> str:
    """One value as YAML on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)}: {flow(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(flow(v) for v in value) + "]"


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    """In double quotes; JSON's escapes are YAML's too, but for pairs of surrogates, which are therefore never written."""
    assert UNPRINTABLE.search(text) is None and not set(text) & set("\t\n\r"), "the loader refuses control characters"
    return json.dumps(text, ensure_ascii=False)
