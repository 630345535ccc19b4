"""Every value plan decides, with its reason: both are printed and recorded, and the ranks read the value from plan.json."""

from __future__ import annotations

from dataclasses import dataclass

from dptrain.spec.schema import Spec, Task


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One decision."""

    key: str
    """Spec key."""
    value: int | str
    reason: str


def max_batch_size(spec: Spec, tiles_per_rank: int) -> Choice:
    """Tiles per denoiser call."""
    wanted = spec.tiling.max_batch_size
    key = "tiling.max_batch_size"
    if wanted == "fit":
        return Choice(
            key=key, value=1, reason="fit: one tile per call needs the least memory; memory is not forecast yet"
        )
    if wanted > tiles_per_rank >= 1:
        return Choice(
            key=key, value=tiles_per_rank, reason=f"{wanted} asked for, a rank has at most {tiles_per_rank} tiles"
        )
    return Choice(key=key, value=wanted, reason="as the spec says")


def checkpoint(spec: Spec, task: Task) -> Choice:
    """Activation checkpointing mode."""
    key, wanted = "tiling.checkpoint", spec.tiling.checkpoint
    if wanted != "fit":
        return Choice(key=key, value=wanted, reason="as the spec says")
    if task == "infer":
        return Choice(key=key, value="never", reason="fit: without gradients there is nothing to recompute")
    return Choice(key=key, value="always", reason="fit: recomputing needs the least memory; memory is not forecast yet")
