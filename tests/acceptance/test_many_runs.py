"""Status over hundreds of runs: one call of the scheduler, and a table before anybody gets impatient."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.cli import Cli
from tests.launch.runs import tiny_run
from tests.slurm_cluster import SmallSlurm
from tests.status.helpers import WrittenRun

pytestmark = pytest.mark.slurm

COMPLETED, FAILED, QUEUED = 400, 50, 50
STEPS = 100


def counted(folder: Path) -> tuple[str, Path]:
    """A PATH with a squeue that notes its calls before it asks the real one."""
    folder.mkdir()
    calls, real = folder / "calls", shutil.which("squeue")
    (folder / "squeue").write_text(f'#!/bin/sh\necho call >> {calls}\nexec {real} "$@"\n')
    (folder / "squeue").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}", calls


def written(root: Path, like: Path, name: str, job_id: str) -> WrittenRun:
    """A run with the spec and plan of a real one."""
    run = WrittenRun(root, name, steps=STEPS, job_id=job_id)
    for file in ("spec.yaml", "plan.json", "environment.json"):
        shutil.copyfile(like / file, run.paths.dir / file)
    return run


def test_five_hundred_runs(slurm: SmallSlurm, tmp_path: Path) -> None:
    like = tiny_run("small", tmp_path)[0].dir
    root = tmp_path / "many"
    held = [
        slurm.command("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true").strip()
        for _ in range(QUEUED)
    ]
    for number in range(COMPLETED):
        written(root, like, f"done-{number}", job_id=str(100_000 + number)).finish()
    for number in range(FAILED):
        run = written(root, like, f"failed-{number}", job_id=str(200_000 + number))
        for rank in (0, 1):
            run.start(rank)
            for step in range(1, STEPS // 2):
                run.step(rank, step)
        run.fail(1)
        run.fail(0, secondary=True)
    for number, job_id in enumerate(held):
        written(root, like, f"queued-{number}", job_id=job_id)
    path, calls = counted(tmp_path / "bin")
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="small", DPTRAIN_RUNS=str(root), PATH=path)
    seconds, processor = [], []
    for words in (("status",), ("status",), ("status", "--json")):
        begin, used = time.perf_counter(), os.times()
        done = cli(*words)
        now = os.times()
        seconds.append(time.perf_counter() - begin)
        processor.append(now.children_user + now.children_system - used.children_user - used.children_system)
        assert done.code == 0, done.err
    assert len(calls.read_text().splitlines()) == len(seconds), "one call each"
    states = Counter(entry["state"] for entry in json.loads(done.out))
    assert states == {"completed": COMPLETED, "failed: exception": FAILED, "queued": QUEUED}
    print(
        f"{sum(states.values())} runs, {QUEUED} of them queued: 1 scheduler call; {min(seconds):.2f} s, of which "
        f"{min(processor):.2f} s on a processor; load of the machine {os.getloadavg()[0]:.1f}"
    )
    slurm.command("scancel", *held)
