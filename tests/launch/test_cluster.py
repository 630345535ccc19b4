"""Which profile is used, and the reason given for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.errors import SpecError, SubmissionRejected, UsageError
from dptrain.launch.cluster import choose_cluster, controller_answers
from dptrain.scheduler.submit import submit_script
from dptrain.spec.schema import Spec
from tests.slurm_cluster import SmallSlurm
from tests.slurm_fixtures import PROFILE


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the user's own profiles, and no SLURM."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "missing.conf"))
    monkeypatch.delenv("DPTRAIN_CLUSTER", raising=False)
    folder = tmp_path / "dptrain" / "clusters"
    folder.mkdir(parents=True)
    return folder


def test_the_order_of_the_names(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (own / f"{name}.yaml").write_text(PROFILE)
    spec = Spec(name="x", cluster="c")
    assert [c if isinstance(c, str) else c.name for c in choose_cluster(None, spec)] == ["c", "the spec names it"]
    monkeypatch.setenv("DPTRAIN_CLUSTER", "b")
    assert [c if isinstance(c, str) else c.name for c in choose_cluster(None, spec)] == [
        "b",
        "DPTRAIN_CLUSTER names it",
    ]
    assert [c if isinstance(c, str) else c.name for c in choose_cluster("a", spec)] == ["a", "--cluster names it"]


def test_without_a_controller_it_is_this_machine(own: Path) -> None:
    assert controller_answers() is not None
    profile, reason = choose_cluster(None, Spec(name="x"))
    assert (profile.name, profile.launcher) == ("local", "local")
    assert reason == "no SLURM on this machine"


def test_a_name_that_does_not_exist_is_an_error(own: Path) -> None:
    with pytest.raises(SpecError):
        choose_cluster("missing", Spec(name="x"))


@pytest.mark.slurm
def test_a_controller_that_answers_is_used(slurm: SmallSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPTRAIN_CLUSTER", raising=False)
    assert controller_answers() is None
    profile, reason = choose_cluster(None, Spec(name="x"))
    assert (profile.name, reason) == ("small", "a SLURM controller answers, and it is your only SLURM profile")


@pytest.mark.slurm
def test_of_several_own_profiles_none_is_guessed(
    own: Path, slurm_cluster: SmallSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    for name in ("a", "b"):
        (own / f"{name}.yaml").write_text(PROFILE)
    with pytest.raises(UsageError, match="several SLURM profiles of your own: a, b\n    write: --cluster a"):
        choose_cluster(None, Spec(name="x"))


@pytest.mark.slurm
def test_an_own_profile_counts_under_a_built_in_name(
    own: Path, slurm_cluster: SmallSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    assert choose_cluster(None, Spec(name="x"))[1] == "a SLURM controller answers"
    (own / "generic-slurm.yaml").write_text(PROFILE)
    profile, reason = choose_cluster(None, Spec(name="x"))
    assert (profile.partition, reason) == ("main", "a SLURM controller answers, and it is your only SLURM profile")


def test_a_silent_controller_is_not_called_absent(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sinfo"
    program.write_text("#!/bin/sh\necho 'slurm_load_partitions: Unable to contact slurm controller' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert choose_cluster(None, Spec(name="x"))[1] == "no SLURM controller answers"


def test_submitting_without_slurm_says_what_to_do(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF")  # a file that is missing is waited for
    with pytest.raises(SubmissionRejected, match="write: dptrain doctor"):
        submit_script(tmp_path / "x.sh", chdir=tmp_path, comment="none")
