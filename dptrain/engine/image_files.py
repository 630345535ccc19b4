"""Image files written slab by slab, in NumPy: the whole image is never in memory.

A slab is (C, rows, ...), some rows of the first spatial axis of an image (C, H, W) or (C, D, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

PREVIEW_PIXELS = 2048
"""Longest edge of a picture meant to be looked at; the arrays keep every pixel."""


class NpyFile:
    """An NPY file of shape (C, ...)."""

    def __init__(self, path: Path, shape: Sequence[int], like: torch.Tensor) -> None:
        """
        :param like: of the dtype of the file.
        """
        self._shape = tuple(shape)
        dtype = like.new_empty(0).cpu().numpy().dtype
        self._row_bytes = int(np.prod(self._shape[2:])) * dtype.itemsize
        self._file = path.open("wb")
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._begin = self._file.tell()

    def write(self, start: int, slab: Array) -> None:
        """Rows from `start` on."""
        for channel, rows in enumerate(slab):
            self._file.seek(self._begin + (channel * self._shape[1] + start) * self._row_bytes)
            self._file.write(np.ascontiguousarray(rows).data)

    def close(self) -> None:
        """After the last slab."""
        self._file.close()


class TiffFile:
    """A TIFF file of 16 bits that maps [0, 1] to their range; three or four channels as samples of pixels."""

    def __init__(self, path: Path, shape: Sequence[int]) -> None:
        channels, *rest = shape
        self._last = channels in (3, 4)
        file_shape = (*rest, channels) if self._last else (channels, *rest)
        colour = "rgb" if channels == 3 else "minisblack"
        self._array = tifffile.memmap(path, shape=file_shape, dtype=np.uint16, photometric=colour)

    def write(self, start: int, slab: Array) -> None:
        """Rows from `start` on."""
        scaled = np.round(np.clip(slab, 0, 1) * 65535).astype(np.uint16)
        rows = slice(start, start + slab.shape[1])
        if self._last:
            self._array[rows] = np.moveaxis(scaled, 0, -1)
        else:
            self._array[:, rows] = scaled
        self._array.flush()


class Preview:
    """An image as 8 bits, (h, w) or (h, w, 3), about `PREVIEW_PIXELS` long at most: means of blocks; of a volume the middle slice."""

    def __init__(self, shape: Sequence[int]) -> None:
        """
        :param shape: (C, H, W) or (C, D, H, W) of the image.
        """
        self._middle = shape[1] // 2 if len(shape) == 4 else None
        # Of a thin image all rows remain.
        self._block = max(1, min(-(-max(shape[-2:]) // PREVIEW_PIXELS), *shape[-2:]))
        height, width = (n // self._block for n in shape[-2:])
        self._colour = shape[0] >= 3
        self._pixels = np.zeros((height, width, 3 if self._colour else 1), np.uint8)

    @property
    def factor(self) -> int:
        """What the first row of every slab must be a multiple of."""
        return self._block if self._middle is None else 1

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """What was added so far."""
        return self._pixels if self._colour else self._pixels[..., 0]

    def add(self, start: int, slab: Array) -> None:
        """Rows from `start` on."""
        shown = slab[:3] if self._colour else slab[:1]
        if self._middle is None:
            self._put(start // self._block, shown)
        elif start <= self._middle < start + slab.shape[1]:
            self._put(0, shown[:, self._middle - start])

    def _put(self, row: int, plane: Array) -> None:
        block, width = self._block, self._pixels.shape[1]
        height = plane.shape[1] // block
        cut = plane[:, : height * block, : width * block].reshape(len(plane), height, block, width, block)
        pixels = np.round(np.nan_to_num(np.clip(cut.mean((2, 4)), 0, 1)) * 255).astype(np.uint8)
        self._pixels[row : row + height] = np.moveaxis(pixels, 0, -1)
