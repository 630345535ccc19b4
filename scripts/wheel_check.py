"""Build the wheel and refuse one that would not work where it is installed (`make wheel-check`).

The wheel is built from a copy of the sources, since a `build/` folder left in the checkout would put removed files into it.
Then it is installed beside nothing else and every module of it is imported from there. Costs about 20 s, most of it torch.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"dptrain": "dptrain", "cli": "dptrain/cli", "templates": "dptrain/templates"}
"""Folder of the checkout -> folder of the wheel."""
REQUIRED = ("dptrain/cli/main.py", "dptrain/py.typed", "dptrain/templates/*.yaml", "dptrain/templates/clusters/*.yaml")
REQUIRED_WEIGHTS = ("dptrain/templates/weights/*.safetensors",)
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")

IMPORT_ALL = """
import importlib, pkgutil, sys
from importlib.metadata import distribution
target = sys.argv[1]
dist = distribution("dptrain")
assert str(dist.locate_file("")).startswith(target), f"not the installed wheel: {dist.locate_file('')}"
(script,) = [e for e in dist.entry_points if e.group == "console_scripts"]
assert script.name == "dptrain" and callable(script.load()), script
import dptrain
names = [m.name for m in pkgutil.walk_packages(dptrain.__path__, "dptrain.")]
for name in names:
    assert str(importlib.import_module(name).__file__).startswith(target), name
print(f"imported {len(names)} modules of the installed wheel")
"""


def expected_files(root: Path) -> set[str]:
    """Names that the wheel must hold: every file of the source folders, without caches and the link `dptrain/cli`."""
    found = set()
    for source, target in SOURCES.items():
        for path in sorted((root / source).rglob("*")):
            inside = path.relative_to(root / source)
            linked = source == "dptrain" and inside.parts[0] == "cli"
            if path.is_file() and not linked and "__pycache__" not in inside.parts:
                found.add(f"{target}/{inside.as_posix()}")
    return found


def problems(names: Iterable[str], expected: set[str]) -> list[str]:
    """What is wrong with a wheel of these names; an empty list for a good one."""
    files = {n for n in names if ".dist-info/" not in n and not n.endswith("/")}
    found = [
        f"a top-level name other than dptrain: {top}" for top in sorted({f.split("/")[0] for f in files} - {"dptrain"})
    ]
    for pattern in REQUIRED + REQUIRED_WEIGHTS:
        if not any(Path(f).match(pattern) and f.count("/") == pattern.count("/") for f in files):
            found.append(f"nothing matches {pattern}")
    found += [f"in the checkout and not in the wheel: {name}" for name in sorted(expected - files)]
    found += [f"in the wheel and not in the checkout: {name}" for name in sorted(files - expected)]
    return found


def build_wheel(folder: Path) -> Path:
    """Build from a copy of the sources and return the wheel."""
    copy = folder / "source"
    copy.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=IGNORED)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the wheel does not build:\n{done.stdout}{done.stderr}")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def import_installed(wheel: Path, folder: Path) -> None:
    """Install the wheel alone into a folder and import all of it from there, not from the checkout."""
    target = folder / "installed"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*install, "--target", str(target), str(wheel)], check=True)
    code = f"import sys; sys.path.insert(0, {str(target)!r})\n{IMPORT_ALL}"
    done = subprocess.run([sys.executable, "-I", "-c", code, str(target)], check=False, cwd=folder)
    if done.returncode != 0:
        raise SystemExit(f"{wheel.name}: a module of the installed wheel does not import (above)")


def main() -> None:
    """Build, look into it, install it, import it; exits 1 with every problem found."""
    with tempfile.TemporaryDirectory(prefix="dptrain-wheel-") as name:
        wheel = build_wheel(Path(name))
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        if found := problems(names, expected_files(ROOT)):
            raise SystemExit(f"{wheel.name}:\n" + "\n".join(f"  {p}" for p in found))
        import_installed(wheel, Path(name).resolve())
        print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB, top-level name dptrain only")


if __name__ == "__main__":
    main()
