"""What is said of a submission: each member's job when SLURM stops answering, and commands that find what was submitted."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from pathlib import Path

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from tests.cli.cli import TINY, Cli

SBATCH = """\
if [ ! -e "$0.used" ]; then touch "$0.used"; echo 'Submitted batch job 11'; exit 0; fi
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1
"""
SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
SCONTROL = "echo 'MaxArraySize = 1001'\n"


def commands(folder: Path, **scripts: str) -> str:
    """A PATH that begins with these commands."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_what_was_submitted_is_said_although_a_later_request_got_no_answer(tmp_path: Path) -> None:
    path = commands(tmp_path / "bin", sbatch=SBATCH, squeue=SILENT, scontrol=SCONTROL)
    cli = Cli(tmp_path, PATH=path, DPTRAIN_CLUSTER="generic-slurm")
    grid = TINY + "sweep: {resources.gpus: [1, 2, 4], algorithm.iterations: [1, 2]}\n"
    done = cli("sweep", cli.write("grid.yaml", grid), "--max-parallel", "2")
    assert done.code == 6 and "Traceback" not in done.err, done.err
    intents = {paths.run_id: read_intent(paths) for paths in find_runs(tmp_path / "runs")}
    assert Counter(intent.job_id is not None for intent in intents.values()) == {True: 2, False: 2}
    for run, intent in intents.items():
        said = f"job {intent.job_id}" if intent.job_id else f"not known whether it has a job (comment {intent.comment})"
        assert f"{run}: {said}" in done.err
    assert "of 6 members 2 have a job, 2 have none or may have one, 2 were not tried" in done.err
    assert "the same command again when SLURM answers" in done.err


def test_printed_commands_find_what_a_profile_has_put_elsewhere(tmp_path: Path) -> None:
    path = commands(tmp_path / "bin", sbatch="echo 'Submitted batch job 11'\n", squeue=SILENT, scontrol=SCONTROL)
    cli = Cli(tmp_path, PATH=path, DPTRAIN_CLUSTER="far")
    profiles = tmp_path / "config" / "dptrain" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "far.yaml").write_text(f"launcher: slurm\nruns: {tmp_path / 'far away'}\n")
    one = cli("infer", cli.write("one.yaml", TINY))
    many = cli("sweep", cli.write("many.yaml", TINY + "sweep: {algorithm.iterations: [3, 4]}\n"))
    assert not (tmp_path / "runs").exists() and len(find_runs(tmp_path / "far away")) == 3
    for done, count, tried in ((one, 1, 0), (many, 2, 1)):
        assert done.code == 0, done.err
        (printed,) = re.findall(r"dptrain (status .*?)    end: dptrain (cancel .*)", done.out)
        answer = cli(*shlex.split(printed[tried]))
        assert answer.code == 6 and (answer.out + answer.err).count("11") >= count, answer


def test_further_members_take_the_places_of_an_earlier_command(tmp_path: Path) -> None:
    sbatch = f'echo "$@" >> {tmp_path}/asked; echo "Submitted batch job $(wc -l < {tmp_path}/asked)"\n'
    path = commands(tmp_path / "bin", sbatch=sbatch, squeue=SILENT, scontrol=SCONTROL)
    cli = Cli(tmp_path, PATH=path, DPTRAIN_CLUSTER="generic-slurm")

    def submit(gpus: str, limit: int) -> list[list[str]]:
        grid = TINY + f"sweep: {{resources.gpus: {gpus}, algorithm.iterations: [1, 2]}}\n"
        done = cli("sweep", cli.write("grid.yaml", grid), "--max-parallel", limit)
        assert done.code == 0, done.err
        asked = (tmp_path / "asked").read_text().splitlines()
        return [re.findall(r"--dependency=(\S+)", line) for line in asked]

    assert submit("[1, 2]", 2) == [[], []]
    # The limit is used up: the third array has the places of the first two.
    assert submit("[1, 2, 4]", 2)[2:] == [["afterany:1:2"]]
