"""`sweep:`: one spec -> its list of runs. Values of a key make a grid with those of the others; comma-joined keys change together.

Loading builds every member, so that a combination that cannot work is refused with the position of its value.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dptrain.spec.advice import as_coupled, nearest
from dptrain.spec.build import Bad, Builder
from dptrain.spec.checks import default_signal_lead_s, default_trainable
from dptrain.spec.dump import block, plain
from dptrain.spec.overrides import key_path, lookup, put
from dptrain.spec.resolve import build_spec
from dptrain.spec.scalars import is_null, quote
from dptrain.spec.schema import Factory, Spec, Task
from dptrain.spec.sections import classes_of, everything, hints_of
from dptrain.spec.tree import Found, Items, Node, Refused, Source, Table, Where, raise_found, read_tree, shown

MOST_MEMBERS = 10_000
NOT_SWEPT = {
    "name": "members get names of their own",
    "cluster": "a sweep runs on one cluster",
    "sweep": "a sweep cannot hold a sweep",
}
KINDS = ("name", "source", "factory", "truth", "measurements")
"""Keys that decide which others a section takes; they are put first."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One run of a sweep."""

    spec: Spec
    """Without a sweep; its name says its values."""
    values: Mapping[str, Any]
    """Swept key -> value; coupled keys apart."""
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One line of `sweep:`."""

    keys: tuple[str, ...]
    points: tuple[tuple[Node, ...], ...]
    """One node per key, for each of the values."""

    @property
    def name(self) -> str:
        return ", ".join(self.keys)


def expand(spec: Spec, task: Task | None = None) -> list[Member]:
    """The runs of a spec, the last key of the sweep changing fastest; one run where there is no sweep.

    :param task: what the runs do; default: train where the spec has `train`.
    """
    task = task or ("train" if spec.train is not None else "infer")
    if not spec.sweep:
        return [Member(spec=spec, values={}, fingerprint=fingerprint(spec, task))]
    # Below /dev/null nothing exists, so that no word of the resolved spec can be taken for a file.
    source = Source(label=f"sweep of {spec.name}", folder=Path(os.devnull))
    root, _ = read_tree("\n".join(block({**_as_written(spec), "sweep": plain(spec.sweep)}, 0)), source)
    assert isinstance(root, Table)
    builder = Builder()
    axes = _axes(root, builder)
    members: list[Member] = []
    names: set[str] = set()
    for chosen in _combinations(axes):
        member_builder, member = build_spec(_member_tree(root, chosen))
        builder.found += member_builder.found
        values = {key: value_at(member, key) for key in chosen}
        mark = fingerprint(member, task)
        name = _member_name(spec.name, values, mark, names)
        names.add(name)
        members.append(Member(spec=replace(member, name=name), values=values, fingerprint=mark))
    raise_found(builder.found)
    return members


def fingerprint(spec: Spec, task: Task) -> str:
    """Twelve hex digits of a hash over what determines the result: not the name, the cluster, time limits or how often is saved."""
    whole = plain(spec)
    resources = {k: v for k, v in whole["resources"].items() if k != "time_min"}
    train = (
        {k: v for k, v in whole["train"].items() if k != "save_every_steps"}
        if task == "train" and whole["train"]
        else None
    )
    parts = {k: whole[k] for k in ("problem", "denoiser", "algorithm", "tiling")}
    content = {"task": task, **parts, "resources": resources, "train": train, "seed": spec.run.seed}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def value_at(spec: Spec, key: str) -> Any:
    """The value of a dotted key, e.g. `tiling.patch`; None where a section on the way is absent."""
    value: Any = spec
    for part in key.split("."):
        value = (
            value.arguments.get(part)
            if isinstance(value, Factory) and not hasattr(value, part)
            else getattr(value, part, None)
        )
    return value


def read_sweep(root: Table, base: Builder) -> tuple[dict[str, tuple[Any, ...]], list[Found]]:
    """The typed values of `sweep:` and what is wrong with it, beyond what is wrong with the spec itself."""
    builder = Builder()
    axes = _axes(root, builder)
    count = math.prod(len(axis.points) for axis in axes)
    if count > MOST_MEMBERS:
        where = root.entries["sweep"].value.where
        builder.note(("sweep",), where, f"sweep makes {count} runs, more than {MOST_MEMBERS}", "shorter lists")
    if builder.found or not axes:
        return {}, builder.found
    typed = _read_members(root, axes, base, builder)
    sweep: dict[str, tuple[Any, ...]] = {}
    for axis in axes:
        values: list[tuple[Any, ...]] = []
        for point in axis.points:
            marks = [(key, id(node)) for key, node in zip(axis.keys, point, strict=True)]
            if any(mark not in typed for mark in marks):
                continue  # noted already
            value = tuple(typed[mark] for mark in marks)
            if value in values:
                said = ", ".join(shown(node) for node in point)
                builder.note(("sweep", axis.name), point[0].where, f"sweep.{axis.name} has {said} twice", "each once")
            values.append(value)
        sweep[axis.name] = tuple(values) if len(axis.keys) > 1 else tuple(v[0] for v in values)
    return sweep, builder.found


def _read_members(root: Table, axes: list[Axis], base: Builder, builder: Builder) -> dict[tuple[str, int], Any]:
    """Build every member; note what is wrong with one but not with the spec itself. Gives the value of each node that could be read,
    by its key."""
    known = {(str(f.where), f.found) for f in base.found}
    typed: dict[tuple[str, int], Any] = {}
    for chosen in _combinations(axes):
        member_builder, spec = build_spec(_member_tree(root, chosen))
        for found in member_builder.found:
            if (str(found.where), found.found) not in known:
                known.add((str(found.where), found.found))
                named = ", ".join(f"{key}={shown(node)}" for key, node in chosen.items())
                builder.found.append(
                    replace(
                        found,
                        found=f"{found.found} (in the run {named} of the sweep)",
                        write=_as_item(found, chosen),
                    )
                )
        for key, node in chosen.items():
            path = key_path(key)
            if not any(path[: i + 1] in member_builder.bad for i in range(len(path))):
                typed.setdefault((key, id(node)), value_at(spec, key))
    return typed


def _as_item(found: Found, chosen: Mapping[str, Node]) -> str:
    """What to write instead; in the place of one value of a list it is the value alone, without its key."""
    for key, node in chosen.items():
        if found.where == node.where:
            return found.write.removeprefix(f"{key_path(key)[-1]}: ")
    return found.write


def _axes(root: Table, builder: Builder) -> list[Axis]:
    """The lines of `sweep:`, as far as they are lines of one; problems go to the builder."""
    entry = root.entries.get("sweep")
    if entry is None or is_null(entry.value) or isinstance(entry.value, Refused):
        return []
    if not isinstance(entry.value, Table):
        builder.note(
            ("sweep",),
            entry.value.where,
            f"sweep is {shown(entry.value)}, not a mapping",
            "sweep: {section.key: [values]}",
        )
        return []
    axes: list[Axis] = []
    taken: dict[str, Where] = {}
    for text, line in entry.value.entries.items():
        keys = tuple(part.strip() for part in text.split(","))
        for key in keys:
            problem = _key_problem(root, key)
            if problem is None and key in taken:
                problem = (f"sweep has {key} twice; the first is at {taken[key]}", "it once")
            if problem is not None:
                builder.note(("sweep", text), line.where, *problem)
            taken[key] = line.where
        try:
            axes.append(Axis(keys=keys, points=_points(text, keys, line.value, builder)))
        except Bad:
            continue
    return axes


def _points(text: str, keys: tuple[str, ...], node: Node, builder: Builder) -> tuple[tuple[Node, ...], ...]:
    path = ("sweep", text)
    if not isinstance(node, Items) or not node.items:
        builder.note(
            path,
            node.where,
            f"sweep.{text} is {shown(node)}; it takes a list of values",
            "[value, value]",
            as_value=True,
        )
        raise Bad
    if len(keys) == 1:
        return tuple((item,) for item in node.items)
    wrong = [item for item in node.items if not isinstance(item, Items) or len(item.items) != len(keys)]
    for item in wrong:
        builder.note(
            path,
            item.where,
            f"sweep.{text} has {shown(item)}; its {len(keys)} keys take {len(keys)} values",
            as_coupled(item, keys),
        )
    if wrong:
        raise Bad
    return tuple(item.items for item in node.items if isinstance(item, Items))


def _key_problem(root: Table, key: str) -> tuple[str, str] | None:
    """Why a key cannot be swept, and what to write; None where it can."""
    if key in NOT_SWEPT:
        return f"{key} cannot be swept: {NOT_SWEPT[key]}", ""
    classes: tuple[type, ...] = (Spec,)
    path = key.split(".")
    for i, part in enumerate(path):
        hint = next((hints_of(c)[part] for c in classes if part in hints_of(c)), None)
        if hint is None:
            if i == len(path) - 1 and _is_factory(root, path[:i]):
                return None
            valid = [f"{s}.{k}" if s else k for s, _, k in everything()]
            near = nearest(key, valid) or next((v for v in valid if v.endswith(f".{path[-1]}")), None)
            return f"sweep names {quote(key)}, which is not a key of a spec", near or ""
        classes = classes_of(hint)
        if part == "factory" and not _is_factory(root, path[:i]):
            return (
                f"{key} cannot be swept where {'.'.join(path[:i])} is not a factory already",
                f"{part}: module:function there",
            )
        if not classes and i < len(path) - 1:
            return f"sweep names {key}, but {'.'.join(path[: i + 1])} is a single value", ".".join(path[: i + 1])
    if classes:
        inside = ", ".join(f"{key}.{k}" for k in dict.fromkeys(k for c in classes for k in hints_of(c)))
        return f"sweep names {key}, a whole section; only single keys can be swept", f"one of {inside}"
    return None


def _is_factory(root: Table, path: list[str]) -> bool:
    section = lookup(root, tuple(path))
    return isinstance(section, Table) and "factory" in section.entries


def _combinations(axes: list[Axis]) -> Iterator[dict[str, Node]]:
    for points in itertools.product(*(axis.points for axis in axes)):
        yield {
            key: node
            for axis, point in zip(axes, points, strict=True)
            for key, node in zip(axis.keys, point, strict=True)
        }


def _member_tree(root: Table, chosen: Mapping[str, Node]) -> Table:
    tree = root.without({"sweep"})
    for key in sorted(chosen, key=lambda k: k.rsplit(".", 1)[-1] not in KINDS):
        tree = put(tree, key_path(key), chosen[key])
    return tree


def _as_written(spec: Spec) -> dict[str, Any]:
    """The spec as somebody would have written it: defaults that follow from what a sweep may change are left to follow."""
    whole: dict[str, Any] = plain(replace(spec, sweep={}))
    for name, section in (("physics", spec.problem.physics), ("denoiser", spec.denoiser)):
        if not isinstance(section, Factory) and is_dataclass(section):
            table = whole["problem"][name] if name == "physics" else whole[name]
            defaults = {f.name: plain(f.default) for f in fields(section)}
            for key in [k for k, v in table.items() if k != "name" and v == defaults[k]]:
                del table[key]
    if spec.train is not None and spec.train.trainable == default_trainable(spec):
        del whole["train"]["trainable"]
    if spec.run.signal_lead_s == default_signal_lead_s(spec):
        del whole["run"]["signal_lead_s"]
    return whole


def _member_name(base: str, values: Mapping[str, Any], mark: str, taken: set[str]) -> str:
    """The spec's name and the values, as far as 64 characters hold them."""
    name = "-".join([base, *(f"{key.rsplit('.', 1)[-1]}{_short(value)}" for key, value in values.items())])
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    if len(name) > 64 or name in taken:
        name = f"{name[:57]}-{mark[:6]}"
    return name if name not in taken else f"{name[:51]}-{mark}"


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(_short(v) for v in value)
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)
