"""What is known of the denoisers without building one: strides and stages. Imports no torch."""

from __future__ import annotations

from dptrain.spec.schema import Denoiser, Factory

STAGED = ("drunet", "unet")
"""Networks whose stages are known, for `tiling.checkpoint: stages`; user code says on the ranks whether it has any."""


def stride(denoiser: Denoiser | Factory) -> int:
    """The multiple that every side of an input must be for the network to take its plain path: 8 for drunet (others are split or
    padded inside deepinv), 2 to the number of poolings for unet, 1 for dncnn and identity; 1 for user code, which is not known."""
    if isinstance(denoiser, Factory):
        return 1
    if denoiser.name == "unet":
        return int(2 ** ((denoiser.scales or 4) - 1))
    return 8 if denoiser.name == "drunet" else 1


def smallest_window(denoiser: Denoiser | Factory) -> int:
    """Pixels that every side of an input must have at least for the network to take its plain path: 32 for drunet."""
    return 32 if isinstance(denoiser, Denoiser) and denoiser.name == "drunet" else stride(denoiser)
