"""The mark of a factory changes with the code that it can import and with the files that it is given, and with nothing else."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dptrain.plan import forecast as forecasts
from dptrain.plan import receptive, user_code
from dptrain.plan.forecast import Request
from dptrain.plan.receptive import known
from dptrain.plan.user_code import TooMuch, factory_mark
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Factory, Spec
from tests.local_runs import TINY


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "arg.py", "beside.py", "pkg/__init__.py", "pkg/inner.py", "pkg/sub/__init__.py", "pkg/sub/deep.py", "nsp/inner.py",
        "nsp/other.py", "runs/a-2026/code.py", ".venv/lib/x.py",
    ):  # fmt: skip
        file = tmp_path / "spec" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("width = 4\n")
    (tmp_path / "spec" / "width.txt").write_text("4")
    (tmp_path / "spec" / "data").mkdir()
    (tmp_path / "spec" / "data" / "one.bin").write_bytes(b"1")
    monkeypatch.chdir(tmp_path / "spec")
    return tmp_path / "spec"


def factory(folder: Path, name: str, **arguments: Any) -> Factory:
    return Factory(factory=name, arguments=arguments, search_path=str(folder))


def edit(path: Path) -> None:
    path.write_text("width = 8\n")


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 2**21)


@pytest.mark.parametrize("name", ["arg:build", "pkg.inner:build", "pkg.sub.deep:build", "nsp.inner:build"])
@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("arg.py", edit),
        ("beside.py", edit),
        ("new.py", edit),
        ("beside.py", Path.unlink),
        ("pkg/__init__.py", edit),
        ("pkg/inner.py", edit),
        ("pkg/sub/deep.py", edit),
        ("nsp/inner.py", edit),
        ("nsp/other.py", edit),
        ("width.txt", edit),
        ("width.txt", grow),
        ("data/one.bin", grow),
        ("data/two.bin", edit),
    ],
)
def test_every_key_follows_code_and_files(name: str, file: str, change: Callable[[Path], object], folder: Path) -> None:
    given = factory(folder, name, file="width.txt", nested={"list": ["absent.txt", "", "data", "x" * 5000, "a\0"]})
    base = parse_spec(TINY, "tiny.yaml", folder).spec
    of_denoiser = replace(base, denoiser=given)
    of_physics = replace(base, problem=replace(base.problem, physics=given))

    def keys() -> list[str | None]:
        return [receptive._key(of_denoiser), key(of_denoiser), key(of_physics)]

    before = keys()
    assert None not in before and keys() == before
    change(folder / file)
    assert all(now not in (None, was) for now, was in zip(keys(), before, strict=True))


def key(spec: Spec) -> str | None:
    return forecasts._key(Request(spec=spec, task="train", max_batch_size=1, checkpoint="always"))


def test_runs_and_environments_beside_do_not_count(folder: Path) -> None:
    before = factory_mark(factory(folder, "arg:build"))
    for name in ("runs/a-2026/code.py", ".venv/lib/x.py", "width.txt", "data/one.bin"):
        edit(folder / name)
    (folder / "pkg" / "back").symlink_to(folder)
    os.utime(folder / "beside.py", (0, 0))
    assert factory_mark(factory(folder, "arg:build")) == before


@pytest.mark.parametrize(("name", "most"), [("MOST_FILES", 3), ("MOST_BYTES", 20)])
def test_too_much_is_not_read_and_not_kept(name: str, most: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, name, most)
    monkeypatch.setattr(receptive, "_measured", {})
    with pytest.raises(TooMuch):
        factory_mark(factory(folder, "arg:build"))
    spec = replace(parse_spec(TINY, "tiny.yaml", folder).spec, denoiser=factory(folder, "arg:build"))
    assert key(spec) is None and receptive._key(spec) is None and known(spec) is None


def test_what_was_measured_serves_this_process_where_nothing_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(receptive, "_measured", {})
    monkeypatch.setattr(user_code, "MOST_FILES", 0)
    engine = tmp_path / "python"
    engine.write_text(f"#!/bin/sh\necho '{json.dumps(asdict(replace(receptive.IDENTITY, radius=7)))}'\n")
    engine.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(engine))
    spec = replace(parse_spec(TINY, "tiny.yaml", folder).spec, denoiser=factory(folder, "arg:build"))
    answer = receptive.measure(spec)
    assert answer.radius == 7 and known(spec) == answer
    assert not (tmp_path / "cache").exists()


def test_code_that_is_not_there(folder: Path) -> None:
    for name in ("nowhere:build", "sys:exit"):
        with pytest.raises(OSError, match=r"."):
            factory_mark(factory(folder, name))
