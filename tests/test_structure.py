"""The order of the layers and the sizes of the modules, read from the source code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["errors", "spec", "records", "geometry", "scheduler", "engine", "plan", "launch", "status", "report", "cli"]
HEAVY = {
    "torch": {"engine"},
    "torchvision": {"engine"},
    "deepinv": {"engine"},
    "submitit": {"launch", "engine"},
    "typer": {"cli"},
}
"""Imported package -> the layers that may import it."""
MAX_LINES = 400


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module. `cli/` is walked by its real place: rglob follows no link on every Python."""
    for folder, name in ((ROOT / "dptrain", "dptrain"), (ROOT / "cli", "dptrain.cli")):
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).with_suffix("")
            if name == "dptrain" and inside.parts[0] == "cli":
                continue
            parts = [p for p in inside.parts if p != "__init__"]
            yield ".".join([name, *parts]), path


def imports(name: str, path: Path, top_level: bool = False) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of every import of a module, also those inside functions unless `top_level`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, source
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def layer(name: str) -> str | None:
    """`spec` of `dptrain.spec.load`; None for the package itself and for what is not ours."""
    parts = name.split(".")
    return parts[1] if parts[0] == "dptrain" and len(parts) > 1 and parts[1] in LAYERS else None


MODULES = list(modules())


def test_every_module_is_in_a_layer() -> None:
    assert len(MODULES) > 20
    assert {layer(name) for name, _ in MODULES} == {*LAYERS, None}
    assert [name for name, _ in MODULES if layer(name) is None] == ["dptrain"]


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[n for n, _ in MODULES])
def test_imports_only_earlier_layers(name: str, path: Path) -> None:
    own = layer(name)
    allowed = LAYERS[: LAYERS.index(own) + 1] if own else []
    for line, target in imports(name, path):
        where = f"{path.relative_to(ROOT)}:{line}: {name} imports {target}"
        if (other := layer(target)) is not None:
            assert other in allowed, f"{where}; order: {' < '.join(LAYERS)}"
        if (package := target.split(".")[0]) in HEAVY:
            assert own in HEAVY[package], f"{where}; only {sorted(HEAVY[package])} may"


def test_the_reader_of_imports_sees_every_form(tmp_path: Path) -> None:
    source = "import torch.nn as nn\nfrom dptrain.plan import plan\n"
    source += "def f():\n    from ..engine import worker\n    from . import x\n"
    path = tmp_path / "load.py"
    path.write_text(source)
    found = [target for _, target in imports("dptrain.spec.load", path)]
    assert {"torch.nn", "dptrain.plan.plan", "dptrain.engine.worker", "dptrain.spec.x"} <= set(found)
    assert "dptrain.engine.worker" not in [t for _, t in imports("dptrain.spec.load", path, top_level=True)]


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[n for n, _ in MODULES])
def test_light_layers_load_nothing_heavy(name: str, path: Path) -> None:
    """What `dptrain --help` and `dptrain status` load must start fast: no numpy, submitit or matplotlib at import time."""
    if layer(name) == "engine":
        return
    slow = {"numpy", "submitit", "matplotlib", "scipy", "PIL", "tifffile", "safetensors", "pandas"}
    found = {t.split(".")[0] for _, t in imports(name, path, top_level=True)} & slow
    assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)} at the top: import it where it is used"


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[n for n, _ in MODULES])
def test_module_reads_well(name: str, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    if path.name != "__init__.py" or tree.body:
        assert ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no docstring"
    assert text.count("\n") <= MAX_LINES, f"{path.relative_to(ROOT)} has more than {MAX_LINES} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and (
            node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
        ):
            silent = all(isinstance(s, ast.Pass | ast.Continue) for s in node.body)
            assert not silent, f"{path.relative_to(ROOT)}:{node.lineno}: swallows every exception"
