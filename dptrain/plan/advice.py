"""What a person would say about a plan: values that buy nothing, and what tiling this network with this halo means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from dptrain.geometry.tiles import Counts, TileGrid
from dptrain.plan.receptive import Receptive
from dptrain.spec.networks import stride
from dptrain.spec.schema import Denoiser, Spec, Task

VISIBLE = 0.02
"""Difference at seams from which on plan warns, five of 255 grey levels."""


def sentences(spec: Spec, task: Task, grid: TileGrid, counts: Counts, receptive: Receptive | None) -> Iterator[str]:
    """Each names one value and, where there is one, what to write instead.

    :param spec: with the decided patch.
    :param receptive: of the denoiser; None: not measured.
    """
    yield from _batches(spec, task, counts)
    if receptive is not None:
        yield from _halo(spec, grid, receptive)
        yield from _statistics(task, grid, receptive)


def seen(spec: Spec, grid: TileGrid, receptive: Receptive) -> str:
    """How far the denoiser sees, and what a halo leaves out at a seam."""
    if receptive.radius is None:
        text = f"the denoiser sees all of {receptive.looked} pixels"
    else:
        text = f"the denoiser sees {receptive.radius} pixels far"
    if receptive.effective_radius is not None and receptive.effective_radius != receptive.radius:
        text += f", all but a thousandth within {receptive.effective_radius}"
        if isinstance(spec.denoiser, Denoiser) and spec.denoiser.weights == "random":
            text += " (with untrained weights; training may widen that)"
    if len(grid) == 1:
        return f"{text}; one tile has no seams"
    share = receptive.share_beyond(grid.halo)
    if share == 0:
        now = "" if receptive.radius is not None and receptive.radius <= grid.halo else " with these weights"
        return f"{text}; halo {grid.halo}: tiles equal the whole image away from its border{now}"
    return (
        f"{text}; halo {grid.halo} leaves out {100 * share:.2g} % of it: expect differences from the whole image of at most about "
        f"{receptive.seam_error(grid.halo):.1g} at seams (image range 1)"
    )


def _batches(spec: Spec, task: Task, counts: Counts) -> Iterator[str]:
    wanted, mode = spec.tiling.max_batch_size, spec.tiling.checkpoint
    if wanted != "fit" and wanted > counts.most:
        yield f"tiling.max_batch_size {wanted} buys nothing over {counts.most}: no rank has more tiles"
    if task == "train" and mode == "auto" and wanted != "fit" and wanted >= counts.most:
        yield (
            "tiling.checkpoint: auto recomputes only where a rank has more than one batch of tiles; here it is never; "
            "write: --set tiling.checkpoint=always, or a smaller max_batch_size"
        )
    if spec.train is None and mode not in ("fit", "never"):
        yield f"tiling.checkpoint: {mode} buys nothing: without training there is nothing to recompute"


def _halo(spec: Spec, grid: TileGrid, receptive: Receptive) -> Iterator[str]:
    halo, radius = grid.halo, receptive.radius
    if len(grid) == 1 or radius is None:
        return
    enough = _suited(spec, grid, radius)
    if enough < halo:
        less = replace(grid, halo=enough).work_multiplier
        yield (
            f"tiling.halo {halo} buys nothing over {enough}: the denoiser sees {radius} pixels far; "
            f"write: --set tiling.halo={enough}, {less:.3g} instead of {grid.work_multiplier:.3g} times the pixels"
        )
    error = receptive.seam_error(halo)
    if error > VISIBLE:
        wider = _suited(spec, grid, next(h for h in range(radius + 1) if receptive.seam_error(h) <= VISIBLE))
        write = f"--set tiling.halo={wider}" if wider < min(grid.shape) else "--set tiling.patch=none, on one rank"
        yield (
            f"tiling.halo {halo} leaves out {100 * receptive.share_beyond(halo):.0f} % of what the denoiser sees: seams may "
            f"differ by {error:.1g} from the whole image; write: {write}"
        )


def _suited(spec: Spec, grid: TileGrid, halo: int) -> int:
    """The smallest halo of at least so many pixels with which windows suit the network; `halo` where none does."""
    multiple = stride(spec.denoiser)
    return next((h for h in range(halo, halo + multiple) if (grid.patch + 2 * h) % multiple == 0), halo)


def _statistics(task: Task, grid: TileGrid, receptive: Receptive) -> Iterator[str]:
    if receptive.radius is None and prod(grid.counts) > 1:
        why = f" ({', '.join(receptive.statistics)})" if receptive.statistics else ""
        yield (
            f"the denoiser looks at the whole image{why}: each tile has statistics of its own, and no halo makes tiles equal "
            "to the untiled network; the result depends on tiling.patch; for the untiled one write: --set tiling.patch=none "
            "--set tiling.halo=0, on one rank"
        )
    if receptive.radius is None and prod(grid.counts) == 1 and grid.halo:
        yield (
            f"the denoiser looks at the whole image, to which tiling.halo {grid.halo} adds a reflected border; "
            "write: --set tiling.halo=0"
        )
    if task == "train" and receptive.batch_norm:
        yield (
            f"{', '.join(receptive.batch_norm)}: in training its statistics are those of the tiles of one call, so that they "
            "depend on tiling and ranks"
        )
