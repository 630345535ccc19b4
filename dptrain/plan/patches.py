"""The edge of a patch: as the spec says, or fitted to image, halo, network and ranks."""

from __future__ import annotations

from dataclasses import replace

from dptrain.errors import PlanRefused
from dptrain.geometry.patches import fit_patch, measured
from dptrain.geometry.tiles import tile_grid
from dptrain.plan.choices import Choice
from dptrain.plan.layouts import owned_boxes
from dptrain.spec.networks import smallest_window, stride
from dptrain.spec.schema import Spec

KEY = "tiling.patch"
MOST_RANKS = 4096
"""The work of a plan grows with the square of the ranks, and takes half a minute there."""


def decide_patch(spec: Spec) -> tuple[Spec, Choice]:
    """The spec with a patch that is a number or `none`, and why; it is this spec that the ranks read and that a fingerprint is of.

    :raises PlanRefused: for more ranks than are looked at.
    """
    if spec.resources.gpus > MOST_RANKS:
        raise PlanRefused(
            f"resources.gpus is {spec.resources.gpus}: no more than {MOST_RANKS} ranks are planned\n"
            f"    write: --set resources.gpus={MOST_RANKS} or less"
        )
    wanted, size = spec.tiling.patch, spec.problem.image_size
    if wanted == "fit":
        return _fitted(spec)
    reason = "as the spec says"
    if wanted == "none":
        reason = "as the spec says: the whole image at once"
    elif wanted >= max(size):
        reason = f"{wanted} is at least as long as every axis: one tile, as with none"
    return spec, Choice(key=KEY, value=wanted, reason=reason)


def _fitted(spec: Spec) -> tuple[Spec, Choice]:
    ranks, owned = spec.resources.ranks_per_replica, owned_boxes(spec)
    multiple, smallest = stride(spec.denoiser), smallest_window(spec.denoiser)
    halo = spec.tiling.halo
    found = fit_patch(spec.problem.image_size, halo, ranks, owned, stride=multiple, smallest_window=smallest)
    decided = replace(spec, tiling=replace(spec.tiling, patch=found.edge))
    reason = f"fit: the busiest rank denoises {found.load:.3g} times its share of the pixels, halos included"
    usual = measured(tile_grid(spec.problem.image_size, type(spec.tiling)(halo=halo)), ranks, owned)
    if usual.load > found.load * 1.005:
        reason += f" ({usual.load:.3g} with patch {usual.edge})"
    if multiple > 1:
        reason += f"; windows are multiples of {multiple}, as the network needs"
    return decided, Choice(key=KEY, value=found.edge, reason=reason)
