"""Strict reading of a spec: every problem of the file at once, each with file:line:col, what was found and what to write.

The price of strictness is that YAML's shortcuts (aliases, merge keys, tags, yes/no, octal and base-60 numbers) are refused.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dptrain.errors import Problem, SpecError
from dptrain.spec.advice import dotted, nearest
from dptrain.spec.dump import dump_spec
from dptrain.spec.overrides import Override, apply_overrides, lookup, put
from dptrain.spec.resolve import build_spec
from dptrain.spec.schema import Spec
from dptrain.spec.sweep import read_sweep
from dptrain.spec.tree import Found, Node, Scalar, Source, Table, raise_found, read_bytes, read_tree, shown

__all__ = ["LoadedSpec", "Override", "dump_spec", "load_spec", "parse_spec"]


@dataclass(frozen=True, kw_only=True)
class LoadedSpec:
    """A spec and where it came from."""

    spec: Spec
    path: Path
    """The file, absolute."""
    overrides: tuple[Override, ...] = ()
    """Every `--set` in effect."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Key -> position of its value, for every value that somebody wrote; the others are defaults."""
    fit_gpus: bool = False
    """`resources.gpus: fit`: the spec holds one rank per replica until plan has decided; see `dptrain.plan.ranks`."""


def load_spec(path: Path, overrides: Sequence[str] = ()) -> LoadedSpec:
    """Read a spec file. Raises SpecError with all problems of the file and of the overrides."""
    text = read_bytes(read_file(path), Source(label=str(path), folder=path.parent.absolute()))
    return parse_spec(text, str(path), path.parent, overrides)


def parse_spec(text: str, name: str, base_dir: Path, overrides: Sequence[str] = ()) -> LoadedSpec:
    """Read a spec from its text.

    :param name: the file as messages name it.
    :param base_dir: folder from which relative paths in the text start.
    """
    source = Source(label=name, folder=base_dir.absolute())
    node, structural = read_tree(text.removeprefix("\ufeff"), source)
    root = as_table(node, source, "a spec", "name: my-run")
    return load_tree(root, source.folder / Path(name).name, overrides, structural)


def load_tree(root: Table, path: Path, overrides: Sequence[str] = (), structural: Sequence[Found] = ()) -> LoadedSpec:
    """A spec from its tree, whatever that was read from.

    :param path: the file, absolute.
    :param structural: what was wrong with the text; raised with the rest.
    """
    root, applied, wrong = apply_overrides(root, overrides)
    root, fit_gpus = _without_fit_gpus(root)
    builder, spec = build_spec(root)
    sweep, in_sweep = read_sweep(root, builder)
    raise_found([*structural, *wrong, *builder.found, *in_sweep])
    origins = {dotted(p): str(w) for p, w in builder.at.items() if p}
    return LoadedSpec(
        spec=replace(spec, sweep=sweep),
        path=path,
        overrides=applied,
        origins=origins,
        fit_gpus=fit_gpus and not any("resources.gpus" in _keys(line) for line in sweep),
    )


def _without_fit_gpus(root: Table) -> tuple[Table, bool]:
    """The tree with one rank per replica in the place of `gpus: fit`, and whether it was there."""
    gpus = lookup(root, ("resources", "gpus"))
    if not isinstance(gpus, Scalar) or gpus.text != "fit":
        return root, False
    replicas = lookup(root, ("resources", "replicas"))
    return put(root, ("resources", "gpus"), replicas or Scalar("1", True, gpus.where), gpus.where), True


def _keys(line: str) -> list[str]:
    return [key.strip() for key in line.split(",")]


def as_table(node: Node | None, source: Source, what: str, example: str) -> Table:
    """The top level of a file, which must be a mapping."""
    if node is None:
        raise SpecError([Problem(f"{source.label}:1:1", f"{what} is empty", example)])
    if not isinstance(node, Table):
        raise SpecError([Problem(str(node.where), f"{what} is {shown(node)}, not `key: value` lines", example)])
    return node


def read_file(path: Path) -> bytes:
    """The bytes of a regular file. Raises SpecError with the nearest name for one that is missing."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.read_bytes()
        raise SpecError([Problem(str(path), "this is not a file", "the path of a YAML spec")])
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        write = str(path.with_name(near)) if near else "the path of a spec; `dptrain init` writes one"
        raise SpecError([Problem(str(path), "no such file", write)]) from None
    except OSError as error:
        raise SpecError([Problem(str(path), f"cannot be read: {error.strerror}", "")]) from None
