"""What plan says, against real runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.plan.disk import disk_of
from dptrain.plan.receptive import IDENTITY
from dptrain.records.index import find_runs
from dptrain.spec.load import load_spec
from tests.cli.cli import TINY, Cli
from tests.local_runs import events, finish, running

LARGE = """
name: large
problem: {image_size: [4096, 4096], data: {source: synthetic}}
denoiser: {name: drunet, weights: random}
algorithm: {iterations: 5}
tiling: {patch: 512, halo: 32, max_batch_size: 4, checkpoint: never}
train: {steps: 100, images: 8}
"""


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_ranks_work_on_the_tiles_of_a_fitted_patch(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    change = ("problem.image_size=[96, 96]", "tiling.patch=fit", "resources.gpus=3", f"resources.layout={layout}")
    with running("infer", *change) as run:
        assert finish(run) == 0
    assert load_spec(run.spec).spec.tiling.patch == 32
    executed = [set(events(run, rank, "final")[0]["tiles"]) for rank in range(3)]
    assert [len(tiles) for tiles in executed] == [3, 3, 3] and set.union(*executed) == set(range(9))


@pytest.mark.timeout(3000)
def test_what_a_refusal_prints_passes_plan(tmp_path: Path) -> None:
    cli = Cli(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    profiles = tmp_path / "config" / "dptrain" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "gpus.yaml").write_text("launcher: slurm\ngpus_per_node: 4\ngpu_memory_gib: 16\npartition: gpu\n")
    spec = cli.write("large.yaml", LARGE)
    refused = cli("train", spec, "--cluster", "gpus", timeout_s=2000)
    assert refused.code == 3 and "the largest term is" in refused.err and not (tmp_path / "runs").exists()
    changes = re.findall(r"--set \S+", refused.err)
    assert changes, refused.err
    print(refused.err.strip().splitlines()[-1])
    words = [word for change in changes for word in change.split()]
    planned = cli("plan", spec, "--cluster", "gpus", *words, "--json", timeout_s=2000)
    value = json.loads(planned.out)
    print(f"with {' '.join(changes)}: {value['memory']['peak_gib']:.2f} GiB, fits {value['fits']}")
    assert planned.code == 0 and value["fits"] is True


@pytest.mark.timeout(3000)
def test_reported_runs_become_allowance_and_step_time(tmp_path: Path) -> None:
    cli = Cli(tmp_path, DPTRAIN_CLUSTER="here")
    profiles = tmp_path / "config" / "dptrain" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "here.yaml").write_text("launcher: local\ngpus_per_node: 2\ngpu_memory_gib: 4\n")
    text = TINY.replace("gpus: 2", "gpus: 1") + "sweep: {problem.image_size: [[256, 256], [320, 320], [384, 384]]}\n"
    spec = cli.write("tiny.yaml", text)
    assert cli("sweep", spec, timeout_s=2000).code == 0
    reported = cli("report", *[paths.run_id for paths in find_runs(tmp_path / "runs")], "--json")
    assert "stored for plan: 3 runs" in reported.err and len(json.loads(reported.out)) == 3
    alone = ("--set", "sweep=null", "--set", "problem.image_size=[256, 256]")
    value = json.loads(cli("plan", spec, *alone, "--no-probe", "--json").out)
    (choice,) = [c for c in value["choices"] if c["key"] == "memory.allowance"]
    print(f"memory.allowance = {choice['value']}: {choice['reason']}; step {value['step_time_s']} s")
    assert "3 runs on cpu" in choice["reason"] and 1 <= value["memory"]["allowance_factor"] < 1.2
    assert value["step_time_s"] > 0 and value["gpu_hours"] == pytest.approx(value["step_time_s"] * 2 / 3600)


def test_saves_take_the_bytes_that_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    wide = "denoiser={name: dncnn, weights: random, depth: 3, width: 64}"
    weights = 64 * 9 + 64 + 64 * 64 * 9 + 64 + 64 * 9 + 1
    with running("train", wide, "resources.gpus=1", "train.steps=2") as run:
        assert finish(run) == 0
    spec = load_spec(run.spec).spec
    planned = disk_of(spec, "train", 1, replace(IDENTITY, parameters=weights), tmp_path)
    written = sum(file.stat().st_size for file in run.saves.rglob("*") if file.is_file())
    assert planned.saves_bytes is not None and planned.saves_bytes <= written < planned.saves_bytes * 1.05
    assert sum(1 for _ in run.dir.rglob("*")) <= planned.files + 4
