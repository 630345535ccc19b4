"""Write docs/spec.md, the reference of every key of a spec and of a cluster profile (`make docs`).

Meanings are the texts under the fields of `dptrain/spec/schema.py` and `dptrain/spec/cluster.py`, defaults are those of the
classes themselves: the page cannot say anything else than the code does.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dptrain.spec import cluster, schema

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "spec.md"
EXAMPLE = ROOT / "templates" / "demo.yaml"

SECTIONS: tuple[tuple[str, type], ...] = (
    ("The top", schema.Spec),
    ("`problem`", schema.Problem),
    ("`problem.physics: {name: multiframe_superres}`", schema.MultiframeSuperres),
    ("`problem.physics: {name: deblur}`", schema.Deblur),
    ("`problem.physics: {name: denoise}`", schema.Denoise),
    ("`problem.physics: {name: inpaint}`", schema.Inpaint),
    ("`problem.data: {source: ...}`", schema.SourceData),
    ("`problem.data: {truth: ...}`", schema.FileData),
    ('Your own code: `{factory: "module:function"}`', schema.Factory),
    ("`denoiser`", schema.Denoiser),
    ("`algorithm`", schema.Algorithm),
    ("`tiling`", schema.Tiling),
    ("`resources`", schema.Resources),
    ("`train`", schema.Train),
    ("`run`", schema.Run),
)
INTRODUCTION = """\
# The spec

Written by `make docs` from `dptrain/spec/schema.py` and `dptrain/spec/cluster.py`: change the texts there.

A spec is one YAML file. Every key but `name` may be left out; a key that is not listed here is refused with its line and what
comes nearest. Any key is set for one run by `--set section.key=value`. An example with every section but `train`, from
`dptrain init mine`:
"""
PROFILES = """\
## Cluster profiles

One file per site, `~/.config/dptrain/clusters/NAME.yaml`; [cluster-profiles.md](cluster-profiles.md) says how to write one.
"""


def page() -> str:
    """The whole text of docs/spec.md."""
    parts = [INTRODUCTION, "```yaml\n" + EXAMPLE.read_text(encoding="utf-8").rstrip("\n") + "\n```\n"]
    for title, kind in SECTIONS:
        parts += [f"## {title}\n", *_introduction(kind), _table(kind)]
    keys = ", ".join(f"`{key}`" for key in cluster.EXTRA_SBATCH_KEYS)
    parts += [PROFILES, _table(cluster.ClusterProfile, skip=("name",)), f"Keys of `extra_sbatch`: {keys}.\n"]
    return "\n".join(parts)


def meanings(kind: type) -> dict[str, str]:
    """Field -> the text under it, on one line, after the legal values where it does not name them itself."""
    tree = ast.parse(inspect.getsource(kind))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            text = _text(after)
            found[name] = _with_choices(" ".join(text.split()), _choices(kind, name))
    return found


def _introduction(kind: type) -> Iterator[str]:
    if kind is not schema.Spec:
        yield " ".join((kind.__doc__ or "").split()) + "\n"


def _table(kind: type, skip: tuple[str, ...] = ()) -> str:
    texts = meanings(kind)
    rows = ["| key | default | meaning |", "| --- | --- | --- |"]
    for field in dataclasses.fields(kind):
        if field.name not in skip:
            rows.append(f"| `{field.name}` | {_default(field)} | {_cell(texts[field.name])} |")
    return "\n".join(rows) + "\n"


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def _choices(kind: type, name: str) -> list[str]:
    hint = typing.get_type_hints(kind)[name]
    if typing.get_origin(hint) is typing.Literal:
        return [f"`{value}`" for value in typing.get_args(hint)]
    return [OWN_WORDS[kind.__name__, name]] if (kind.__name__, name) in OWN_WORDS else []


def _with_choices(text: str, choices: Sequence[str]) -> str:
    if text and all(choice in text or f"{choice[:-1]}=" in text for choice in choices):
        return text
    return ", ".join(choices) + (f": {text}" if text else "")


OWN_WORDS: Mapping[tuple[str, str], str] = {
    **{
        ("Spec", key): "A section, below." for key in ("problem", "denoiser", "algorithm", "tiling", "resources", "run")
    },
    ("Spec", "train"): "A section, below; null: the spec is for `dptrain infer` alone.",
    ("Problem", "physics"): "What is measured, below; or your own code.",
    ("Problem", "data"): "Of what, below; or your own code.",
    **{("ClusterProfile", key): f"`--{key}`" for key in ("partition", "account", "qos", "constraint")},
}
"""Fields without a text of their own, since their type says it all."""


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{_yaml(field.default)}`"
    if field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default_factory()
    return f"`{_yaml(value)}`" if isinstance(value, (Mapping, tuple)) else "see below"


def _yaml(value: Any) -> str:
    if isinstance(value, tuple):
        value = value[0] if len(value) == 1 else list(value)
    text = yaml.safe_dump(dict(value) if isinstance(value, Mapping) else value, default_flow_style=True, width=1000)
    return text.strip().removesuffix("...").strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
