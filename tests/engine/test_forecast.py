"""The forecast of memory: equal to what real ranks measure, as small as it is promised to be, and honest where there is none."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.fake_ranks import fake_rank
from dptrain.engine.forecast import answer, forecast, heaviest_rank
from dptrain.engine.step_memory import measure_steps
from dptrain.geometry.boxes import cells, split_boxes
from dptrain.spec.load import dump_spec
from dptrain.spec.schema import Algorithm, Denoiser, Inpaint, Problem, Resources, Spec, Task, Tiling, Train
from tests.engine.forecasts import PLANE, VOLUME, check, on
from tests.ranks import RankPool

LARGE = Spec(
    name="large",
    problem=Problem(image_size=(8192, 8192)),
    denoiser=Denoiser(weights="random"),
    algorithm=Algorithm(iterations=5),
    tiling=Tiling(patch=512, halo=32),
    resources=Resources(gpus=64, layout="sharded"),
    train=Train(),
)


@pytest.mark.parametrize(("spec", "layout", "world_size", "task", "batch", "mode"), [
    # One rank of three tiles recomputes, three of two keep.
    (PLANE, "sharded", 4, "train", 2, "auto"),
    (PLANE, "replicated", 2, "train", 1, "always"),
    (VOLUME, "replicated", 2, "train", 2, "never"),
    (replace(VOLUME, problem=replace(VOLUME.problem, physics=Inpaint())), "sharded", 2, "infer", 3, "never"),
])  # fmt: skip
def test_forecast_is_what_real_ranks_measure(
    ranks: RankPool, spec: Spec, layout: str, world_size: int, task: Task, batch: int, mode: str
) -> None:
    check(ranks, on(spec, layout, world_size), task, batch, mode)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["drs", "admm", "hqs"])
def test_a_solver_of_deepinvs_needs_the_same_for_any_number_of_iterations(ranks: RankPool, name: Any) -> None:
    spec = replace(on(PLANE, "replicated", 2), algorithm=Algorithm(name=name, iterations=4))
    print(check(ranks, spec, "infer", 2, "never", messages=False))


def test_the_rank_that_keeps_is_heavier_than_the_one_that_recomputes() -> None:
    spec = on(PLANE, "sharded", 4)
    busiest = heaviest_rank(spec, "train", 2, "always")
    assert heaviest_rank(spec, "train", 1, "auto") == heaviest_rank(spec, "train", 3, "never") == busiest
    assert heaviest_rank(spec, "train", 2, "auto") != busiest, "it has three tiles, two batches, and keeps nothing"
    assert heaviest_rank(spec, "infer", 2, "auto") == heaviest_rank(spec, "infer", 2, "never") == busiest


@pytest.mark.acceptance
@pytest.mark.parametrize("mode", ["always", "never"])
@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_calls_left_out_and_steps_not_run_change_nothing(layout: str, mode: str) -> None:
    # In layout sharded so many tiles that a pass is cut.
    patch = 12 if layout == "replicated" else 9
    spec = replace(on(PLANE, layout, 1), algorithm=Algorithm(iterations=5), tiling=Tiling(patch=patch, halo=4))
    with fake_rank(0, 1) as ctx:
        network = build_denoiser(spec, ctx.device, torch.float32)
        full = measure_steps(spec, "train", ctx, network, max_batch_size=1, checkpoint=mode, thin=False)
    made = forecast(spec, "train", max_batch_size=1, checkpoint=mode)
    assert made["peaks"] == pytest.approx(full.peaks, rel=0.01)
    for phase, peak in made["peaks"].items():
        assert sum(made["terms"][phase].values()) == peak


def test_one_step_is_run_as_it_is() -> None:
    spec = replace(on(PLANE, "sharded", 1), algorithm=Algorithm(iterations=1))
    made = forecast(spec, "train", max_batch_size=1, checkpoint="always")
    assert made["per_step_bytes"] is None and made["peaks"]["backward"] > made["terms"]["backward"]["weights"]


def test_sharded_on_64_ranks_holds_its_share() -> None:
    made = forecast(LARGE, "train", max_batch_size=1, checkpoint="always")
    box_bytes = 3 * 4 * 1024**2
    print(
        f"peak {max(made['peaks'].values()) / 2**30:.3f} GiB, per step {made['per_step_bytes'] / box_bytes:.3f} boxes"
    )
    assert max(made["peaks"].values()) <= 3.6 * 2**30
    assert made["per_step_bytes"] <= 2.15 * box_bytes
    assert made["bytes_sent"] <= 0.3e9, "gradients of the weights included"
    weights = made["terms"]["backward"]["weights"]
    assert made["terms"]["backward"]["gradients"] == weights, "each once"
    assert 2 * weights <= made["terms"]["backward"]["optimizer"] <= 2.1 * weights, "Adam keeps two of each"


def test_what_is_not_weights_or_a_tile_falls_as_the_haloed_box_does() -> None:
    small = replace(LARGE, denoiser=Denoiser(name="dncnn", weights="random", depth=4, width=512))
    shares = []
    for count in (4, 16, 64):
        spec = replace(small, resources=replace(small.resources, gpus=count))
        made = forecast(spec, "train", max_batch_size=1, checkpoint="always")
        terms = made["terms"]["backward"]
        rest = sum(size for name, size in terms.items() if name in ("data", "retained", "images", "exchange"))
        box = max(split_boxes((8192, 8192), count, (2, 2)), key=cells)
        haloed = prod(stop - start + 2 * spec.tiling.halo for start, stop in box)
        shares.append(rest / haloed)
    print("bytes per pixel of the haloed box:", [round(share, 1) for share in shares])
    assert max(shares) <= 1.1 * min(shares)


def test_replicated_does_not_shrink_with_ranks() -> None:
    few, many = (
        forecast(on(replace(LARGE, denoiser=Denoiser(name="dncnn", weights="random", depth=3, width=8),
                            problem=Problem(image_size=(2048, 2048))), "replicated", count),
                 "train", max_batch_size=1, checkpoint="always")
        for count in (4, 16)
    )  # fmt: skip
    assert many["terms"]["forward"]["retained"] > 0.9 * few["terms"]["forward"]["retained"]


def test_what_cannot_be_forecast_says_why(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Reads(torch.nn.Module):\n"
        "    def forward(self, x, sigma):\n"
        "        return x if float(x.sum()) > 0 else -x\n"
        "def made(): return Reads()\n"
    )
    text = dump_spec(on(PLANE, "sharded", 2))
    start, stop = text.index("denoiser:"), text.index("algorithm:")
    mine = f'denoiser: {{factory: "mine:made", search_path: "{tmp_path}"}}\n'
    request = {"task": "infer", "max_batch_size": 1, "checkpoint": "never"}
    assert "depends on numbers" in answer({**request, "spec": text[:start] + mine + text[stop:]})["error"]
    missing = mine.replace("mine:made", "mine:gone")
    unrolled = dump_spec(replace(on(PLANE, "replicated", 2), algorithm=Algorithm(name="admm")))
    assert "layout sharded keeps none" in answer({**request, "task": "train", "spec": unrolled})["error"]
    assert "no function 'gone'" in answer({**request, "spec": text[:start] + missing + text[stop:]})["error"]
    assert answer({**request, "spec": text})["peaks"].keys() == {"forward"}, "the next request is not touched"
