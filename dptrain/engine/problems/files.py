"""Image files as tensors: PNG, JPEG, TIFF, NPY; gray and colour, 8 and 16 bit, floating point; 2-D and 3-D.

Rules, each refused with one message where it cannot hold:
    values    integers of 8 and 16 bits map their full range to [0, 1], `data.range` maps (low, high) to [0, 1], floating point
              stays; NaN and Inf are refused
    channels  a colour file gives luminance where the spec has one channel; a gray file never becomes colour; alpha is dropped
    size      equal to `image_size`, or cut by `data.crop`; a smaller file is refused
"""

from __future__ import annotations

import glob
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from dptrain.engine.problems.random_fields import generator
from dptrain.engine.problems.tiff import Slicable, open_tiff
from dptrain.errors import UsageError
from dptrain.geometry.boxes import Box

Array = NDArray[Any]
LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green, blue in a gray image (ITU-R BT.601, as Pillow's)."""

log = logging.getLogger("dptrain")


def expand(patterns: Sequence[str], where: str) -> list[Path]:
    """Files of paths and globs: a glob's sorted, each file once, in the order of the patterns."""
    found: list[Path] = []
    for pattern in patterns:
        matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
        files = [Path(match) for match in matches if Path(match).is_file()]
        if not files:
            folder = Path(pattern).is_dir()
            raise UsageError(
                f"{where}: no file {pattern}" + (f"\n    write: {pattern.rstrip('/')}/*.png" if folder else "")
            )
        found += files
    return list(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True)
class TruthFile:
    """The image of a file, (C, *image_size), read whole or box by box; opened when first asked."""

    path: Path
    image_size: tuple[int, ...]
    channels: int
    value_range: tuple[float, float] | None
    crop: Literal["none", "center", "random"]
    key: tuple[int | str, ...]
    """What a random crop is drawn from."""
    dtype: torch.dtype

    @property
    def in_parts(self) -> bool:
        """NPY and TIFF; PNG and JPEG are decoded whole."""
        return self.path.suffix.lower() in (".npy", ".tif", ".tiff")

    @property
    def bits(self) -> int:
        """Of its samples."""
        return bits_of(self._opened[0])

    def read(self, box: Box | None) -> Tensor:
        """The image in [0, 1] where the file has a range, on a box or whole.

        :raises UsageError: a file that cannot be read as the spec says.
        """
        array, channels, starts = self._opened
        window = box if box is not None else tuple((0, n) for n in self.image_size)
        places = (slice(a + s, b + s) for (a, b), s in zip(window, starts, strict=True))
        image = to_unit(self.path, np.asarray(array[(channels, *places)]), self.value_range, self.dtype)
        if len(image) == 3 and self.channels == 1:
            weights = torch.tensor(LUMINANCE, dtype=self.dtype).reshape(3, *(1 for _ in self.image_size))
            image = (image * weights).sum(0, keepdim=True)
        return image

    @cached_property
    def _opened(self) -> tuple[Slicable, slice, tuple[int, ...]]:
        """Samples with channels first, the channels to take, and where the image starts."""
        array, has_alpha = _open(self.path, len(self.image_size))
        channels = _channels(self.path, array.shape, self.channels, has_alpha)
        array = _with_range(self.path, array, self.value_range)
        return array, channels, _starts(self.path, array.shape[1:], self.image_size, self.crop, self.key)


@dataclass(frozen=True, kw_only=True)
class MeasuredFile:
    """One operator's measurements in an NPY file, (C, ...)."""

    path: Path
    operator: int | None
    """Its place along the first axis; None: the file has no such axis."""
    value_range: tuple[float, float] | None
    dtype: torch.dtype

    in_parts = True

    @property
    def bits(self) -> int:
        """Of the file's samples."""
        return bits_of(self.array)

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, ...)."""
        return self.array.shape

    @cached_property
    def array(self) -> Array:
        """The measurements as they lie in the file."""
        array: Array = _with_range(self.path, read_npy(self.path), self.value_range)
        one: Array = array if self.operator is None else array[self.operator]
        return one

    def read(self, box: Box | None) -> Tensor:
        """The measurements of a box, or all."""
        places = () if box is None else tuple(slice(*interval) for interval in box)
        return to_unit(self.path, np.asarray(self.array[(slice(None), *places)]), self.value_range, self.dtype)


def bits_of(array: Array | Slicable) -> int:
    """8, 16 or 32: what an output file must hold not to lose what the input had."""
    return {1: 8, 2: 16}.get(array.dtype.itemsize, 32) if array.dtype.kind in "uib" else 32


def _with_range(path: Path, array: Any, value_range: tuple[float, float] | None) -> Any:
    """The array, if its values have a range. Said of the whole file, also by a rank that reads a part of it."""
    if value_range is None and array.dtype.kind in "ui" and array.dtype.itemsize > 2:
        values = np.asarray(array[(slice(None),) * len(array.shape)])
        raise UsageError(
            f"{path}: {array.dtype} values have no usual range; they lie in [{values.min()}, {values.max()}]\n"
            f"    write: data: {{range: [{values.min()}, {values.max()}], ...}} or the range of your detector"
        )
    return array


def to_unit(path: Path, array: Array, value_range: tuple[float, float] | None, dtype: torch.dtype) -> Tensor:
    """Values as floating point, mapped so that `value_range` becomes [0, 1]."""
    kind = array.dtype.kind
    if kind not in "uibf":
        raise UsageError(f"{path}: values of type {array.dtype}; expected integers or real floating point")
    if kind == "f" and not np.isfinite(array).all():
        raise UsageError(f"{path}: {int((~np.isfinite(array)).sum())} of {array.size} values are NaN or infinite")
    image = torch.from_numpy(np.array(array, dtype=np.float64 if dtype is torch.float64 else np.float32, order="C"))
    if value_range is None and kind in "ui":
        limits = np.iinfo(array.dtype)
        value_range = (float(limits.min), float(limits.max))
    if value_range is not None:
        low, high = value_range
        image = (image - low) / (high - low)
    return image.to(dtype)


def read_npy(path: Path) -> Array:
    """An NPY file, mapped into memory; files with pickled objects are refused."""
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise UsageError(f"{path}: not a readable NPY file of numbers ({error})") from None


def _open(path: Path, axes: int) -> tuple[Slicable, bool]:
    """Samples with channels first, and whether the last channel of 2 or 4 is alpha."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _npy(path, axes), False
    if suffix in (".tif", ".tiff"):
        return open_tiff(path, axes)
    if suffix in (".png", ".jpg", ".jpeg"):
        if axes != 2:
            raise UsageError(
                f"{path}: a {suffix[1:].upper()} is 2-D, image_size has {axes} axes; volumes are read from TIFF or NPY"
            )
        return _raster(path)
    raise UsageError(
        f"{path}: cannot read {suffix or 'a file without suffix'}; formats: .png .jpg .jpeg .tif .tiff .npy"
    )


def _npy(path: Path, axes: int) -> Array:
    array = read_npy(path)
    if array.ndim == axes:
        return array[None]
    if array.ndim == axes + 1:
        return array
    raise UsageError(
        f"{path}: an array of shape {list(array.shape)}; expected {axes} axes (one channel) or {axes + 1} with channels first"
    )


def _raster(path: Path) -> tuple[Array, bool]:
    if _is_16_bit_colour_png(path):
        # Pillow would read it with 8 bits, without a word.
        raise UsageError(
            f"{path}: a colour PNG of 16 bits cannot be read with all its bits\n    save it as TIFF or NPY"
        )
    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened)
            if picture.mode in ("P", "1"):
                picture = picture.convert(
                    "RGBA" if "transparency" in picture.info else "RGB" if picture.mode == "P" else "L"
                )
            if picture.mode not in ("L", "LA", "RGB", "RGBA", "I;16", "I"):
                raise UsageError(f"{path}: colour model {picture.mode}; convert the file to RGB or gray")
            array = np.asarray(picture)
    except OSError as error:
        raise UsageError(f"{path}: not a readable image ({error})") from None
    if array.dtype == np.int32:  # mode I: a 16-bit gray PNG in some versions of Pillow
        array = array.astype(np.uint16)
    return (array[None], False) if array.ndim == 2 else (np.moveaxis(array, -1, 0), True)


def _is_16_bit_colour_png(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(26)
    if len(head) < 26 or head[:8] != b"\x89PNG\r\n\x1a\n":
        return False
    bits, colour_type = struct.unpack("BB", head[24:26])
    return bool(bits == 16 and colour_type != 0)


def _channels(path: Path, shape: tuple[int, ...], channels: int, has_alpha: bool) -> slice:
    """Which of the file's channels: without alpha; three where luminance is wanted (mixed after scaling)."""
    have = shape[0]
    if have == channels:
        return slice(None)
    taken = slice(None)
    if has_alpha and have in (2, 4):
        log.warning("%s: alpha channel dropped", path)
        taken, have = slice(0, have - 1), have - 1
    if have == channels or (have == 3 and channels == 1):
        return taken
    advice = f"\n    write: problem: {{channels: {have}}}"
    if shape[-1] in (channels, 3) and len(shape) == 3:
        advice = "\n    save it with channels first: numpy.moveaxis(a, -1, 0)"
    raise UsageError(f"{path}: {have} channel{'s' * (have != 1)}, problem.channels is {channels}" + advice)


def _starts(
    path: Path,
    have: tuple[int, ...],
    want: tuple[int, ...],
    crop: Literal["none", "center", "random"],
    key: tuple[int | str, ...],
) -> tuple[int, ...]:
    """Where `image_size` begins in a file's image."""
    if have == want:
        return (0,) * len(want)
    if any(h < w for h, w in zip(have, want, strict=True)):
        raise UsageError(
            f"{path}: {_by(have)} pixels, smaller than image_size {_by(want)}\n    write: image_size: {list(have)}"
        )
    if crop == "none":
        raise UsageError(
            f"{path}: {_by(have)} pixels, image_size is {_by(want)}\n"
            f"    write: image_size: {list(have)}, or data: {{crop: center}} or {{crop: random}}"
        )
    if crop == "center":
        return tuple((h - w) // 2 for h, w in zip(have, want, strict=True))
    drawn = torch.rand(len(want), generator=generator(*key, "crop"), dtype=torch.float64).tolist()
    return tuple(int(u * (h - w + 1)) for u, h, w in zip(drawn, have, want, strict=True))


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))
