"""What to write instead: the key that was meant, the section where it belongs, the forms a section has."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Literal, get_args, get_origin

from dptrain.spec.constraints import Pattern
from dptrain.spec.schema import Factory, Train
from dptrain.spec.sections import everything, hints_of, tag_of
from dptrain.spec.tree import Entry, Items, Node, Scalar, Table, shown

_OTHER_WORDS = {
    "batch": "batch_size",
    "dtype": "precision",
    "epochs": "steps",
    "iters": "iterations",
    "lr": "learning_rate",
    "max_iter": "iterations",
    "model": "denoiser",
    "n_iter": "iterations",
    "network": "denoiser",
    "nf": "width",
    "overlap": "halo",
    "ranks": "gpus",
    "tile": "patch",
    "tiles": "tiling",
    "time": "time_min",
    "walltime": "time_min",
    "world_size": "gpus",
}


def nearest(word: str, valid: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The valid name that was probably meant."""
    by_lower = {v.lower(): v for v in valid}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def belongs(section: str, key: str, valid: Sequence[str]) -> tuple[str, str | None]:
    """(what else is known about the key, the key path to write instead).

    :param section: path of the section it was found in, empty at top level.
    """
    word = key.rsplit(".", 1)[-1]
    if "." in key:
        named = [f"{s}.{k}" if s else k for s, _, k in everything()]
        if key in named:
            return "; keys are nested, not joined by dots", key
    homes = [(s, label) for s, label, k in everything() if k == word and not (s == section and key in valid)]
    if homes:
        home, label = homes[0]
        here = [lb for s, lb in homes if s == section and lb]
        if here:
            return f"; it belongs to {' and '.join(dict.fromkeys(here))}", None
        return f"; it belongs in {home or 'the top level'}" + (
            f" ({label})" if label else ""
        ), f"{home}.{word}" if home else word
    meant = _OTHER_WORDS.get(word.lower())
    if meant in valid:
        return "", f"{section}.{meant}" if section else meant
    near = nearest(word, valid)
    if near is not None:
        return "", f"{section}.{near}" if section else near
    far = meant or nearest(word, [k for _, _, k in everything()], cutoff=0.75)
    if far is not None:
        home = next(s for s, _, k in everything() if k == far)
        return f"; perhaps {far} of {home or 'the top level'}", f"{home}.{far}" if home else far
    return "", None


def dotted(path: tuple[str, ...]) -> str:
    """`("problem", "physics", "frames")` as users write it."""
    return ".".join(path)


def forms(classes: tuple[type, ...]) -> str:
    """The ways to write a section of several kinds."""
    tags = [tag for c in classes if (tag := tag_of(c)) is not None]
    forms = [f"name: {' | '.join(tags)}"] if tags else []
    if any("truth" in hints_of(c) for c in classes):
        forms += ["source: photo | synthetic", "truth: files", "measurements: files"]
    if Factory in classes:
        forms.append("factory: module:function")
    return ", or ".join(forms) or "key: value lines"


def as_mapping(classes: tuple[type, ...], node: Node) -> str:
    """What to write for a section that was written as a single value, e.g. `{name: pgd}`."""
    text = node.text if isinstance(node, Scalar) else ""
    for cls in classes:
        for key in ("name", "source"):
            hint = hints_of(cls).get(key)
            if get_origin(hint) is Literal and text in get_args(hint):
                return f"{{{key}: {text}}}"
    return f"{{...}} with: {forms(classes)}"


def as_coupled(node: Node, keys: Sequence[str]) -> str:
    """The list that was meant by one value of coupled keys: what it holds, and the keys whose values are missing."""
    given = [shown(item) for item in (node.items if isinstance(node, Items) else (node,))][: len(keys)]
    values = given + ["..."] * (len(keys) - len(given))
    return f"[{', '.join(values)}], the values of {', '.join(keys)}"


def corrected(full: str, meant: str | None, section: str, entry: Entry) -> str:
    """The line or `--set` that was meant by an unknown key, its value kept."""
    if meant is None:
        return ""
    value = entry.value
    if entry.where.source.is_file:
        home, _, leaf = meant.rpartition(".")
        text = "..." if isinstance(value, Table) else shown(value)
        return f"{leaf}: {text}" + (f" (under {home})" if home and home != section else "")
    rest = entry.where.source.label.removeprefix(f"--set {full}")
    for part in rest.split(".")[1:] if rest.startswith(".") else []:
        if isinstance(value, Table) and part in value.entries:
            meant, value = f"{meant}.{part}", value.entries[part].value
    return f"--set {meant}={shown(value)}"


def cleaned(text: str, mark: Pattern) -> str:
    """A text that the pattern takes, made of the one that was written; nothing where that is no use."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64]
    return clean if clean and mark.complaint(clean) is None and ":" not in mark.regex else ""


def fewer_images(train: Train, replicas: int, have: int, key: str) -> str:
    """The changes with which a training gets by on the images there are.

    :param have: images of the data, at least 1.
    :param key: `problem.data` or `train.held_out_data`.
    """
    synthetic = f"--set '{key}={{source: synthetic}}'"
    if key == "train.held_out_data":
        return f"--set train.held_out={have}, or {synthetic}"
    if have < replicas:
        return synthetic
    batch_size, held_out = min(train.batch_size, have // replicas), train.held_out
    left = have
    if train.held_out_data is None:
        held_out = max(0, min(held_out, have - replicas * batch_size))
        left -= held_out
    wanted = {"batch_size": batch_size, "images": min(train.images, left), "held_out": held_out}
    changed = [f"--set train.{name}={value}" for name, value in wanted.items() if value != getattr(train, name)]
    return f"{' '.join(changed)}, or {synthetic}"
