"""What makes a problem small for a rehearsal, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.plan.plan import Plan, make_plan
from dptrain.plan.rehearsal import changes, save_ratio, warned_after
from dptrain.spec.load import LoadedSpec, parse_spec
from dptrain.spec.profiles import load_profile
from dptrain.spec.schema import Task

LARGE = """\
name: large
problem: {image_size: [1000, 3000], channels: 1, physics: {name: multiframe_superres, factor: 4}, data: {source: synthetic}}
denoiser: {name: dncnn, weights: random, depth: 3, width: 4}
algorithm: {iterations: 5}
tiling: {patch: 100, halo: 8}
resources: {gpus: 6, time_min: 600}
train: {steps: 1000, images: 50, held_out: 4, batch_size: 2}
"""


def planned(text: str, task: Task, *overrides: str) -> tuple[LoadedSpec, Plan]:
    loaded = parse_spec(text, "large.yaml", Path.cwd(), overrides)
    return loaded, make_plan(loaded, task, load_profile("local"))


def small_of(text: str, task: Task, *overrides: str) -> tuple[dict[str, str], Plan]:
    """The changes by key, and the plan with them."""
    loaded, plan = planned(text, task, *overrides)
    made = changes(loaded, plan)
    assert all(change.reason for change in made)
    small = planned(text, task, *overrides, *(change.override for change in made))[1]
    return {change.key: change.value for change in made}, small


def test_a_training_keeps_tiles_ranks_and_network() -> None:
    values, small = small_of(LARGE, "train")
    assert values == {
        "name": '"large-rehearsal"',
        "tiling.max_batch_size": "1",
        "tiling.checkpoint": "always",
        "problem.image_size": "[200, 300]",
        "train.steps": "8",
        "train.save_every_steps": "2",
        "train.images": "3",
        "train.held_out": "1",
        "algorithm.iterations": "2",
        "resources.time_min": "15",
    }
    whole = planned(LARGE, "train")[1]
    assert small.refusals == () and small.world_size == 6
    assert small.grid.window_shape == whole.grid.window_shape and small.grid.counts == (2, 3)
    assert small.spec.denoiser == whole.spec.denoiser and warned_after(small.steps) == 3
    assert save_ratio(whole, small) == 1


def test_there_is_a_step_to_stop_in_and_one_to_go_on_with() -> None:
    assert [warned_after(steps) for steps in (1, 2, 3, 4, 5, 8, 1000)] == [0, 0, 1, 1, 2, 3, 3]


def test_a_reconstruction_saves_what_grows_with_the_image() -> None:
    values, small = small_of(LARGE, "infer", "resources.gpus=2")
    assert values["algorithm.iterations"] == "8" and "train.steps" not in values
    assert small.steps == 8 and small.grid.counts == (2, 2)
    assert save_ratio(planned(LARGE, "infer")[1], small) == 1000 * 3000 / (200 * 200)


def test_what_the_user_sets_stays() -> None:
    values, small = small_of(LARGE, "train", "train.steps=5", "problem.image_size=[400, 400]", "train.images=7")
    assert not {"train.steps", "problem.image_size", "train.images"} & set(values)
    assert small.steps == 5 and small.spec.problem.image_size == (400, 400) and small.spec.train is not None
    whole_section = small_of(LARGE, "train", "train={steps: 30}")[0]
    assert not any(key.startswith("train.") for key in whole_section)


@pytest.mark.parametrize("line", ["patch: none", "patch: 4000"])
def test_one_tile_is_not_cut(line: str) -> None:
    values, _ = small_of(LARGE.replace("patch: 100", line).replace("gpus: 6", "gpus: 1"), "infer")
    assert "problem.image_size" not in values


def test_a_fitted_patch_is_that_of_the_whole_problem() -> None:
    values, small = small_of(LARGE.replace("patch: 100", "patch: fit"), "infer")
    whole = planned(LARGE.replace("patch: 100", "patch: fit"), "infer")[1]
    assert values["tiling.patch"] == str(whole.grid.patch) and small.grid.patch == whole.grid.patch


def test_files_are_cropped_and_measured_ones_are_not(tmp_path: Path) -> None:
    import numpy as np

    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.zeros((1, 400, 600), np.float32))
    head, tail = LARGE.split("{source: synthetic}")
    text = head.replace("[1000, 3000]", "[400, 600]").replace(
        "{name: multiframe_superres, factor: 4}", "{name: denoise}"
    )
    truth = text + f'{{truth: "{tmp_path}/*.npy"}}' + tail
    values, small = small_of(truth, "infer", "resources.gpus=2")
    assert values["problem.image_size"] == "[200, 200]" and values["problem.data.crop"] == "center"
    assert values["problem.data.truth"] == f'["{tmp_path}/a.npy"]'
    assert small.refusals == () and small.steps == 8
    measured = text + f'{{measurements: "{tmp_path}/*.npy", truth: null}}' + tail.split("train:")[0]
    values, small = small_of(measured, "infer", "resources.gpus=2")
    assert "problem.image_size" not in values and small.refusals == () and small.steps == 8
