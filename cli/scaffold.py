"""What `init` writes: a spec from a template under another name, and a built-in cluster profile to start one's own from."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from dptrain.errors import UsageError
from dptrain.records.places import writing

_NAME_LINE = re.compile(r"^name:[ \t]*[^\s#]+", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def listing() -> str:
    """Every template and profile with the first sentence of its comment."""
    parts = []
    for title, folder in (("templates", _templates()), ("cluster profiles", _profiles())):
        files = sorted(_yaml_files(folder), key=lambda file: file.name)
        width = max((len(_stem(file)) for file in files), default=0)
        parts.append(f"{title}:")
        parts += [f"  {_stem(file).ljust(width)}  {_first_sentence(file)}".rstrip() for file in files]
    return "\n".join(parts)


def write(name: str, template: str, profile: str | None, folder: Path) -> list[Path]:
    """Write NAME.yaml, and the user's own copy of a profile; refuses to overwrite before anything is written.

    :return: the files written.
    """
    name = checked_name(name)
    text = _NAME_LINE.sub(
        f"name: {name}", _find(_templates(), template, "template").read_text(encoding="utf-8"), count=1
    )
    files = [(folder / f"{name}.yaml", text)]
    if profile is not None:
        own = _config_folder() / f"{profile}.yaml"
        files.append((own, _find(_profiles(), profile, "cluster profile").read_text(encoding="utf-8")))
    return write_new(files)


def checked_name(name: str) -> str:
    """The name of a spec, which may have been given as its file."""
    name = name.removesuffix(".yaml")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name: letters, digits, `.`, `_`, `-`, at most 64, starting with a letter or digit"
        )
    return name


def write_new(files: Sequence[tuple[Path, str]]) -> list[Path]:
    """Write files that do not exist yet: all of them or none."""
    for path, _ in files:
        if path.exists():
            raise UsageError(f"{path} exists already and is not overwritten; choose another name, or remove it")
    for path, content in files:
        with writing("the file", path, "the same command in a folder that can be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    return [path for path, _ in files]


def _templates() -> Traversable:
    return resources.files("dptrain.templates")


def _profiles() -> Traversable:
    return resources.files("dptrain.templates") / "clusters"


def _config_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "dptrain" / "clusters"


def _yaml_files(folder: Traversable) -> Iterator[Traversable]:
    yield from (file for file in folder.iterdir() if file.is_file() and file.name.endswith(".yaml"))


def _stem(file: Traversable) -> str:
    return file.name.removesuffix(".yaml")


def _find(folder: Traversable, name: str, what: str) -> Traversable:
    known = {_stem(file): file for file in _yaml_files(folder)}
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    raise UsageError(f"no {what} {name!r}\n    write: {near[0] if near else ', '.join(sorted(known))}")


def _first_sentence(file: Traversable) -> str:
    lines = itertools.dropwhile(lambda line: not line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    paragraph = itertools.takewhile(lambda line: line.startswith("# "), lines)
    text = " ".join(line.removeprefix("# ").strip() for line in paragraph)
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", text, maxsplit=1)[0]
