"""What headers, modules and saves say before the queue."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from safetensors.torch import save_file

from dptrain.plan.plan import Plan, make_plan
from dptrain.records.intent import Intent, write_intent
from dptrain.records.paths import RunPaths
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from tests.local_runs import TINY

LOCAL = ClusterProfile(name="local", launcher="local")
COLOUR = "problem.channels=3"


def plan_of(folder: Path, *overrides: str, profile: ClusterProfile = LOCAL) -> Plan:
    return make_plan(parse_spec(TINY, "tiny.yaml", folder, overrides), "infer", profile)


def picture(path: Path, *, height: int = 24, width: int = 24, gray: bool = True) -> Path:
    pixels = np.zeros((height, width) if gray else (height, width, 3), dtype=np.uint8)
    if path.suffix == ".tif":
        tifffile.imwrite(path, pixels)
    elif path.suffix == ".npy":
        np.save(path, pixels if gray else np.moveaxis(pixels, -1, 0))
    else:
        Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".npy"])
def test_the_size_of_every_kind_of_file_is_seen(tmp_path: Path, suffix: str) -> None:
    truth = f"problem.data={{truth: {picture(tmp_path / f'good{suffix}')}}}"
    assert plan_of(tmp_path, truth).refusals == ()
    truth = f"problem.data={{truth: {picture(tmp_path / f'wide{suffix}', width=30)}}}"
    (refusal,) = plan_of(tmp_path, truth).refusals
    assert "has 24 x 30 pixels, image_size is [24, 24]; write: image_size: [24, 30], or crop: center" in refusal
    truth = f"problem.data={{truth: {tmp_path}/wide{suffix}, crop: center}}"
    assert plan_of(tmp_path, truth).refusals == ()
    truth = f"problem.data={{truth: {picture(tmp_path / f'low{suffix}', height=20)}, crop: center}}"
    assert "20 x 24 pixels, smaller than image_size" in plan_of(tmp_path, truth).refusals[0]


def test_a_turned_photograph_has_the_size_it_is_shown_in(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((30, 24), dtype=np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    truth = f"problem.data={{truth: {tmp_path}/turned.jpg}}"
    assert plan_of(tmp_path, truth, "problem.image_size=[24, 30]").refusals == ()


def test_gray_files_for_colour_are_refused(tmp_path: Path) -> None:
    truth = f"problem.data={{truth: {picture(tmp_path / 'gray.png')}}}"
    assert "is gray, problem.channels is 3" in plan_of(tmp_path, truth, COLOUR).refusals[0]
    truth = f"problem.data={{truth: {picture(tmp_path / 'colour.png', gray=False)}}}"
    assert plan_of(tmp_path, truth, COLOUR).refusals == () == plan_of(tmp_path, truth).refusals


def test_measurements_must_have_the_physics_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.zeros((24, 24), dtype=np.float32))
    np.save(tmp_path / "good.npy", np.zeros((1, 24, 24), dtype=np.float32))
    np.save(tmp_path / "four.npy", np.zeros((4, 1, 12, 12), dtype=np.float32))
    frames = "problem.physics={name: multiframe_superres, frames: 4}"

    def refusals(name: str, *more: str) -> tuple[str, ...]:
        data = f"problem.data={{measurements: {tmp_path}/{name}.npy, truth: null}}"
        return plan_of(tmp_path, data, "train=null", *more).refusals

    assert "flat.npy has shape [24, 24], the physics measures [1, 24, 24]" in refusals("flat")[0]
    assert refusals("good") == ()
    assert refusals("four", frames) == ()
    assert "measures [4, 1, 12, 12]" in refusals("good", frames)[0]


def test_files_that_cannot_be_judged_are_left_to_the_ranks(tmp_path: Path) -> None:
    for name, content in (
        ("a.png", b""),
        ("b.npy", b"\x93NUMPY"),
        ("c.tif", b"II*\0"),
        ("d.jpg", b"text"),
        ("e.npy", b"\x93NUMPY\1\0\4\0{1:2"),
    ):
        (tmp_path / name).write_bytes(content)
        assert plan_of(tmp_path, f"problem.data={{truth: {tmp_path}/{name}}}").refusals == ()


def test_a_missing_module_is_named_and_a_present_one_is_not_imported(tmp_path: Path) -> None:
    change = 'denoiser={factory: "mine_not_there:build"}'
    (refusal,) = plan_of(tmp_path, change).refusals
    assert "no module 'mine_not_there'" in refusal
    (tmp_path / "mine_not_there.py").write_text("raise SystemExit('imported')\n")
    assert plan_of(tmp_path, change).refusals == ()
    (tmp_path / "mine_not_there.py").unlink()
    # On a cluster whose setup lines may bring it, the ranks say.
    site = ClusterProfile(name="c", setup=("module load mine",))
    assert plan_of(tmp_path, change, profile=site).refusals == ()


def test_last_as_weights_is_frozen_and_its_steps_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    number = itertools.count()

    def trained(steps: int) -> RunPaths:
        run = RunPaths(tmp_path / f"made-{next(number)}")
        run.create()
        created_s = float(next(number))
        write_intent(
            run,
            Intent(
                run=run.run_id,
                task="train",
                launcher="local",
                cluster="local",
                world_size=1,
                steps=1,
                created_s=created_s,
            ),
        )
        run.save(7).mkdir()
        save_file({"step_size": torch.ones(steps), "denoiser.w": torch.ones(2)}, run.save(7) / "model.safetensors")
        return run

    first = trained(3)
    plan = plan_of(tmp_path, "denoiser.weights=last")
    assert plan.refusals == () and getattr(plan.spec.denoiser, "weights", None) == str(first.dir)
    trained(5)
    assert getattr(plan.spec.denoiser, "weights", None) == str(first.dir)
    (refusal,) = plan_of(tmp_path, "denoiser.weights=last").refusals
    assert (
        "learned step sizes for 5 unrolled steps, algorithm.iterations is 3; write: --set algorithm.iterations=5"
        in refusal
    )
    trained(1)
    assert plan_of(tmp_path, "denoiser.weights=last").refusals == ()
    # The file alone is the denoiser alone, for any number of iterations.
    assert plan_of(tmp_path, f"denoiser.weights={tmp_path}/made-2/saves/step-7/model.safetensors").refusals == ()


def test_notes_about_the_machine_and_the_noise_level(tmp_path: Path) -> None:
    assert any("64 local ranks share" in note for note in plan_of(tmp_path, "resources.gpus=64").notes)
    notes = plan_of(tmp_path, "algorithm.sigma=0.02", "problem.physics={name: denoise, noise_std: 0.1}").notes
    assert any("sigma 0.02 is far below noise_std 0.1" in note for note in notes)
