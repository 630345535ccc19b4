"""The identity, 2-D or 3-D: measurements are the image with noise."""

from __future__ import annotations

from deepinv.physics import Denoising, LinearPhysics, ZeroNoise


def build() -> list[LinearPhysics]:
    """deepinv's identity operator."""
    return [Denoising(noise_model=ZeroNoise())]
