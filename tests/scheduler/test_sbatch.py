"""The batch script, byte for byte, and what must never reach it."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dptrain.errors import UsageError
from dptrain.scheduler.requests import ArrayRequest, JobRequest, nodes_and_tasks
from dptrain.scheduler.sbatch import EXTRA_KEYS, JOB_BEGAN, JOB_BEGINS, RANKS_START, sbatch_script, setup_failure
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.profiles import load_profile

GOLDEN = Path(__file__).parent / "golden"
PLAIN = ClusterProfile(name="plain", python="/opt/python/bin/python", gpu_request="none")
REQUEST = JobRequest(name="demo", nodes=2, tasks_per_node=2, world_size=4, time_min=30, signal_lead_s=90)
EVERYTHING = ClusterProfile(
    name="everything",
    partition="gpu",
    account="abc@v100",
    qos="normal",
    constraint="a100&nvlink",
    gpus_per_node=4,
    gpu_request="gpus-per-node",
    mem_per_cpu_gib=1.5,
    cpus_per_task=8,
    setup=("module purge", "module load 'cuda/12'", 'source "$HOME/env/bin/activate"'),
    env={"OMP_NUM_THREADS": "4", "MESSAGE": "two words, $HOME and 'quotes'"},
    command_prefix=("apptainer", "exec", "my image.sif"),
    python="/opt/python/bin/python",
    extra_sbatch={"exclusive": "", "mail-type": "END,FAIL", "reservation": "two words"},
    interface="ib0",
)
CASES: dict[str, tuple[ClusterProfile, JobRequest]] = {
    "plain": (PLAIN, REQUEST),
    "everything": (EVERYTHING, REQUEST),
    "whole-node": (replace(PLAIN, mem_per_node_gib=0.0, gpu_request="gres"), REQUEST),
    "array": (PLAIN, replace(REQUEST, array=ArrayRequest(count=5, max_parallel=2))),
    "array-without-limit": (PLAIN, replace(REQUEST, array=ArrayRequest(count=5))),
    "resubmit": (replace(PLAIN, restart="resubmit"), REQUEST),
    "jean-zay": (replace(load_profile("jean-zay"), python="/opt/python/bin/python"), REQUEST),
}


@pytest.mark.parametrize("name", CASES)
def test_script_is_the_golden_one(name: str) -> None:
    assert sbatch_script(*CASES[name]) == (GOLDEN / f"{name}.sh").read_text(encoding="utf-8")


def test_every_golden_file_is_compared() -> None:
    assert {p.stem for p in GOLDEN.glob("*.sh")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_bash_can_read_the_script(name: str) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=sbatch_script(*CASES[name]), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def run_body(tmp_path: Path, profile: ClusterProfile) -> subprocess.CompletedProcess[str]:
    """Run the script in bash, with an srun that prints its own environment in place of SLURM's."""
    fake = tmp_path / "srun"
    fake.write_text('#!/bin/sh\necho "srun $*"\nenv\n')
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RANK": "0", "WORLD_SIZE": "1", "HOME": "/nowhere"}
    script = sbatch_script(profile, REQUEST)
    return subprocess.run(["bash"], input=script, capture_output=True, text=True, env=env, check=False)


def test_a_failing_setup_line_ends_the_job_and_is_quoted(tmp_path: Path) -> None:
    lines = ("export A=1", 'test $A = 2 # it\'s "1"', "touch never")
    done = run_body(tmp_path, replace(PLAIN, setup=lines))
    assert done.returncode == 1
    assert "srun" not in done.stdout
    assert setup_failure(done.stderr) == (1, lines[1])


@pytest.mark.parametrize("line", ["cd /missing; echo went on", "exit 3", "source /missing/activate", "no-such-command"])
def test_every_kind_of_failing_setup_line_is_noticed(tmp_path: Path, line: str) -> None:
    done = run_body(tmp_path, replace(PLAIN, setup=(line,)))
    assert done.returncode != 0
    assert "went on" not in done.stdout
    found = setup_failure(done.stderr)
    assert found is not None and found == (done.returncode, line)


@pytest.mark.parametrize("line", ["exit 0", "true && exit"])
def test_a_setup_line_that_leaves_the_script_starts_no_rank(tmp_path: Path, line: str) -> None:
    done = run_body(tmp_path, replace(PLAIN, setup=(line, "touch never")))
    assert "srun" not in done.stdout
    assert done.returncode == 1
    assert setup_failure(done.stderr) == (0, line)


def test_setup_lines_may_use_unset_variables_and_failing_conditions(tmp_path: Path) -> None:
    done = run_body(tmp_path, replace(PLAIN, setup=('if [ -n "$UNSET" ]; then false; fi', "false || true")))
    assert done.returncode == 0
    assert setup_failure(done.stderr) is None


def test_ranks_get_threads_interface_and_no_identity(tmp_path: Path) -> None:
    done = run_body(tmp_path, replace(PLAIN, cpus_per_task=3, interface="ib0", env={"A": "x y"}))
    variables = dict(
        line.split("=", 1) for line in done.stdout.splitlines() if "=" in line and not line.startswith("srun")
    )
    assert variables["OMP_NUM_THREADS"] == variables["SRUN_CPUS_PER_TASK"] == "3"
    assert variables["GLOO_SOCKET_IFNAME"] == "ib0"
    assert variables["A"] == "x y"
    assert "RANK" not in variables and "WORLD_SIZE" not in variables


@pytest.mark.parametrize("setup", [(), ("date() { echo 0; }", "echo warming up >&2")])
def test_the_script_tells_when_it_began_and_when_its_setup_is_over(tmp_path: Path, setup: tuple[str, ...]) -> None:
    done = run_body(tmp_path, replace(PLAIN, setup=setup))
    assert done.stderr.splitlines() == [JOB_BEGINS, *(["warming up"] if setup else []), RANKS_START]
    (began,) = [line for line in done.stdout.splitlines() if line.startswith(f"{JOB_BEGAN}=")]
    assert abs(time.time() - int(began.partition("=")[2])) < 60


def test_setup_failure_reads_the_newest() -> None:
    assert setup_failure("") is None
    log = (
        "dptrain: setup line failed with exit code 1: old\nother\ndptrain: setup line failed with exit code 127: a: b\n"
    )
    assert setup_failure(log) == (127, "a: b")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partition": "gpu\nrm -rf /"}, "control character"),
        ({"account": "a'b"}, "quote"),
        ({"constraint": "a\\b"}, "backslash"),
        ({"setup": ("a\nb",)}, "control character"),
        ({"env": {"A B": "1"}}, "not the name of a variable"),
        ({"env": {"A": "1\n2"}}, "control character"),
        ({"env": {"RANK": "0"}}, "set by the scheduler"),
        ({"env": {"SLURM_PROCID": "0"}}, "set by the scheduler"),
        ({"interface": "^docker0"}, "not the name of one interface"),
        ({"interface": "eth0,eth1"}, "not the name of one interface"),
        ({"command_prefix": ("a\nb",)}, "control character"),
        ({"python": "a\nb"}, "control character"),
        ({"extra_sbatch": {"reservaton": "x"}}, "write: reservation"),
        ({"extra_sbatch": {"partition": "x"}}, "write: partition"),
        ({"extra_sbatch": {"wrap": "x"}}, "not a key that may be passed on"),
        ({"extra_sbatch": {"reservation": "a\x1bb"}}, "control character"),
        ({"mem_per_cpu_gib": 1.0, "mem_per_node_gib": 2.0}, "contradict"),
    ],
)
def test_what_must_not_reach_the_script_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match="profile plain") as error:
        sbatch_script(replace(PLAIN, **changes), REQUEST)
    assert words in str(error.value)


def test_no_allowed_key_runs_code_or_moves_output() -> None:
    assert not EXTRA_KEYS & {
        "wrap",
        "prolog",
        "export",
        "export-file",
        "output",
        "error",
        "chdir",
        "array",
        "parsable",
        "clusters",
    }


@pytest.mark.parametrize(
    ("ranks", "per_node", "expected"),
    [(1, 4, (1, 1)), (3, 4, (1, 3)), (4, 4, (1, 4)), (6, 4, (2, 3)), (8, 4, (2, 4)), (9, 4, (3, 3)), (5, 1, (5, 1))],
)
def test_ranks_are_dealt_evenly_over_the_fewest_nodes(ranks: int, per_node: int, expected: tuple[int, int]) -> None:
    assert nodes_and_tasks(ranks, ClusterProfile(name="p", gpus_per_node=per_node)) == expected


@pytest.mark.parametrize(("ranks", "per_node", "near"), [(5, 4, "4 and 6"), (7, 4, "6 and 8"), (11, 4, "9 and 12")])
def test_ranks_that_do_not_divide_are_refused_with_both_numbers(ranks: int, per_node: int, near: str) -> None:
    with pytest.raises(ValueError, match=f"{ranks} ranks do not divide evenly over .* nodes of {per_node}.* {near}"):
        nodes_and_tasks(ranks, ClusterProfile(name="p", gpus_per_node=per_node))


def test_a_request_whose_numbers_contradict_is_refused() -> None:
    with pytest.raises(ValueError, match="2 nodes x 2 tasks per node = 4, but the world size is 5"):
        replace(REQUEST, world_size=5)
