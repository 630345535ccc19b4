"""The denoiser as the algorithm calls it: precision and compilation inside, deepinv's tiling outside.

Letters: N tiles x images in a call, C channels, then the spatial axes of one tile's window.
"""

from __future__ import annotations

from typing import Any

import torch
from deepinv.distributed.strategies.distributed_strategies import TilingStrategy
from deepinv.models.base import Denoiser

from dptrain.engine.network_stages import recompute_stages
from dptrain.geometry.tiles import TileGrid


class InnerDenoiser(Denoiser):  # type: ignore[misc]
    """One network applied to a batch of windows, in the precision asked for."""

    def __init__(
        self, network: torch.nn.Module, *, bf16: bool = False, compiled: bool = False, stages: bool = False
    ) -> None:
        """
        :param network: called as network(x, sigma), x of shape (N, C, ...), sigma of shape (N,) in the dtype of x.
        :param bf16: run the network under bfloat16 autocast; iterate and physics keep their dtype.
        :param compiled: torch.compile the network, before anything wraps it.
        :param stages: recompute its stages one by one in the backward pass.
        :raises UsageError: where stages are asked for and the network has none.
        """
        super().__init__()
        assert not (stages and compiled), "the loader refuses it"
        if stages:
            recompute_stages(network)
        self.network = network
        self.bf16 = bf16
        self._call = torch.compile(network) if compiled else network

    def forward(self, x: torch.Tensor, sigma: float | torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Denoise a batch of windows; `sigma` is one number, or one per image (the tiles of a batch follow tile by tile)."""
        count = x.shape[0]
        level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).reshape(-1)
        level = level.repeat(count // level.numel())
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            out = self._call(x, level)
        if out.shape != x.shape:
            raise RuntimeError(
                f"the denoiser returned {tuple(out.shape)} for an input of {tuple(x.shape)}: it must keep it"
            )
        same: torch.Tensor = out.to(x.dtype)
        return same


class GridStrategy(TilingStrategy):  # type: ignore[misc]
    """deepinv's tiling on our grid: also with a patch as long as an axis, and never with zeros instead of a reflection.

    Remembers which tiles this rank executed.
    """

    def __init__(self, grid: TileGrid, batch: int, channels: int) -> None:
        self.grid = grid
        self.executed: set[int] = set()
        super().__init__(
            (batch, channels, *grid.shape),
            tiling_dims=tuple(range(-len(grid.shape), 0)),
            patch_size=grid.patch,
            overlap=grid.halo,
        )

    def _compute_tiling(self) -> None:
        halo = self.grid.halo
        keep = (slice(None), slice(None))
        windows, crops, targets = [], [], []
        for tile in self.grid.tiles():
            windows.append((*keep, *(slice(a.start + halo, a.stop + halo) for a in tile)))
            crops.append((*keep, *(slice(a.core_start - a.start, a.core_stop - a.start) for a in tile)))
            targets.append((*keep, *(slice(a.core_start, a.core_stop) for a in tile)))
        self._global_slices = windows
        self._metadata = {"crop_slices": crops, "target_slices": targets}

    def get_local_patches(self, x: torch.Tensor, local_indices: list[int]) -> list[tuple[int, torch.Tensor]]:
        """Reflect-pad x by the halo and cut this rank's windows."""
        self.executed.update(local_indices)
        halo = self.grid.halo
        padded = reflect_pad(x, halo) if halo else x
        return [(index, padded[self._global_slices[index]]) for index in local_indices]


def reflect_pad(x: torch.Tensor, width: int) -> torch.Tensor:
    """Reflect x of shape (B, C, ...) by `width` pixels at every end of every spatial axis."""
    return torch.nn.functional.pad(x, (width, width) * (x.ndim - 2), mode="reflect")
