"""Ranks that are not the same program are said so."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dptrain.spec.profiles import load_profile
from dptrain.status.state import run_status
from dptrain.status.versions import ranges
from dptrain.status.why import explain
from tests.local_runs import events, finish, running
from tests.status.helpers import WrittenRun

SAME = {"python": "3.11.2", "torch": "2.14.1", "deepinv": "0.5.0", "dptrain": "0.1.0"}


def started(run: WrittenRun, rank: int, host: str, python: str = "/opt/python", **other: str) -> None:
    run.event(rank, "start", rank=rank, host=host, pid=1, python=python, versions={**SAME, **other})


def test_what_differs_is_named_with_ranks_and_hosts(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, world_size=4, launcher="local")
    for rank, host in ((0, "n1"), (1, "n1"), (2, "n2")):
        started(run, rank, host)
    assert run_status([run.paths])[0].warnings == ()
    started(run, 3, "n2", python="/usr/bin/python3", torch="2.9.0")
    (status,) = run_status([run.paths])
    assert status.warnings == (
        "the ranks do not have the same interpreter: /opt/python on ranks 0-2 (n1, n2); /usr/bin/python3 on rank 3 (n2)",
        "the ranks do not have the same torch: 2.14.1 on ranks 0-2 (n1, n2); 2.9.0 on rank 3 (n2)",
    )
    assert set(status.warnings) <= set(explain(run.paths, status).notes)
    assert status.to_json(ranks=True)["ranks"][3]["versions"]["torch"] == "2.9.0"


def test_records_of_another_form_are_no_mismatch(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path, launcher="local")
    run.event(0, "start", rank=0, versions=["torch"], python=3)
    started(run, 1, "n1")
    assert run_status([run.paths])[0].warnings == ()


def test_ranges() -> None:
    assert [ranges(numbers) for numbers in ([3], [0, 1, 2, 5], [4, 1, 0])] == ["3", "0-2, 5", "0-1, 4"]


def test_a_rank_that_imports_another_version_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run: rank 1 finds another deepinv first, as on a node with an environment of its own."""
    other = tmp_path / "other" / "deepinv-0.5.99.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: deepinv\nVersion: 0.5.99\n")
    (tmp_path / "site" / "sitecustomize.py").parent.mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        f"import os, sys\nif os.environ.get('RANK') == '1':\n    sys.path.insert(0, {str(tmp_path / 'other')!r})\n"
    )
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    assert load_profile("local").python is None
    with running("infer", "denoiser={name: identity}", "algorithm.iterations=1") as run:
        assert finish(run) == 0
    starts = [events(run, rank, "start")[0] for rank in (0, 1)]
    assert [e["versions"]["deepinv"] for e in starts] == [version("deepinv"), "0.5.99"]
    assert {e["python"] for e in starts} == {sys.executable}
    files = list(run.attempt(1).dir.iterdir())
    assert len(files) <= 10 + 2 * 2, "more files of an attempt would use up a quota of inodes"
    (status,) = run_status([run])
    assert status.state == "completed"
    (warning,) = status.warnings
    assert warning.startswith("the ranks do not have the same deepinv:") and "0.5.99 on rank 1" in warning
