"""`--set section.key=value`: a YAML flow value put into the tree before anything is judged, so that what it replaces cannot complain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dptrain.spec.scalars import quote
from dptrain.spec.schema import Denoiser, Factory, FileData, Spec
from dptrain.spec.sections import choose, classes_of, hints_of, keys_of, tag_of
from dptrain.spec.tree import Entry, Found, Node, Scalar, Source, Table, Where, read_tree, shown


@dataclass(frozen=True, kw_only=True)
class Override:
    """One value that does not come from where the reader of the file would look."""

    key: str
    value: str
    """As written."""
    origin: str
    """`--set`, or the position in a file."""
    replaces: str | None = None
    """What the file says, with its position; None: the file does not have the key."""


def apply_overrides(root: Table, texts: Sequence[str]) -> tuple[Table, tuple[Override, ...], list[Found]]:
    """The tree with every override in it, the last of a key winning; those applied; what is wrong with them as overrides."""
    problems: list[Found] = []
    applied: dict[str, Override] = {}
    original = root
    for text in texts:
        key, node, wrong = _parse(text)
        problems += wrong
        if node is None:
            continue
        path = key_path(key)
        problem = _clash(root, key, path)
        if problem is not None:
            problems.append(problem)
            continue
        root = put(root, path, node)
        before = lookup(original, path)
        replaces = f"{shown(before)} ({before.where})" if before is not None else None
        applied.pop(key, None)
        applied[key] = Override(key=key, value=shown(node), origin="--set", replaces=replaces)
    return root, tuple(applied.values()), problems


def key_path(key: str) -> tuple[str, ...]:
    """`tiling.patch` -> its parts; what follows `sweep.` is one key, dots and commas included."""
    if key.startswith("sweep."):
        return ("sweep", key.removeprefix("sweep."))
    return tuple(key.split("."))


def lookup(root: Table, path: tuple[str, ...]) -> Node | None:
    """The node at a path, or None."""
    node: Node = root
    for key in path:
        if not isinstance(node, Table) or key not in node.entries:
            return None
        node = node.entries[key].value
    return node


def put(root: Table, path: tuple[str, ...], node: Node, where: Where | None = None) -> Table:
    """The tree with one value replaced. Sections on the way are made; what a changed kind no longer takes is dropped."""
    return _put(root, path, Entry(where or node.where, node), (Spec,))


def _put(table: Table, path: tuple[str, ...], entry: Entry, classes: tuple[type, ...]) -> Table:
    key, rest = path[0], path[1:]
    cls = choose(classes, table) if classes else None
    if not rest:
        changed = table.with_entry(key, entry)
        return _switched(table, changed, key, classes) if len(classes) > 1 else changed
    hint = hints_of(cls).get(key) if cls is not None else None
    inner_classes = classes_of(hint) if hint is not None else ()
    old = table.entries.get(key)
    inside = (
        old.value if old is not None and isinstance(old.value, Table) else _fresh(inner_classes, rest[0], entry.where)
    )
    return table.with_entry(key, Entry(old.where if old else entry.where, _put(inside, rest, entry, inner_classes)))


def _fresh(classes: tuple[type, ...], key: str, where: Where) -> Table:
    """A section that the file does not have: empty, or saying that it is of the default kind where the key needs to know."""
    names = tuple(tag for c in classes if (tag := tag_of(c)) is not None)
    if names and key not in ("name", "factory"):
        return Table({"name": Entry(where, Scalar(names[0], True, where))}, where)
    if FileData in classes and key not in ("truth", "measurements", "source", "factory"):
        return Table({"source": Entry(where, Scalar("photo", True, where))}, where)
    return Table({}, where)


def _switched(before: Table, after: Table, key: str, classes: tuple[type, ...]) -> Table:
    """Drop the file's keys that the kind which `key` has just chosen does not take."""
    if FileData in classes and key in ("source", "truth", "measurements", "factory"):
        chosen = next(c for c in classes if key in hints_of(c))
    elif key == "factory":
        chosen = Factory
    elif key == "name":
        trial = after.without({"factory"}) if "factory" in before.entries else after
        found = choose(classes, trial)
        if found is None:
            return after
        chosen = found
    else:
        return after
    same = choose(classes, before) is chosen and chosen is not Denoiser
    if same:
        return after
    valid = ("factory",) if chosen is Factory else keys_of(chosen, after)
    stale = {k for k, e in after.entries.items() if k not in valid and k != key and e.where.source.is_file}
    return after.without(stale | ({"factory"} - {key}))


def _parse(text: str) -> tuple[str, Node | None, list[Found]]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or any(not part for part in key.split(".")):
        where = Where(Source(label="--set", folder=Path.cwd(), is_file=False), 1, 1)
        return key, None, [Found(where=where, found=f"{quote(text)} is not KEY=VALUE", write="--set section.key=value")]
    source = Source(label=f"--set {key}", folder=Path.cwd(), is_file=False)
    node, found = read_tree(value, source)
    return key, node or Scalar("", True, Where(source, 1, 1)), found


def _clash(root: Table, key: str, path: tuple[str, ...]) -> Found | None:
    """An override of a swept key: which of the two is meant is not for us to guess."""
    sweep = lookup(root, ("sweep",))
    if not isinstance(sweep, Table) or path[0] == "sweep":
        return None
    for swept, entry in sweep.entries.items():
        if key in [part.strip() for part in swept.split(",")]:
            write = f"--set 'sweep.{swept}=[...]' to change the list, or --set sweep=null before it for no sweep"
            where = Where(Source(label=f"--set {key}", folder=Path.cwd(), is_file=False), 1, 1)
            return Found(
                where=where, found=f"{key} is swept at {entry.where}, so that one value has no place", write=write
            )
    return None
