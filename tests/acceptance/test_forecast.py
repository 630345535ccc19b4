"""The forecast beside real gloo ranks and real runs, for both layouts, both tasks, planes and volumes, modes, batches and ranks."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from dptrain.plan.forecast import Request, forecast
from dptrain.spec.load import load_spec
from dptrain.spec.schema import Spec, Task
from tests.acceptance.runs import run
from tests.cli.cli import Cli
from tests.engine.forecasts import PLANE, VOLUME, check, on
from tests.ranks import RankPool

WORK: list[tuple[Task, str, int]] = [
    ("train", "always", 1),
    ("train", "always", 3),
    ("train", "never", 2),
    ("train", "auto", 1),
    ("infer", "never", 2),
]
CASES = list(itertools.product((PLANE, VOLUME), ("replicated", "sharded"), (1, 2, 4), WORK))[::2]
"""Every other one: each image and layout on each number of ranks with two or three of the five."""


@pytest.mark.parametrize(("spec", "layout", "world_size", "work"), CASES)
def test_forecast_is_what_real_ranks_measure(
    ranks: RankPool, spec: Spec, layout: str, world_size: int, work: tuple[Task, str, int]
) -> None:
    task, mode, batch = work
    print(check(ranks, on(spec, layout, world_size), task, batch, mode))


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
@pytest.mark.parametrize("task", ["train", "infer"])
def test_forecast_is_what_a_run_records(tool: Cli, task: Task, layout: str) -> None:
    overrides = (
        f"resources={{gpus: 2, layout: {layout}}}",
        "problem.image_size=[128, 96]",
        "problem.data={source: synthetic}",
        "denoiser={name: drunet, weights: random, nc: [4, 8, 8, 16], nb: 1}",
        "tiling={patch: 32, halo: 8, max_batch_size: 2, checkpoint: always}",
        "algorithm.iterations=4",
        "train={steps: 3, images: 2, held_out: 1}",
    )
    done = run(tool, task, "train", *overrides)
    plan = json.loads(done.paths.plan.read_text(encoding="utf-8"))
    spec = replace(load_spec(done.paths.spec).spec)
    (made,) = forecast(
        [Request(spec=spec, task=task, max_batch_size=plan["max_batch_size"], checkpoint=plan["checkpoint"])]
    )
    measured = max(done.result["peak_memory_bytes"])
    print(f"{layout} {task}: {made.peak_bytes} forecast, {measured} recorded by the run")
    # In layout replicated gloo's thread sometimes holds a message a moment longer, and the run sees it alive.
    assert made.peak_bytes == pytest.approx(measured, rel=0.01 if layout == "sharded" else 0.03)
