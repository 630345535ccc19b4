"""What the answer of a factory depends on, as far as files say it: the code it can import from where it lies, and files that it is given.

Python's own search is followed, nothing is imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from dptrain.spec.schema import Factory

MOST_FILES = 2000
MOST_BYTES = 32 * 2**20
"""Of code that is read, and entries of folders that are looked at (`MOST_FILES` folders); for more there is no mark."""
SMALL_BYTES = 2**20
"""Files given as arguments are known by their content up to here, beyond by size and time."""
INSTALLED = ("site-packages", "dist-packages")


class TooMuch(OSError):
    """More code or files than are read for a plan."""


def factory_mark(factory: Factory) -> list[Any]:
    """A value that changes with the code of a factory and with the files that its arguments name.

    Code is every `*.py` below the folder in which Python finds the module, so that what lies beside it counts, imported or not.
    Of an installed module it is that module or package.

    :raises OSError: where there is none, it cannot be read, or it is more than a plan reads.
    """
    top = factory.factory.split(":")[0].split(".")[0]
    folders = [factory.search_path] if factory.search_path else []
    found = PathFinder.find_spec(top, [*folders, *sys.path])
    if found is None:
        raise FileNotFoundError(top)
    digest, count, size = hashlib.sha256(), 0, 0
    for root in _roots(found):
        for file in _sources(root):
            content = file.read_bytes()
            count, size = count + 1, size + len(content)
            if count > MOST_FILES or size > MOST_BYTES:
                raise TooMuch(f"more code than is read below {root}")
            digest.update(f"{file.relative_to(root)} {len(content)} ".encode())
            digest.update(content)
    return [digest.hexdigest(), [_file_mark(path) for path in _named(factory)]]


def _roots(found: ModuleSpec) -> list[Path]:
    """Folders, or files, whose code counts."""
    # A folder without `__init__.py` has places, maybe several, and no file of its own.
    places = list(found.submodule_search_locations or [])
    if not places and (not found.has_location or found.origin is None):
        raise FileNotFoundError(found.name)
    paths = [Path(place) for place in places or [str(found.origin)]]
    return sorted({path if path.parent.name in INSTALLED else path.parent for path in paths})


def _sources(root: Path) -> Iterator[Path]:
    """Python files below a folder, in order; folders that no import can name are left out: `.venv`, a run, a save."""
    if not root.is_dir():
        yield root
        return
    seen: set[str] = set()
    for folder, below, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link that leads back
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if name.isidentifier() and name != "__pycache__")
        if len(seen) > MOST_FILES:
            raise TooMuch(f"more folders than are looked at below {root}")
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _named(factory: Factory) -> list[Path]:
    """Files and folders that arguments name, from the current folder or from that of the spec."""
    bases = ["", *([factory.search_path] if factory.search_path else [])]
    paths = (Path(base, text) for text in _texts(factory.arguments) for base in bases)
    return [path for path in paths if _is_there(path)]


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (OSError, ValueError):  # among them names that no file can have
        return False
    return True


def _texts(value: Any) -> Iterator[str]:
    """Strings anywhere in plain values, none empty."""
    if isinstance(value, str):
        yield from [value] if value else []
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _file_mark(path: Path) -> list[Any]:
    """Content of a small file, size and time of a large one; of a folder those of what lies in it."""
    if path.is_dir():
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        if len(entries) > MOST_FILES:
            raise TooMuch(f"more files than are looked at in {path}")
        return [[entry.name, *_stat(entry.stat())] for entry in entries]
    stat = path.stat()
    small = path.is_file() and stat.st_size <= SMALL_BYTES
    return [str(path), hashlib.sha256(path.read_bytes()).hexdigest() if small else _stat(stat)]


def _stat(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns]
