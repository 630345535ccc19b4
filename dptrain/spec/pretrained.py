"""Where downloaded weights lie, known without importing torch."""

from __future__ import annotations

import os
from pathlib import Path

from dptrain.errors import PlanRefused
from dptrain.spec.schema import Factory, Spec

PRETRAINED = {
    ("drunet", 1): "drunet_deepinv_gray_finetune_26k.pth",
    ("drunet", 3): "drunet_deepinv_color_finetune_22k.pth",
    ("dncnn", 1): "dncnn_sigma2_gray.pth",
    ("dncnn", 3): "dncnn_sigma2_color.pth",
}
"""deepinv's weight files, by denoiser and channels. The dncnn ones were trained at noise level 2/255 only."""


def download_folder() -> Path:
    """Where torch keeps downloaded weights: `$TORCH_HOME/hub/checkpoints`, by default under `~/.cache/torch`."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("TORCH_HOME") or f"{cache}/torch").expanduser() / "hub" / "checkpoints"


def pretrained_file(spec: Spec) -> Path | None:
    """The file that `weights: pretrained` needs on the compute nodes; None where the spec needs no download.

    Raises PlanRefused where deepinv offers none for this network.
    """
    denoiser = spec.denoiser
    if isinstance(denoiser, Factory) or denoiser.name == "identity" or denoiser.weights != "pretrained":
        return None
    name = PRETRAINED.get((denoiser.name, spec.problem.channels))
    if name is None or len(spec.problem.image_size) != 2:
        offered = ", ".join(f"{network} with {channels}" for network, channels in PRETRAINED)
        raise PlanRefused(
            f"denoiser.weights: pretrained: deepinv has no weights for {denoiser.name} with {spec.problem.channels} channels in "
            f"{len(spec.problem.image_size)}-D; it has, in 2-D: {offered} channels"
        )
    return download_folder() / name


def require_pretrained(spec: Spec) -> None:
    """Raise PlanRefused where the spec needs a downloaded file that is not there."""
    path = pretrained_file(spec)
    if path is not None and not path.is_file():
        raise PlanRefused(
            f"denoiser.weights: pretrained: no {path}, where compute nodes look\n    write: dptrain prepare SPEC, on a node with internet"
        )
