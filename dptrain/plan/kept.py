"""Answers of the engine, kept on disk by a name for what they depend on: `$XDG_CACHE_HOME/dptrain/FOLDER/NAME.json`.

A file holds an answer and a digest of it with its name: one that is cut, edited or renamed is no answer, and the engine is asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dptrain

SOURCES = ("engine", "geometry", "spec")
"""Folders whose code makes the answers."""


def name_of(content: Any) -> str:
    """A name for everything that an answer depends on.

    :param content: plain values, as JSON has them.
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


@lru_cache(maxsize=1)
def versions() -> str:
    """Of the libraries, and of this project's own code, which changes without its version."""
    folder = Path(dptrain.__file__).parent
    source = hashlib.sha256()
    for part in SOURCES:
        for file in sorted((folder / part).rglob("*.py")):
            source.update(file.read_bytes())
    return f"{source.hexdigest()} {version('torch')} {version('deepinv')} {sys.version}"


def place(folder: str) -> Path:
    """Where answers of one kind lie."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "dptrain" / folder


def read(folder: str, name: str) -> Any:
    """The answer; None: there is none, or what lies there is not what `keep` writes."""
    try:
        value = json.loads((place(folder) / f"{name}.json").read_text(encoding="utf-8"))
        return value["answer"] if value["digest"] == _digest(name, value["answer"]) else None
    # Nesting without end is valid JSON too.
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def keep(folder: str, name: str, answer: Any) -> None:
    """Write it down for later. A home that cannot be written costs the next plan some seconds, no more."""
    path = place(folder) / f"{name}.json"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{name}.{os.getpid()}")
        beside.write_text(json.dumps({"digest": _digest(name, answer), "answer": answer}), encoding="utf-8")
        beside.replace(path)


def _digest(name: str, answer: Any) -> str:
    # Through JSON once more: what is read again has lists where there were tuples.
    return name_of([name, json.loads(json.dumps(answer))])
