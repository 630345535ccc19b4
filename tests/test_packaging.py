"""What is packaged equals the tree; what is tracked names nothing outside the repository; what the README says exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import dptrain
import dptrain.cli

ROOT = Path(__file__).resolve().parent.parent
TREES = ["dptrain", "cli", "templates", "tests", "docs", "benchmarks", "scripts", ".ci"]
TEXT = {".py", ".md", ".yaml", ".toml", ".json", ".sh", ".txt", ".csv", ""}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked_texts() -> Iterator[Path]:
    """Every text file of the repository but this one, which has to name what it forbids; no git needed."""
    for tree in (ROOT / name for name in TREES):
        yield from (
            p for p in sorted(tree.rglob("*")) if p.is_file() and p.suffix in TEXT and p != Path(__file__).resolve()
        )
    yield from (p for p in sorted(ROOT.iterdir()) if p.is_file() and p.suffix in TEXT)


@pytest.fixture(scope="module")
def wheel_check() -> ModuleType:
    """scripts/wheel_check.py as a module: scripts are run, not installed."""
    spec = importlib.util.spec_from_file_location("wheel_check", ROOT / "scripts" / "wheel_check.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_package_list_equals_the_tree() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    found = {"dptrain.templates"}
    for folder, name in ((ROOT / "dptrain", "dptrain"), (ROOT / "cli", "dptrain.cli")):
        for path in folder.rglob("*.py"):
            inside = path.relative_to(folder).parent
            if name != "dptrain" or inside.parts[:1] != ("cli",):
                found.add(".".join([name, *inside.parts]))
                assert (path.parent / "__init__.py").is_file(), f"{path.parent} holds modules and is no package"
    assert sorted(listed) == sorted(found)
    assert len(listed) == len(set(listed))


def test_every_folder_of_tests_is_a_package() -> None:
    """Two tests of one name in two folders would otherwise be one module to pytest and mypy."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert not [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").is_file()]


def test_cli_link_points_to_the_real_folder() -> None:
    link = ROOT / "dptrain" / "cli"
    assert link.is_symlink() and link.readlink() == Path("../cli")
    assert dptrain.cli.__name__ == "dptrain.cli"


def test_cli_refuses_the_wrong_name() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "import dptrain.cli" in done.stderr


def test_version_is_said_once() -> None:
    assert PROJECT["project"]["version"] == dptrain.__version__
    assert f"## [{dptrain.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_good_wheel_passes_and_bad_ones_are_named(wheel_check: ModuleType) -> None:
    good = {
        "dptrain/__init__.py",
        "dptrain/py.typed",
        "dptrain/cli/main.py",
        "dptrain/templates/demo.yaml",
        "dptrain/templates/clusters/local.yaml",
        "dptrain/templates/weights/a.safetensors",
    }
    metadata = {"dptrain-0.1.0.dist-info/METADATA"}
    assert wheel_check.problems(good | metadata, good) == []
    assert wheel_check.problems(good | {"cli/main.py"}, good)[0] == "a top-level name other than dptrain: cli"
    for name in sorted(good - {"dptrain/__init__.py"}):
        missing = wheel_check.problems(good - {name}, good)
        assert any("nothing matches" in p for p in missing)
        assert f"in the checkout and not in the wheel: {name}" in missing
    assert wheel_check.problems(good | {"dptrain/old.py"}, good) == [
        "in the wheel and not in the checkout: dptrain/old.py"
    ]


def test_expected_files_are_the_checkout(wheel_check: ModuleType) -> None:
    expected = wheel_check.expected_files(ROOT)
    assert {
        "dptrain/errors.py",
        "dptrain/cli/__init__.py",
        "dptrain/templates/__init__.py",
        "dptrain/py.typed",
    } <= expected
    assert not [n for n in expected if "__pycache__" in n or n.endswith(".pyc")]


OUTSIDE = [
    (r"(?<![\w$}])/(work|root|home)/\w", "a path of one machine"),
    (r"\.\./shared|shared/design", "a file outside the repository"),
    (r"index-url|find-links|https?://[\w.]*(pypi|pythonhosted)\.", "a package registry"),
]


@pytest.mark.parametrize(("pattern", "what"), OUTSIDE, ids=[w for _, w in OUTSIDE])
def test_nothing_outside_the_repository_is_named(pattern: str, what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


def test_readme_names_only_targets_commands_and_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    help_text = subprocess.run(
        [sys.executable, "-c", "from dptrain.cli.main import app; app()", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    commands = set(re.findall(r"^(?:\$ )?dptrain ([a-z]+)", text, flags=re.M))
    assert commands and not [c for c in commands if not re.search(rf"\b{c}\b", help_text)]
    for path in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.relative_to(ROOT)} links to {link}, which does not exist"


def test_ci_runs_what_make_ci_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    text = script.read_text(encoding="utf-8")
    assert text.rstrip().endswith("exec make ci") and "export DPTRAIN_REQUIRE_SLURM=1" in text
    plan = subprocess.run(["make", "-n", "ci"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    steps = re.findall(r"ruff check|ruff format|mypy|wheel_check|pytest", plan)
    assert steps == ["ruff check", "ruff format", "mypy", "wheel_check", "pytest"]
