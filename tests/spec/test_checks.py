"""What goes together and what follows from other values; what does not is in test_hostile.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dptrain.spec.advice import fewer_images
from dptrain.spec.checks import deblur_kernel
from dptrain.spec.files import expand_files, missing_files
from dptrain.spec.schema import SourceData, Train
from tests.spec.reading import loaded, problems_of, spec_of


def test_trainable_leaves_out_sigma_where_there_is_none() -> None:
    blind = spec_of("name: a\nalgorithm: {sigma: noise}\ntrain: {}\n").train
    usual = spec_of("name: a\ntrain: {}\n").train
    assert blind is not None
    assert usual is not None
    assert blind.trainable == ("denoiser", "step_size")
    assert usual.trainable == ("denoiser", "step_size", "sigma")


@pytest.mark.parametrize(("time_min", "lead_s"), [(1, 30), (2, 60), (3, 90), (600, 90)])
def test_the_warning_comes_before_the_limit(time_min: int, lead_s: int) -> None:
    assert spec_of(f"name: a\nresources: {{time_min: {time_min}}}\n").run.signal_lead_s == lead_s


@pytest.mark.parametrize(
    "text",
    [
        "problem: {image_size: [64, 64, 64], physics: {name: denoise}, data: {source: synthetic}}\ndenoiser: {weights: random}",
        "problem: {image_size: [64, 64, 64], channels: 2, physics: {name: deblur, blur_sigma: 1}, data: {source: synthetic}}\n"
        "denoiser: {weights: random, init: passthrough}",
        "problem: {channels: 1}",
        "problem: {data: {measurements: y.npy, truth: x.npy}}\ntrain: {}",
        "denoiser: {weights: demo-2025-ab, init: passthrough, nc: [8, 8, 8, 8]}",
        "denoiser: {name: dncnn, weights: pretrained}",
        "tiling: {patch: none, halo: 511}",
        "resources: {gpus: 6, replicas: 3, layout: sharded}",
        "tiling: {patch: none}\nresources: {gpus: 4, replicas: 4, layout: sharded}",
        "resources: {gpus: 4, replicas: 4, layout: sharded}\ntrain: {images: 8, batch_size: 2}",
        "tiling: {patch: 4096}",
        "problem: {physics: {name: denoise, noise_std: [0.05, 0.05]}, data: {measurements: y.npy}}\nalgorithm: {sigma: noise}",
        "problem: {physics: {name: inpaint, keep: 1}}",
        "train: {held_out: 0, trainable: sigma}",
        "denoiser: {name: identity}\ntrain: {trainable: [denoiser, step_size]}",
        "sweep: null",
        "sweep: {}",
        "cluster: jean-zay",
    ],
)
def test_allowed(text: str) -> None:
    assert spec_of(f"name: a\n{text}\n").name == "a"


def test_a_clash_is_placed_at_what_was_written_last() -> None:
    text = "name: a\nproblem: {image_size: [64, 64]}\n"
    assert problems_of(text + "tiling: {halo: 64}\n")[0].where == "s.yaml:3:16"
    assert problems_of("name: a\nproblem: {image_size: [16, 16]}\n")[0].where == "s.yaml:2:23"
    assert (
        problems_of(text + "tiling: {halo: 32}\n", "problem.image_size=[32, 32]")[0].where == "--set problem.image_size"
    )


def test_the_kernel_of_deblur_is_that_of_deepinv() -> None:
    import torch
    from deepinv.physics.functional import gaussian_blur

    for sigma in ((0.2,), (1.0,), (2.0, 1.0), (3.0,)):
        kernel = gaussian_blur(sigma=(sigma[0], sigma[-1]))
        assert kernel.shape[-2:] == torch.Size([deblur_kernel(sigma)] * 2)


def test_missing_files(tmp_path: Path) -> None:
    (tmp_path / "b.png").touch()
    (tmp_path / "a.png").touch()
    (tmp_path / "x[1].png").touch()
    text = """\
name: a
problem: {data: {truth: ["*.png", "x[[]1].png", none.npy], measurements: y/*.npy}}
denoiser: {weights: nets/n.pth}
train: {held_out_data: {truth: "held/*.png"}}
"""
    spec = loaded(text, folder=tmp_path).spec
    assert missing_files(spec) == [
        f"problem.data.truth: {tmp_path}/none.npy",
        f"problem.data.measurements: {tmp_path}/y/*.npy",
        f"train.held_out_data.truth: {tmp_path}/held/*.png",
        f"denoiser.weights: {tmp_path}/nets/n.pth",
    ]
    assert expand_files((f"{tmp_path}/?.png",)) == [f"{tmp_path}/a.png", f"{tmp_path}/b.png"]
    assert missing_files(spec_of("name: a\ndenoiser: {weights: demo-2025-ab}\n")) == []


@pytest.mark.parametrize("have", [1, 2, 3, 5])
@pytest.mark.parametrize("train", [Train(), Train(images=2, batch_size=2), Train(held_out_data=SourceData())])
@pytest.mark.parametrize("replicas", [1, 2])
def test_fewer_images_are_no_more_than_there_are(have: int, train: Train, replicas: int) -> None:
    said = fewer_images(train, replicas, have, "problem.data")
    changes: dict[str, Any] = {key: int(value) for key, value in re.findall(r"--set train\.(\w+)=(\d+)", said)}
    fewer = replace(train, **changes)
    own = 0 if train.held_out_data else fewer.held_out
    assert "source: synthetic" in said
    if train.images >= replicas * train.batch_size and have >= replicas:
        assert replicas * fewer.batch_size <= fewer.images <= have - own
