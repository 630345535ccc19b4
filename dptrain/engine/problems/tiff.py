"""TIFF files, read in part: mapped into memory where their numbers lie together, else by the tiles or strips that a box touches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tifffile
from numpy.typing import NDArray

from dptrain.errors import UsageError

Array = NDArray[Any]


class Slicable(Protocol):
    """What is needed of an array: NumPy's own, memory-mapped ones, and TIFF pages."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, places: Any, /) -> Any: ...


def open_tiff(path: Path, axes: int) -> tuple[Slicable, bool]:
    """Samples with channels first, and whether they are the samples of pixels (the last of 2 or 4 is then alpha).

    :param axes: spatial axes of the image that is wanted.
    :raises UsageError: a file that is no TIFF, or has other axes.
    """
    try:
        with tifffile.TiffFile(path) as tiff:
            series = tiff.series[0]
            letters, shape = series.axes, tuple(series.shape)
            if series.dataoffset is None:
                array: Slicable = TiffPages(path, series)
            else:
                dtype = np.dtype(tiff.byteorder + series.dtype.char)
                array = np.memmap(path, dtype, mode="r", offset=series.dataoffset, shape=shape)
    except (tifffile.TiffFileError, ValueError, OSError, IndexError) as error:
        raise UsageError(f"{path}: not a readable TIFF ({error})") from None
    channel = letters.find("S") if "S" in letters else letters.find("C")
    if channel < 0 and len(shape) == axes + 1:
        channel = 0  # pages without a name for their axis: channels first, as in NPY
    if len(shape) != axes + (channel >= 0):
        raise UsageError(f"{path}: a TIFF with axes {letters} and shape {list(shape)}; image_size has {axes} axes")
    return _ChannelsFirst(array, channel), "S" in letters


class _ChannelsFirst:
    """A view of an array that finds its channels first, or none and one channel."""

    def __init__(self, array: Slicable, channel: int) -> None:
        self._array, self._channel = array, channel
        rest = [n for axis, n in enumerate(array.shape) if axis != channel]
        self.shape = (array.shape[channel] if channel >= 0 else 1, *rest)
        self.dtype = array.dtype

    def __getitem__(self, places: tuple[slice, ...]) -> Array:
        first, *rest = places
        if self._channel < 0:
            return np.asarray(self._array[tuple(rest)])[None][first]
        rest.insert(self._channel, first)
        return np.moveaxis(np.asarray(self._array[tuple(rest)]), self._channel, 0)


class TiffPages:
    """A series whose pages are cut into tiles or strips, perhaps compressed: a box decodes only the ones it touches."""

    def __init__(self, path: Path, series: tifffile.TiffPageSeries) -> None:
        """
        :raises ValueError: pages that differ, or more in a page than rows, columns and samples.
        """
        page = series.keyframe
        self._path, self._lead = path, tuple(series.shape[: series.ndim - page.ndim])
        self.shape, self.dtype = tuple(series.shape), np.dtype(series.dtype)
        self._letters = page.axes
        if set(self._letters) - set("YXS") or "YX" not in self._letters:
            raise ValueError(f"pages with axes {page.axes}")

    def __getitem__(self, places: tuple[slice, ...]) -> Array:
        intervals = [range(*place.indices(n)) for place, n in zip(places, self.shape, strict=True)]
        lead, inside = intervals[: len(self._lead)], intervals[len(self._lead) :]
        out = np.empty([len(i) for i in intervals], self.dtype)
        with tifffile.TiffFile(self._path) as tiff:
            pages = tiff.series[0].pages
            for place in itertools.product(*(enumerate(interval) for interval in lead)):
                number = np.ravel_multi_index([at for _, at in place], self._lead) if place else 0
                self._page(tiff, pages[int(number)], inside, out[tuple(i for i, _ in place)])
        return out

    def _page(self, tiff: tifffile.TiffFile, page: Any, inside: list[range], out: Array) -> None:
        """Fill `out`, which has the page's axes."""
        page = page.aspage() if hasattr(page, "aspage") else page
        by_letter = dict(zip(self._letters, inside, strict=True))
        rows, columns = by_letter["Y"], by_letter["X"]
        samples = by_letter.get("S", range(1))
        # As (S, Y, X, 1) for planes and (1, Y, X, S) for interleaved samples, the way segments are numbered.
        planar = "S" in self._letters and self._letters.index("S") == 0
        target = out if planar else out[None]
        target = target[..., None] if planar or "S" not in self._letters else target
        for number, (plane, top, left, height, width) in enumerate(_segments(page)):
            row = range(max(rows.start, top), min(rows.stop, top + height))
            column = range(max(columns.start, left), min(columns.stop, left + width))
            if not row or not column or (planar and plane not in samples):
                continue
            decoded = self._decode(tiff, page, number)
            taken = slice(None) if planar else slice(samples.start, samples.stop)
            part = decoded[0, row.start - top : row.stop - top, column.start - left : column.stop - left, taken]
            target[
                plane - samples.start if planar else 0,
                row.start - rows.start : row.stop - rows.start,
                column.start - columns.start : column.stop - columns.start,
            ] = part

    def _decode(self, tiff: tifffile.TiffFile, page: Any, number: int) -> Array:
        """One segment as (depth, rows, columns, samples)."""
        offset, count = page.dataoffsets[number], page.databytecounts[number]
        tiff.filehandle.seek(offset)
        data = tiff.filehandle.read(count) if count else None
        decoded, _, shape = page.decode(data, number, jpegtables=page.jpegtables, jpegheader=page.jpegheader)
        return np.full(shape, page.nodata, self.dtype) if decoded is None else decoded


def _segments(page: Any) -> list[tuple[int, int, int, int, int]]:
    """(plane, top, left, height, width) of the segments of a page, as they are numbered."""
    height, width = page.tile[-2:] if page.is_tiled else (page.rowsperstrip, page.imagewidth)
    height = min(height, page.imagelength) if not page.is_tiled else height
    planes = page.samplesperpixel if page.planarconfig == 2 else 1
    return [
        (plane, top, left, height, width)
        for plane in range(planes)
        for top in range(0, page.imagelength, height)
        for left in range(0, page.imagewidth, width)
    ]
