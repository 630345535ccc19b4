"""N frames of one scene: a Gaussian blur at angle 180 i / N degrees (5 x 5, circular boundary), then decimation. 2-D."""

from __future__ import annotations

import torch
from deepinv.physics import Blur, Downsampling, LinearPhysics, compose
from deepinv.physics.functional import gaussian_blur

from dptrain.errors import UsageError


def build(
    *, image_size: tuple[int, ...], channels: int, frames: int, factor: int, blur_sigma: tuple[float, ...]
) -> list[LinearPhysics]:
    """One operator per frame, decimation after blur, float64 kernels."""
    if len(image_size) != 2:
        raise UsageError(
            f"problem.physics: multiframe_superres is 2-D, image_size {list(image_size)} has {len(image_size)} axes\n"
            "    write: physics: {name: deblur}"
        )
    if any(n % factor for n in image_size):
        raise UsageError(
            f"problem.physics.factor: {factor} does not divide every axis of image_size {list(image_size)}"
        )
    sigma = blur_sigma * 2 if len(blur_sigma) == 1 else blur_sigma
    operators = []
    for frame in range(frames):
        kernel = gaussian_blur(psf_size=(5, 5), sigma=sigma, angle=180 * frame / frames, dtype=torch.float64)
        blur = Blur(filter=kernel, padding="circular")
        decimation = Downsampling(img_size=(channels, *image_size), filter=None, factor=factor, padding="circular")
        operators.append(compose(blur, decimation))
    return operators
