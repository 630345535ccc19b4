"""Fixtures around the small SLURM: one for the session, started when the first test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm_accounting import why_no_accounting
from tests.slurm_cluster import SmallSlurm, why_not

PROFILE = """\
launcher: slurm
partition: main
gpus_per_node: 2
gpu_request: gres
cpus_per_task: 1
env: {OMP_NUM_THREADS: "1"}
"""


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SmallSlurm]:
    """The running cluster; the environment of this process does not know it yet."""
    _need_slurm()
    with SmallSlurm() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def accounted_cluster() -> Iterator[SmallSlurm]:
    """A second one, whose jobs are known for ever; its packages are not among those that CI installs."""
    _need_slurm()
    if reason := why_no_accounting():
        pytest.skip(reason)
    with SmallSlurm(accounting=True) as cluster:
        yield cluster


def _need_slurm() -> None:
    if reason := why_not():
        if os.environ.get("DPTRAIN_REQUIRE_SLURM") == "1":
            pytest.fail(f"DPTRAIN_REQUIRE_SLURM=1, but {reason}")
        pytest.skip(reason)


@pytest.fixture
def slurm(slurm_cluster: SmallSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallSlurm:
    """The cluster, found through SLURM_CONF, with a profile `small` for it and run directories under `tmp_path`."""
    point_to(slurm_cluster, tmp_path, monkeypatch)
    return slurm_cluster


def point_to(cluster: SmallSlurm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process, and what it starts, use the cluster."""
    profiles = folder / "config" / "dptrain" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "small.yaml").write_text(PROFILE)
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("DPTRAIN_RUNS", str(folder / "runs"))
