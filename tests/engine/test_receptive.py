"""How far networks see: known networks, boundaries that wrap around, whole-image statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.receptive import longest_run, measure
from dptrain.spec.schema import Algorithm, Denoiser, Problem, Spec


def spec(size: tuple[int, ...] = (64, 64), channels: int = 1, denoiser: Denoiser | None = None) -> Spec:
    denoiser = denoiser or Denoiser(name="identity")
    return Spec(name="a", problem=Problem(image_size=size, channels=channels), denoiser=denoiser, algorithm=Algorithm())


def measured(denoiser: Denoiser, size: tuple[int, ...] = (64, 64), channels: int = 1) -> dict[str, Any]:
    of = spec(size, channels, denoiser)
    return measure(build_denoiser(of, torch.device("cpu"), torch.float32), of)


class Mine(nn.Module):
    """Layers in a row that take no noise level."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


class Mean(nn.Module):
    """Subtracts the mean of the image, without any module that says so."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean((-2, -1), keepdim=True)


def conv(**arguments: Any) -> nn.Conv2d:
    return nn.Conv2d(1, 1, 3, padding=arguments.get("dilation", 1), **arguments)


@pytest.mark.parametrize(
    ("denoiser", "size", "radius"),
    [
        (Denoiser(name="dncnn", weights="random", depth=3, width=4), (64, 64), 3),
        (Denoiser(name="dncnn", weights="random", depth=5, width=2), (16, 16, 16), 5),
        # Two 3 x 3 below, above and beside one pooling: 2 + 2 x 2 + 1 + 1 + 2.
        (Denoiser(name="unet", weights="random", scales=2), (64, 64), 10),
        # Starts as the identity: what its zero weights reach counts all the same.
        (Denoiser(weights="random", init="passthrough", nc=(2, 2, 2, 2), nb=1), (64, 64), 46),
    ],
)
def test_the_radius_of_known_networks(denoiser: Denoiser, size: tuple[int, ...], radius: int) -> None:
    found = measured(denoiser, size)
    assert found["radius"] == radius
    assert found["parameters"] > 0 and found["flops_per_pixel"] > 0 and found["statistics"] == []


def test_circular_boundaries_and_dilation() -> None:
    circular = Mine(*(conv(padding_mode="circular") for _ in range(4)))
    assert measure(circular, spec())["radius"] == 4
    assert measure(Mine(conv(dilation=3), conv(dilation=3)), spec())["radius"] == 6


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.GroupNorm(1, 1), ["GroupNorm (body.1)"]),
        (nn.InstanceNorm2d(1), ["InstanceNorm2d (body.1)"]),
        (Mean(), []),
    ],
)
def test_whole_image_statistics_are_found_and_named(layer: nn.Module, named: list[str]) -> None:
    found = measure(Mine(conv(), layer, conv()), spec())
    assert found["radius"] is None and found["statistics"] == named


def test_a_normalisation_of_single_pixels_is_none_of_the_whole_image() -> None:
    class OverChannels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(x.movedim(1, -1)).movedim(-1, 1)
            return out

    network = Mine(nn.Conv2d(2, 2, 3, padding=1), OverChannels())
    found = measure(network, spec(channels=2))
    assert (found["radius"], found["statistics"]) == (1, [])


def test_batch_normalisation_is_local_and_named() -> None:
    found = measure(Mine(conv(), nn.BatchNorm2d(1)), spec())
    assert (found["radius"], found["batch_norm"]) == (1, ["BatchNorm2d (body.1)"])


def test_the_mass_of_a_gradient_that_is_known() -> None:
    blur = conv(bias=False)
    nn.init.constant_(blur.weight, 1 / 9)
    found = measure(Mine(blur), spec())
    assert found["gain"] == pytest.approx(1, abs=1e-5)
    assert found["beyond"][:2] == pytest.approx([8 / 9, 0], abs=1e-3) and found["effective_radius"] == 1


def test_runs() -> None:
    assert longest_run([True, False, False, True, False], False) == (1, 3)
    assert longest_run([False, False], False) == (0, 2)
    assert longest_run([True], False) == (0, 0)
