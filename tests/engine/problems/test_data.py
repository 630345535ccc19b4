"""Images of a run: roles, noise, measured data, user sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dptrain.engine.problems import ImageSet, build_data, build_physics
from dptrain.errors import UsageError
from dptrain.spec.schema import (
    Deblur,
    Denoise,
    Factory,
    FileData,
    Inpaint,
    MultiframeSuperres,
    SourceData,
    Spec,
    Train,
)
from tests.engine.problems.specs import CPU, spec_of, whole_physics

SYNTHETIC = SourceData(source="synthetic")


def images(spec: Spec, role: Any = "infer") -> ImageSet:
    dtype = torch.float64 if spec.resources.precision == "float64" else torch.float32
    return build_data(spec, whole_physics(spec, dtype), role=role)


@pytest.mark.parametrize(
    ("physics", "size", "channels"),
    [(MultiframeSuperres(), (32, 24), 3), (Deblur(blur_sigma=(1.0,)), (12, 13, 14), 2), (Inpaint(), (20, 21), 1)],
)
def test_both_precisions_see_the_same_noise(physics: Any, size: tuple[int, ...], channels: int) -> None:
    wide, narrow = (
        images(spec_of(physics=physics, image_size=size, channels=channels, precision=precision))[0]
        for precision in ("float64", "float32")
    )
    assert wide.truth is not None and narrow.truth is not None
    assert wide.truth.shape == (1, channels, *size) and narrow.truth.dtype is torch.float32
    torch.testing.assert_close(narrow.truth.double(), wide.truth, rtol=0, atol=1e-6)
    for a, b in zip(wide.measurements, narrow.measurements, strict=True):
        assert a.dtype is torch.float64 and b.dtype is torch.float32
        torch.testing.assert_close(b.double(), a, rtol=0, atol=1e-5)


def test_noise_has_the_asked_level_and_differs_between_operators_and_images() -> None:
    train = Train(images=3, held_out=1)
    spec = spec_of(physics=MultiframeSuperres(noise_std=(0.1,)), image_size=(96, 96), channels=3, train=train)
    physics = build_physics(spec, CPU, torch.float64)
    noises = []
    for sample in images(spec, "train"):
        assert sample.truth is not None and sample.noise_std == 0.1
        noises += [y - clean for y, clean in zip(sample.measurements, physics.A(sample.truth), strict=True)]
    assert len(noises) == 12
    for i, noise in enumerate(noises):
        assert float(noise.std()) == pytest.approx(0.1, rel=0.05)
        assert all(not torch.equal(noise, other) for other in noises[:i])


def test_noise_does_not_depend_on_the_image_size() -> None:
    """Keyed by position: the corner of a larger measurement has the noise of the smaller one."""
    small, large = (
        images(spec_of(physics=Denoise(noise_std=(0.5,)), image_size=size))[0] for size in ((40, 70), (90, 130))
    )
    assert small.truth is not None and large.truth is not None
    noise_small, noise_large = small.measurements[0] - small.truth, large.measurements[0] - large.truth
    torch.testing.assert_close(noise_large[..., :40, :70], noise_small, rtol=0, atol=1e-12)


def test_drawn_noise_levels() -> None:
    train = Train(images=20, held_out=5)
    spec = spec_of(physics=Denoise(noise_std=(0.1, 0.2)), image_size=(8, 8), train=train)
    levels = [s.noise_std for role in ("train", "held_out") for s in images(spec, role)]
    assert len(set(levels)) == 25 and all(level is not None and 0.1 <= level <= 0.2 for level in levels)
    again = [s.noise_std for s in images(spec, "train")]
    assert levels[:20] == again, "equal at every access and in every process"


def test_roles_are_disjoint_and_lengths_right() -> None:
    spec = spec_of(image_size=(16, 16), train=Train(images=3, held_out=2))
    train, held_out, infer = (images(spec, role) for role in ("train", "held_out", "infer"))
    assert (len(train), len(held_out), len(infer)) == (3, 2, 1)
    truths = [s.truth for s in [*train, *held_out, *infer]]
    for i, a in enumerate(truths):
        assert all(not torch.equal(a, b) for b in truths[:i])
    assert torch.equal(held_out[-1].truth, truths[4])  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        train[3]


def test_held_out_data_of_its_own() -> None:
    train = Train(images=2, held_out=1, held_out_data=SourceData(source="photo"))
    spec = spec_of(image_size=(16, 16), train=train)
    assert images(spec, "held_out")[0].name == "photo"
    spec = spec_of(image_size=(16, 16), train=Train(images=2, held_out=2, held_out_data=SYNTHETIC))
    first, second = images(spec, "train"), images(spec, "held_out")
    assert not torch.equal(first[0].truth, second[0].truth)  # type: ignore[arg-type]


def test_photo() -> None:
    for channels, size in ((3, (64, 48)), (1, (50, 50))):
        sample = images(spec_of(data=SourceData(), image_size=size, channels=channels))[0]
        assert sample.truth is not None and sample.truth.shape == (1, channels, *size) and sample.bit_depth == 8
        assert sample.truth.min() >= 0 and sample.truth.max() <= 1 and sample.truth.std() > 0.1
    problems: list[dict[str, Any]] = [{"channels": 2}, {"image_size": (8, 9, 10)}]
    for problem in problems:
        with pytest.raises(UsageError, match="photo is 2-D"):
            images(spec_of(**{"data": SourceData(), **problem}))[0]
    with pytest.raises(UsageError, match="1 image, training asks for 8"):
        images(spec_of(data=SourceData(), train=Train()), "train")


def test_files_as_truth(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        np.save(tmp_path / f"{name}.npy", np.full((16, 16), ord(name) / 256))
    data = FileData(truth=(str(tmp_path / "*.npy"),))
    spec = spec_of(data=data, image_size=(16, 16), train=Train(images=2, held_out=1))
    assert [s.name for s in images(spec)] == ["a", "b", "c"]
    assert [s.name for s in images(spec, "train")] == ["a", "b"] and images(spec, "held_out")[0].name == "c"
    with pytest.raises(UsageError, match="3 images, training asks for 4"):
        images(spec_of(data=data, image_size=(16, 16), train=Train(images=2, held_out=2)), "held_out")


def test_measurements_without_truth(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=(4, 3, 8, 12))
    np.save(tmp_path / "y.npy", y)
    data = FileData(measurements=(str(tmp_path / "y.npy"),))
    sample = images(spec_of(data=data, physics=MultiframeSuperres(), image_size=(16, 24), channels=3))[0]
    assert sample.truth is None and sample.noise_std == 0.05 and sample.bit_depth == 32
    assert [tuple(part.shape) for part in sample.measurements] == [(1, 3, 8, 12)] * 4
    assert np.array_equal(sample.measurements[2][0].numpy(), y[2])
    with pytest.raises(UsageError) as caught:
        images(spec_of(data=data, physics=MultiframeSuperres(), image_size=(24, 16), channels=3))[0]
    assert "4 x [3, 8, 12]" in str(caught.value) and "4 x [3, 12, 8]" in str(caught.value)
    with pytest.raises(UsageError, match="the physics has 3"):
        images(spec_of(data=data, physics=MultiframeSuperres(frames=3), image_size=(16, 24), channels=3))[0]


def test_measurements_with_truth_and_range(tmp_path: Path) -> None:
    for i in range(2):
        np.save(tmp_path / f"y{i}.npy", np.full((1, 8, 8), 100 * (i + 1), np.uint16))
        np.save(tmp_path / f"x{i}.npy", np.full((8, 8), 200, np.uint16))
    data = FileData(truth=(str(tmp_path / "x*"),), measurements=(str(tmp_path / "y*"),), range=(0.0, 1000.0))
    first, second = images(spec_of(data=data, image_size=(8, 8)))
    assert first.truth is not None and float(first.truth.max()) == 0.2 and first.bit_depth == 16
    assert float(first.measurements[0].max()) == 0.1 and float(second.measurements[0].max()) == 0.2
    (tmp_path / "y1.npy").unlink()
    with pytest.raises(UsageError, match="2 truth files and 1 measurement files"):
        images(spec_of(data=data, image_size=(8, 8)))


USER_MODULE = """
import numpy as np
import torch
from deepinv.physics import Denoising, GaussianNoise, PoissonNoise

def truths(image_size, channels, count, seed, role):
    assert role in ("infer", "train", "held_out")
    assert (count is None) == (role == "infer")
    return [torch.full((channels, *image_size), 0.1 * i) for i in range(count or 3)]

def generated(image_size):
    for i in range(4):
        yield np.full((1, 1, *image_size), 0.1 * i)

def pairs(image_size):
    return [(None, torch.ones(1, *image_size)), (torch.zeros(1, *image_size), [torch.ones(1, *image_size)])]

def shaped(image_size):
    return [torch.zeros(3, 3)]

def number():
    return 3

def texts():
    return ["a"]

def nothing(image_size):
    return [(None, None)]

def nan(image_size):
    return [torch.full((1, *image_size), float("nan"))]

def empty():
    return []

def gaussian():
    return Denoising(GaussianNoise(0.3))

def poisson():
    return Denoising(PoissonNoise(gain=0.1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "user_data_module.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return str(tmp_path)


def user(function: str, folder: str, **arguments: Any) -> Factory:
    return Factory(factory=f"user_data_module:{function}", arguments=arguments, search_path=folder)


def test_user_data(folder: str) -> None:
    spec = spec_of(data=user("truths", folder), train=Train(images=2, held_out=1))
    assert (len(images(spec)), len(images(spec, "train")), len(images(spec, "held_out"))) == (3, 2, 1)
    held_out = images(spec, "held_out")[0].truth
    assert held_out is not None and float(held_out.max()) == pytest.approx(0.2)
    generated = images(spec_of(data=user("generated", folder)))
    assert len(generated) == 4 and generated[3].truth.shape == (1, 1, 24, 32)  # type: ignore[union-attr]
    first, second = images(spec_of(data=user("pairs", folder)))
    assert first.truth is None and second.truth is not None
    assert all(s.measurements[0].shape == (1, 1, 24, 32) for s in (first, second))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("shaped", r"item 0 of user_data_module:shaped has shape \[3, 3\], the problem asks for \[1, 24, 32\]"),
        ("number", "returned a int; expected a sequence"),
        ("texts", "is a str; expected a tensor"),
        ("nothing", "neither a truth nor measurements"),
        ("nan", "NaN"),
        ("empty", "no images"),
    ],
)
def test_user_data_refused_by_name(folder: str, function: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        images(spec_of(data=user(function, folder)))[0]


def test_noise_of_user_physics_is_the_operators_own(folder: str) -> None:
    sample = images(spec_of(physics=user("gaussian", folder), image_size=(64, 64)))[0]
    assert sample.truth is not None and sample.noise_std == pytest.approx(0.3)
    noise = sample.measurements[0] - sample.truth
    assert float(noise.std()) == pytest.approx(0.3, rel=0.1)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    poisson = images(spec_of(physics=user("poisson", folder), image_size=(64, 64)))
    one, two = poisson[0], poisson[0]
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    assert one.noise_std is None and torch.equal(one.measurements[0], two.measurements[0])
    assert one.truth is not None and not torch.equal(one.measurements[0], one.truth)
