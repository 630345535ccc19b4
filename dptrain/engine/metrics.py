"""PSNR and SSIM of an iterate against its truth, image range [0, 1]."""

from __future__ import annotations

import math
from typing import cast

import torch
from torchmetrics.functional.image import structural_similarity_index_measure

SSIM_WINDOW = 11
"""Edge of SSIM's Gaussian window (Wang et al., Image quality assessment, 2004); smaller images have no SSIM."""


def squared_error(x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Sum of squared differences, a float64 scalar."""
    return (x - truth).square().sum(dtype=torch.float64)


def psnr_db(x: torch.Tensor, truth: torch.Tensor) -> float:
    """Peak signal-to-noise ratio in dB over all images of the batch; 1 is the peak. Equal images: inf."""
    return psnr_of_mse(float(squared_error(x, truth)) / x.numel())


def psnr_of_mse(mse: float) -> float:
    """The same from the mean squared error."""
    if mse == 0:
        return math.inf
    return -10 * math.log10(mse) if mse == mse else math.nan


def ssim(x: torch.Tensor, truth: torch.Tensor) -> float | None:
    """Structural similarity, mean over all pixels of the batch; None where an axis is shorter than the window."""
    if min(x.shape[2:]) < SSIM_WINDOW:
        return None
    return float(ssim_map(x, truth).mean(dtype=torch.float64))


def ssim_map(x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Structural similarity of the windows around every pixel, (B, C, ...); what lies outside is reflected.

    Every axis is longer than half a window.
    """
    _, values = structural_similarity_index_measure(x, truth, data_range=1.0, return_full_image=True)
    return cast(torch.Tensor, values)
