"""A denoiser applied tile by tile to this rank's box of the image.

Fetch the windows of this rank's tiles (its own box with a halo where tiles are balanced, else where its tiles lie), reflect only at
the borders of the image, run batches of tiles through the inner denoiser, return the cores to their owners. Same tiles and same
padding as deepinv's tiling of the whole image, so the answer is the same.

With recomputation one autograd function keeps the haloed block and nothing else: the backward pass runs each batch again and
writes the gradients of all windows into one buffer. Cost: one more forward pass. Gradients of the weights are added to `.grad`
on this rank as the backward pass goes (so `loss.backward()`, not `torch.autograd.grad`); summing them over ranks is the trainer's.

Letters: x is (B, C, *box): B images, C channels, this rank's box; a batch of n tiles is (n B, C, *window), tile by tile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dptrain.engine.exchange import Exchange
from dptrain.geometry.boxes import Box, clip, shape_of, slices
from dptrain.geometry.dealing import TileBlock, deal_tiles
from dptrain.geometry.messages import exchange_plan
from dptrain.geometry.tiles import TileGrid

RECOMPUTE_MODES = ("auto", "always", "never", "stages")
"""deepinv's meanings: auto recomputes where a rank has more than one batch; nothing is kept in a pass without gradient. `stages`
is always, for a processor that recomputes its stages once more inside."""


@dataclass(frozen=True, kw_only=True)
class _Tile:
    """Where one tile lies in this rank's blocks; places are indices of (B, C, ...)."""

    block: int
    window: Box
    """What is read, clipped to the image."""
    core: Box
    read: tuple[slice, ...]
    """The window in its block."""
    reflect: tuple[int, ...]
    """Widths as torch's pad takes them, last axis first; all zero inside the image."""
    crop: tuple[slice, ...]
    """The core in the denoised window."""
    write: tuple[slice, ...]
    """The core in its block's core."""


@dataclass(frozen=True)
class _Batch:
    """Tiles of one call."""

    tiles: list[_Tile]
    fill: int
    """How often the last one is repeated, to keep the shape; the repeats are thrown away."""


class ShardedDenoiser(torch.nn.Module):
    """The inner denoiser on every tile of the image, each rank holding its own box."""

    def __init__(
        self,
        processor: torch.nn.Module,
        grid: TileGrid,
        owned: Sequence[Box],
        rank: int,
        group: dist.ProcessGroup | None = None,
        *,
        max_batch_size: int,
        checkpoint: str,
        fill_batches: bool = False,
        on_sent: Callable[[int], None] | None = None,
    ) -> None:
        """
        :param processor: called as processor(x, sigma) on batches of windows; keeps their shape.
        :param owned: box of every rank, as `split_boxes` makes them.
        :param rank: this rank within `group`.
        :param max_batch_size: tiles per call. Batches are made equally long, so 5 tiles by at most 4 are 3 and 2.
        :param checkpoint: auto, always, never or stages.
        :param fill_batches: repeat the last tile until every batch has one shape; for compiled networks, which would compile anew.
        :param on_sent: called with the bytes of every exchange.
        """
        super().__init__()
        assert checkpoint in RECOMPUTE_MODES, checkpoint
        self.processor, self.checkpoint = processor, checkpoint
        self.dealing = deal_tiles(grid, owned)
        blocks = self.dealing.blocks[rank]
        tiles = [_tiles(grid, block, number) for number, block in enumerate(blocks)]
        self.tile_ids = [tile for block in blocks for tile in block.tiles]
        self.batches = _batches(list(itertools.chain(*tiles)), max_batch_size, fill_batches)
        self._fetch = Exchange(self.dealing.fetch_plan(), rank, group, on_sent, "tiles")
        self._return = Exchange(self.dealing.return_plan(), rank, group, on_sent, "cores")
        self._core_shapes = [shape_of(core) for core in self._return.held]
        pairs = [_cut_and_stitch(block, own, grid.shape) for block, own in zip(blocks, tiles, strict=True)]
        self._cut, self._stitch = [cut for cut, _ in pairs], [stitch for _, stitch in pairs]

    @property
    def bytes_sent(self) -> int:
        """By this rank, so far, forwards and backwards."""
        return self._fetch.bytes_sent + self._return.bytes_sent

    def forward(self, x: torch.Tensor, sigma: float | torch.Tensor) -> torch.Tensor:
        """Denoise this rank's box (B, C, *box); `sigma` is one number, or one per image.

        All ranks of the group call it together, also those without tiles.
        """
        level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
        blocks = self._fetch.gather(x)
        # A rank without tiles must still take part in the backward pass of the exchanges.
        anchor = next((p for p in self.processor.parameters() if p.requires_grad), None)
        keep = self.checkpoint == "never" or (self.checkpoint == "auto" and len(self.batches) == 1)
        if keep and self.batches and torch.is_grad_enabled():
            cores = self._run(level, blocks)
        else:
            cores = _RecomputedTiles.apply(self, level, anchor, *blocks)
        (out,) = self._return.gather(*cores)
        return out

    def denoise(self, level: torch.Tensor, blocks: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Cores of blocks, without a graph."""
        cores = [blocks[0].new_empty((*blocks[0].shape[:2], *shape)) for shape in self._core_shapes]
        for batch in self.batches:
            windows = [blocks[tile.block][tile.read] for tile in batch.tiles]
            out = self.processor(_stack(windows, batch), level)
            for tile, part in _by_tile(out, batch):
                cores[tile.block][tile.write] = part[tile.crop]
        return tuple(cores)

    def denoise_backward(
        self,
        level: torch.Tensor,
        blocks: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        wanted: Sequence[bool],
    ) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        """Gradients of the level and of the blocks, where wanted; those of the weights go into `.grad`.

        :param gradients: of the cores.
        :param wanted: of the level and of each block.
        """
        to_level = torch.zeros_like(level) if wanted[0] else None
        to_blocks = [torch.zeros_like(b) if want else None for b, want in zip(blocks, wanted[1:], strict=True)]
        for batch in self.batches:
            self._batch_backward(batch, level, blocks, gradients, to_level, to_blocks)
        return to_level, to_blocks

    def _batch_backward(
        self,
        batch: _Batch,
        level: torch.Tensor,
        blocks: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        to_level: torch.Tensor | None,
        to_blocks: Sequence[torch.Tensor | None],
    ) -> None:
        """Add one batch's gradients; its windows are gone before the next one's are made."""
        with torch.enable_grad():
            leaves = [
                blocks[tile.block][tile.read].detach().requires_grad_(to_blocks[tile.block] is not None)
                for tile in batch.tiles
            ]
            own_level = level.detach().requires_grad_(to_level is not None)
            out = self.processor(_stack(leaves, batch), own_level)
        if not out.requires_grad:
            return
        torch.autograd.backward(out, _to_windows(out, batch, gradients))
        del out
        for tile, leaf in zip(batch.tiles, leaves, strict=True):
            buffer = to_blocks[tile.block]
            if buffer is not None and leaf.grad is not None:
                buffer[tile.read] += leaf.grad
        if to_level is not None and own_level.grad is not None:
            to_level += own_level.grad

    def _run(self, level: torch.Tensor, blocks: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Cores of blocks through plain autograd, which keeps every activation."""
        windows = [window for cut, block in zip(self._cut, blocks, strict=True) for window in cut.gather(block)]
        parts: list[torch.Tensor] = []
        for batch in self.batches:
            out = self.processor(_stack(windows[len(parts) : len(parts) + len(batch.tiles)], batch), level)
            parts += [part[tile.crop] for tile, part in _by_tile(out, batch)]
        cores: list[torch.Tensor] = []
        done = 0
        for stitch in self._stitch:
            cores += stitch.gather(*parts[done : done + len(stitch.held)])
            done += len(stitch.held)
        return tuple(cores)


class _RecomputedTiles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tiles: ShardedDenoiser, level: torch.Tensor, anchor: torch.Tensor | None, *blocks: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.tiles = tiles
        ctx.random_state = _random_state(blocks[0].device) if any(ctx.needs_input_grad) else None
        ctx.save_for_backward(level, *blocks)
        return tiles.denoise(level, blocks)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        level, *blocks = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[1], *ctx.needs_input_grad[3:]]
        with _replayed(ctx.random_state, blocks[0].device):
            to_level, to_blocks = ctx.tiles.denoise_backward(level, blocks, gradients, wanted)
        return None, to_level, None, *to_blocks


def _tiles(grid: TileGrid, block: TileBlock, number: int) -> list[_Tile]:
    every = grid.tiles()
    made = []
    for i in block.tiles:
        full = tuple((t.start, t.stop) for t in every[i])
        core = tuple((t.core_start, t.core_stop) for t in every[i])
        window = clip(full, grid.shape)
        missing = [(a - f, g - b) for (a, b), (f, g) in zip(window, full, strict=True)]
        made.append(
            _Tile(
                block=number,
                window=window,
                core=core,
                read=slices(window, block.window, lead=2),
                reflect=tuple(width for pair in reversed(missing) for width in pair),
                crop=slices(core, full, lead=2),
                write=slices(core, block.core, lead=2),
            )
        )
    return made


def _batches(tiles: list[_Tile], max_batch_size: int, fill: bool) -> list[_Batch]:
    if not tiles:
        return []
    count = -(-len(tiles) // max_batch_size)
    size = -(-len(tiles) // count)
    parts = [tiles[i : i + size] for i in range(0, len(tiles), size)]
    return [_Batch(part, size - len(part) if fill else 0) for part in parts]


def _cut_and_stitch(block: TileBlock, tiles: Sequence[_Tile], shape: tuple[int, ...]) -> tuple[Exchange, Exchange]:
    """A block into the windows of its tiles, and their cores into one: exchanges of a rank with itself."""
    cut = exchange_plan([[block.window]], [[tile.window for tile in tiles]], shape)
    stitch = exchange_plan([[tile.core for tile in tiles]], [[block.core]], shape)
    return Exchange(cut, 0), Exchange(stitch, 0)


def _stack(windows: Sequence[torch.Tensor], batch: _Batch) -> torch.Tensor:
    """Windows as one batch, reflected where the image ends."""
    padded = [
        torch.nn.functional.pad(window, tile.reflect, mode="reflect") if any(tile.reflect) else window
        for window, tile in zip(windows, batch.tiles, strict=True)
    ]
    padded += padded[-1:] * batch.fill
    return padded[0] if len(padded) == 1 else torch.cat(padded)


def _by_tile(out: torch.Tensor, batch: _Batch) -> list[tuple[_Tile, torch.Tensor]]:
    """The windows (B, C, *window) of a batch, without those that only fill it."""
    parts = out.chunk(len(batch.tiles) + batch.fill)
    return list(zip(batch.tiles, parts, strict=False))


def _to_windows(out: torch.Tensor, batch: _Batch, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Gradients of cores as gradients of a batch, zero around them."""
    made = torch.zeros_like(out)
    for tile, part in _by_tile(made, batch):
        part[tile.crop] = gradients[tile.block][tile.write]
    return made


def _random_state(device: torch.device) -> list[torch.Tensor]:
    """Of the CPU and of the device."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


@contextmanager
def _replayed(state: list[torch.Tensor], device: torch.device) -> Iterator[None]:
    """Random layers draw inside what they drew when `state` was taken."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.set_rng_state(state[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(state[1], device)
        yield
