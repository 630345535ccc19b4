"""Experiment files on the command line: the spec that is written, the members that are listed."""

from __future__ import annotations

import json

import pytest

from dptrain.spec.load import load_spec
from tests.cli.cli import Cli
from tests.spec.benchopt.files import PARALLEL, SCALING

QUICK = ("--set", "denoiser.weights=random", "--set", "algorithm.step_size=auto")


def test_init_writes_the_spec_and_the_profile_once(cli: Cli) -> None:
    experiment, parallel = cli.write("exp.yml", SCALING), cli.write("par.yml", PARALLEL)
    words = ("init", "--from-benchopt", experiment, "--parallel-config", parallel)
    done = cli(*words)
    assert done.code == 0, done.err
    spec = load_spec(cli.folder / "exp.yaml").spec
    assert (spec.name, spec.cluster) == ("exp", "par") and len(spec.sweep) == 2
    assert "not mapped: solver.profiler_active: 0" in done.err
    assert "not mapped: solver.profiler_active: 0" in (cli.folder / "exp.yaml").read_text()
    profile = cli.folder / "config" / "dptrain" / "clusters" / "par.yaml"
    assert "cpus_per_task: 6" in profile.read_text()
    assert cli(*words).code == 2, "the spec exists"
    assert cli("init", "again", *words[1:]).code == 0, "the profile says the same"
    profile.write_text("launcher: slurm\n")
    other = cli("init", "third", *words[1:])
    assert other.code == 2 and "--cluster par" in other.err


def test_a_dry_run_lists_members_and_what_is_not_mapped(cli: Cli) -> None:
    experiment = cli.write("exp.yml", SCALING)
    done = cli("sweep", "--from-benchopt", experiment, "--dry-run", "--json", *QUICK)
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert [m["ranks"] for m in answer["members"]] == [1, 2, 4, 2, 4] * 2
    assert [u["key"] for u in answer["unmapped"]] == ["objective.save_output_figures", "plot", "solver.profiler_active"]
    assert all(u["where"].startswith(f"{experiment}:") and u["reason"] for u in answer["unmapped"])
    assert not (cli.folder / "runs").exists()


def test_a_dry_run_says_which_profile_it_would_write(cli: Cli) -> None:
    experiment, parallel = cli.write("exp.yml", SCALING), cli.write("par.yml", PARALLEL)
    anywhere = Cli(cli.folder, DPTRAIN_CLUSTER="")
    before = sorted(cli.folder.rglob("*"))
    done = anywhere("sweep", "--from-benchopt", experiment, "--parallel-config", parallel, "--dry-run", *QUICK)
    assert done.code == 0, done.err
    profile = cli.folder / "config" / "dptrain" / "clusters" / "par.yaml"
    assert f"would write the cluster profile {profile}:" in done.err and "    cpus_per_task: 6" in done.err
    assert "cluster par: " in done.err and done.out.count("to run") == 10
    assert sorted(cli.folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sweep",), "which sweep?"),
        (("sweep", "a.yaml", "--from-benchopt", "b.yml"), "which of the two?"),
        (("sweep", "a.yaml", "--parallel-config", "b.yml"), "--parallel-config goes with --from-benchopt"),
        (("sweep", "--parallel-config", "b.yml"), "--parallel-config goes with --from-benchopt"),
        (("init", "a", "--parallel-config", "b.yml"), "--parallel-config goes with --from-benchopt"),
    ],
)
def test_words_that_do_not_go_together(cli: Cli, words: tuple[str, ...], said: str) -> None:
    done = cli(*words)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err
