"""Sweeps of many members on the small SLURM: one array per shape, the limit over all of them, a killed client, members that fail."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from dptrain.records.events import read_events
from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.status.state import run_status
from tests.cli.cli import TINY, Cli
from tests.slurm_cluster import SmallSlurm
from tests.slurm_fixtures import PROFILE

GRID = (
    TINY
    + "sweep: {problem.image_size: [[32, 32], [48, 48], [64, 64]], resources.gpus: [1, 2, 4, 8], "
    + "resources.layout: [replicated, sharded]}\n"
)
COUNTED = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")


def counting(folder: Path) -> tuple[Path, Path]:
    """(a folder with SLURM's commands that note each call, the notes)."""
    tools, notes = folder / "tools", folder / "calls.txt"
    tools.mkdir()
    notes.touch()
    for name in COUNTED:
        real = shutil.which(name)
        assert real is not None
        (tools / name).write_text(f'#!/bin/sh\necho {name} >> {notes}\nexec {real} "$@"\n')
        (tools / name).chmod(0o755)
    return tools, notes


def calls(notes: Path) -> Counter[str]:
    return Counter(notes.read_text().split())


def most_at_once(runs: list[RunPaths]) -> int:
    """The largest number of runs between the first word and the last of any of their ranks."""
    changes = []
    for paths in runs:
        events = [e for rank in paths.attempt(1).ranks() for e in read_events(paths.attempt(1).rank_events(rank))]
        times = [float(e["t"]) for e in events]
        changes += [(min(times), 1), (max(times), -1)]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


@pytest.mark.slurm
@pytest.mark.timeout(1800)
def test_a_client_killed_while_it_submits_is_completed_by_the_same_command(slurm: SmallSlurm, tmp_path: Path) -> None:
    tools, notes = counting(tmp_path)
    path = f"{tools}:{os.environ['PATH']}"
    cli = Cli(tmp_path, SLURM_CONF=os.environ["SLURM_CONF"], DPTRAIN_CLUSTER="small", PATH=path)
    spec = cli.write("many.yaml", GRID)
    words = ("sweep", spec, "--max-parallel", "4", "--wait")
    began = time.monotonic()
    first = cli.start(*words)
    while calls(notes)["sbatch"] < 2:  # the second array's call has begun: nobody will write down its answer
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    first.kill()
    first.communicate()
    made = len(find_runs(cli.folder / "runs"))
    second = cli(*words, timeout_s=1500)
    took_s = time.monotonic() - began
    print(second.err.splitlines()[1:3], second.out)
    assert second.code == 0, second.err
    runs = find_runs(cli.folder / "runs")
    intents = [read_intent(paths) for paths in runs]
    jobs = Counter(str(intent.job_id).split("_")[0] for intent in intents)
    at_once = most_at_once(runs)
    print(f"{made} runs made before the kill, {len(runs)} in the end; arrays and their members: {dict(jobs)}")
    print(f"scheduler calls in {took_s:.0f} s: {dict(calls(notes))}; most runs at once: {at_once}")
    assert 0 < made < 24 == len(runs)
    assert {status.state for status in run_status(runs)} == {"completed"}
    assert set(Counter(intent.fingerprint for intent in intents).values()) == {1}
    assert sorted(jobs.values()) == [6, 6, 6, 6], "one array per number of ranks"
    assert calls(notes)["sbatch"] == 4 and at_once <= 4
    # One look before and after, one for the lost jobs, one per array for its limits, and a poll every ten seconds.
    others = sum(calls(notes).values()) - 4
    assert others <= took_s / 10 + 12
    looked = cli("status", "tiny", "--json")
    assert looked.code == 0 and len(json.loads(looked.out)) == 24


BROKEN = """\
import torch


class Same(torch.nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.broken = broken

    def forward(self, x, sigma=None):
        if self.broken:
            raise RuntimeError("this member is broken")
        return x


def build(broken=False, **_):
    return Same(broken)
"""


@pytest.mark.parametrize("cluster", ["local", pytest.param("small", marks=pytest.mark.slurm)])
def test_one_that_fails_and_one_that_cannot_fit_harm_no_other(
    cluster: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    env = {}
    if cluster == "small":
        request.getfixturevalue("slurm")
        env = {"SLURM_CONF": os.environ["SLURM_CONF"]}
    profiles = tmp_path / "config" / "dptrain" / "clusters"
    profiles.mkdir(parents=True, exist_ok=True)
    base = PROFILE if cluster == "small" else "launcher: local\n"
    (profiles / "card.yaml").write_text(base + "gpu_memory_gib: 0.25\n")
    (tmp_path / "broken.py").write_text(BROKEN)
    cli = Cli(tmp_path, DPTRAIN_CLUSTER="card", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", **env)
    members = "[[64, 64], false], [[64, 64], true], [[4096, 4096], false], [[48, 48], false]"
    spec = cli.write(
        "mixed.yaml",
        "name: mixed\n"
        "problem: {image_size: [64, 64], physics: {name: denoise, noise_std: 0.1}, data: {source: synthetic}}\n"
        'denoiser: {factory: "broken:build", broken: false}\n'
        "algorithm: {iterations: 2}\nresources: {gpus: 1}\ntiling: {patch: 1024, halo: 16, max_batch_size: 1}\n"
        f'sweep: {{"problem.image_size, denoiser.broken": [{members}]}}\n',
    )
    done = cli("sweep", spec, "--wait", timeout_s=400)
    print(done.out + done.err)
    assert done.code == 1
    assert "skipped:" in done.err and "2 of 4 completed" in done.out
    rows = list(csv.DictReader((tmp_path / "runs" / "sweep-mixed.csv").read_text().splitlines()))
    assert Counter(row["state"] for row in rows) == Counter(
        {"completed": 2, "failed: exception": 1, "never-submitted": 1}
    )
    assert "this member is broken" in done.err and "plan refuses" in done.err
    again = cli("sweep", spec, "--wait", timeout_s=200)
    assert again.code == 1 and len(find_runs(tmp_path / "runs")) == 4, (
        "no run twice, and no second folder of the refused"
    )
    retried = cli("sweep", spec, "--wait", "--retry", timeout_s=400)
    assert retried.code == 1 and len(find_runs(tmp_path / "runs")) == 5, "only what failed"
