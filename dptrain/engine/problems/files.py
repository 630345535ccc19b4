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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from dptrain.engine.problems.random_fields import generator
from dptrain.errors import UsageError

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


def read_truth(
    path: Path,
    *,
    image_size: tuple[int, ...],
    channels: int,
    value_range: tuple[float, float] | None,
    crop: Literal["none", "center", "random"],
    key: tuple[int | str, ...],
    dtype: torch.dtype,
) -> tuple[Tensor, int]:
    """The image of a file, shape (C, *image_size), and the bits of its samples (8, 16 or 32).

    :param key: what a random crop is drawn from.
    """
    array, has_alpha = _read(path, len(image_size))
    array = _channels(path, array, channels, has_alpha)
    array = array[(slice(None), *_window(path, array.shape[1:], image_size, crop, key))]
    image = to_unit(path, array, value_range, dtype)
    if len(image) == 3 and channels == 1:
        weights = torch.tensor(LUMINANCE, dtype=dtype).reshape(3, *(1 for _ in image_size))
        image = (image * weights).sum(0, keepdim=True)
    return image, bits_of(array)


def bits_of(array: Array) -> int:
    """8, 16 or 32: what an output file must hold not to lose what the input had."""
    return {1: 8, 2: 16}.get(array.dtype.itemsize, 32) if array.dtype.kind in "uib" else 32


def to_unit(path: Path, array: Array, value_range: tuple[float, float] | None, dtype: torch.dtype) -> Tensor:
    """Values as floating point, mapped so that `value_range` becomes [0, 1]."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "uibf":
        raise UsageError(f"{path}: values of type {array.dtype}; expected integers or real floating point")
    if kind == "f" and not np.isfinite(array).all():
        raise UsageError(f"{path}: {int((~np.isfinite(array)).sum())} of {array.size} values are NaN or infinite")
    if value_range is None and kind in "ui" and size > 2:
        raise UsageError(
            f"{path}: {array.dtype} values have no usual range; they lie in [{array.min()}, {array.max()}]\n"
            f"    write: data: {{range: [{array.min()}, {array.max()}], ...}} or the range of your detector"
        )
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


def _read(path: Path, axes: int) -> tuple[Array, bool]:
    """Samples with channels first, and whether the last channel of 2 or 4 is alpha."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _npy(path, axes), False
    if suffix in (".tif", ".tiff"):
        return _tiff(path, axes)
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


def _tiff(path: Path, axes: int) -> tuple[Array, bool]:
    import tifffile

    try:
        with tifffile.TiffFile(path) as tiff:
            series = tiff.series[0]
            array, letters = np.asarray(series.asarray()), series.axes
    except (tifffile.TiffFileError, ValueError, OSError, IndexError) as error:
        raise UsageError(f"{path}: not a readable TIFF ({error})") from None
    channel = letters.find("S") if "S" in letters else letters.find("C")
    if channel < 0 and array.ndim == axes + 1:
        channel = 0  # pages without a name for their axis: channels first, as in NPY
    array = np.moveaxis(array, channel, 0) if channel >= 0 else array[None]
    if array.ndim != axes + 1:
        raise UsageError(
            f"{path}: a TIFF with axes {letters} and shape {list(series.shape)}; image_size has {axes} axes"
        )
    return array, "S" in letters


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


def _channels(path: Path, array: Array, channels: int, has_alpha: bool) -> Array:
    """The file's channels, without alpha; three remain where luminance is wanted (mixed after scaling)."""
    have = array.shape[0]
    if have == channels:
        return array
    if has_alpha and have in (2, 4):
        log.warning("%s: alpha channel dropped", path)
        array, have = array[:-1], have - 1
    if have == channels or (have == 3 and channels == 1):
        return array
    advice = f"\n    write: problem: {{channels: {have}}}"
    if array.shape[-1] in (channels, 3) and array.ndim == 3:
        advice = "\n    save it with channels first: numpy.moveaxis(a, -1, 0)"
    raise UsageError(f"{path}: {have} channel{'s' * (have != 1)}, problem.channels is {channels}" + advice)


def _window(
    path: Path,
    have: tuple[int, ...],
    want: tuple[int, ...],
    crop: Literal["none", "center", "random"],
    key: tuple[int | str, ...],
) -> tuple[slice, ...]:
    """Where `image_size` lies in a file's image."""
    if have == want:
        return tuple(slice(0, n) for n in want)
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
        starts = [(h - w) // 2 for h, w in zip(have, want, strict=True)]
    else:
        drawn = torch.rand(len(want), generator=generator(*key, "crop"), dtype=torch.float64).tolist()
        starts = [int(u * (h - w + 1)) for u, h, w in zip(drawn, have, want, strict=True)]
    return tuple(slice(s, s + w) for s, w in zip(starts, want, strict=True))


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))
