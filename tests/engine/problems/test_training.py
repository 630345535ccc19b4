"""The photographs of the built-in denoisers: which, and that none is both learned from and measured on."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.problems.random_fields import normal_like
from dptrain.engine.problems.sources import photo_path
from dptrain.engine.problems.training import Mixed, listed, mixed, photographs
from dptrain.errors import UsageError
from dptrain.spec.schema import Denoiser, Problem, Spec

needs_photographs = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("skimage", "sklearn")),
    reason='the photographs are in scikit-image and scikit-learn: pip install "dptrain[weights]"',
)


def test_training_and_held_out_photographs_are_disjoint_and_free() -> None:
    training, held_out = ({p.file for p in listed(which)} for which in ("training", "held_out"))
    assert len(training) >= 10 and len(held_out) >= 3 and not training & held_out
    assert all(p.licence for which in ("training", "held_out") for p in listed(which))


def test_the_demonstration_photograph_is_in_neither_list() -> None:
    demo = photo_path()
    assert demo.is_file() and demo.name == "grace_hopper.jpg"
    for which in ("training", "held_out"):
        for photograph in listed(which):
            assert "hopper" not in photograph.file and photograph.package in ("skimage", "sklearn")


@needs_photographs
def test_the_demonstration_photograph_is_not_there_under_another_name() -> None:
    demo = photo_path().read_bytes()
    for which in ("training", "held_out"):
        for photograph in listed(which):
            assert photograph.path().is_file() and photograph.path().read_bytes() != demo


@needs_photographs
@pytest.mark.parametrize(("channels", "documented_db"), [(3, (33.19, 30.16, 27.21)), (1, (32.67, 29.44, 26.39))])
def test_builtin_weights_reach_what_is_documented(channels: int, documented_db: tuple[float, ...]) -> None:
    """On the photographs and noise of benchmarks/denoiser.py, which also measures what they are compared with."""
    spec = Spec(name="test", problem=Problem(image_size=(256, 256), channels=channels), denoiser=Denoiser())
    denoiser = build_denoiser(spec, torch.device("cpu"), torch.float32).eval()
    for sigma, documented in zip((0.05, 0.1, 0.2), documented_db, strict=True):
        values = []
        for i, image in enumerate(photographs(image_size=(256, 256), channels=channels)):
            truth = image[None].float()
            with torch.no_grad():
                estimate = denoiser(truth + sigma * normal_like(("benchmark", i), truth), sigma)
            values.append(-10 * float(torch.log10((estimate - truth).square().mean())))
        assert sum(values) / len(values) == pytest.approx(documented, abs=0.02)


@needs_photographs
def test_mixed_images_are_a_function_of_seed_and_index() -> None:
    for channels in (1, 3):
        images = mixed(image_size=(24, 32), channels=channels, count=40, seed=0)
        again = Mixed((24, 32), channels, 40, 0, 0.3)
        assert len(images) == 40
        for i in (7, 39, 0):
            assert images[i].shape == (channels, 24, 32) and torch.equal(images[i], again[i])
            assert images[i].min() >= 0 and images[i].max() <= 1
        assert len({float(image.double().sum()) for image in images}) == 40
    assert not torch.equal(Mixed((24, 32), 1, 2, 1, 0.0)[0], Mixed((24, 32), 1, 2, 0, 0.0)[0])


@needs_photographs
def test_centres_of_the_held_out_photographs() -> None:
    colour, gray = (photographs(image_size=(256, 256), channels=channels) for channels in (3, 1))
    assert len(colour) == len(gray) == len(listed("held_out"))
    assert all(image.shape == (3, 256, 256) for image in colour) and gray[0].shape == (1, 256, 256)
    with pytest.raises(UsageError, match="larger than"):
        photographs(image_size=(2000, 2000), channels=3)
    with pytest.raises(UsageError, match="2-D with 1 or 3 channels"):
        mixed(image_size=(8, 8, 8), channels=1, count=1, seed=0)
