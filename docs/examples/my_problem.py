"""Physics, data and denoiser of one's own, for a spec like own-code.yaml beside this file.

Each function gets, by name, the arguments it asks for: those dptrain offers (docs/problems.md lists them) and the keys written
beside `factory:` in the spec.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from deepinv.physics import GaussianNoise, LinearPhysics, stack
from torch import Tensor, nn


class PairMeans(LinearPhysics):
    """Means of neighbouring pixels along one axis: half as many samples."""

    def __init__(self, axis: int, noise_std: float) -> None:
        super().__init__(noise_model=GaussianNoise(noise_std))
        self.axis = axis

    def A(self, x: Tensor, **kwargs: object) -> Tensor:
        return x.unflatten(self.axis, (-1, 2)).mean(self.axis)

    def A_adjoint(self, y: Tensor, **kwargs: object) -> Tensor:
        return y.repeat_interleave(2, self.axis) / 2


def build_physics(image_size: tuple[int, ...], noise_std: float = 0.0) -> LinearPhysics:
    """Two operators: means along rows, and along columns. The noise of simulated data is the operators' own noise model."""
    assert all(n % 2 == 0 for n in image_size)
    return stack(PairMeans(-1, noise_std), PairMeans(-2, noise_std))


class Rings(Sequence[Tensor]):
    """Image i shows rings around a random centre; made when asked for, never kept."""

    def __init__(self, image_size: tuple[int, ...], channels: int, count: int, seed: int) -> None:
        self.image_size, self.channels, self.length, self.seed = image_size, channels, count, seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if not 0 <= index < self.length:
            raise IndexError(index)
        drawn = torch.rand(3, generator=torch.Generator().manual_seed(1000 * self.seed + index))
        axes = torch.meshgrid(*(torch.linspace(0, 1, n) for n in self.image_size), indexing="ij")
        radius = sum((axis - centre) ** 2 for axis, centre in zip(axes, drawn[1:], strict=True)) ** 0.5
        image = 0.5 + 0.5 * torch.sign(torch.sin(radius * (10 + 30 * drawn[0])))
        return image.expand(self.channels, *self.image_size)


def build_data(image_size: tuple[int, ...], channels: int, count: int | None, seed: int) -> Sequence[Tensor]:
    """Truths of shape (channels, *image_size). `count`: as many as will be used, None: all there are."""
    return Rings(image_size, channels, 1 if count is None else count, seed)


class Smoother(nn.Module):
    """Blends each pixel with the mean of its neighbours, by a weight that can be trained."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(strength))

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        smooth = nn.functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).reshape(-1, 1, 1, 1)
        weight = self.strength * level / (level + 0.05)
        return x + weight * (smooth - x)


def build_denoiser(strength: float) -> nn.Module:
    """Any module whose `forward(x, sigma)` takes x of shape (B, C, H, W) and a noise level, a number or one per image."""
    return Smoother(strength)
