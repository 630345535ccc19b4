"""Where images come from: the shipped photograph, dead leaves, files, and user code. Each tells where image i lies, and keeps none.

C = channels; a truth has shape (C, *image_size), its values in [0, 1] where the source has a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dptrain.engine.problems.dead_leaves import dead_leaves
from dptrain.engine.problems.factory import call_factory
from dptrain.engine.problems.files import MeasuredFile, TruthFile, expand, read_npy, to_unit
from dptrain.engine.problems.parts import Measured, Pixels
from dptrain.engine.problems.random_fields import seed_of
from dptrain.errors import UsageError
from dptrain.geometry.boxes import Box, slices, whole
from dptrain.spec.schema import Data, Factory, FileData, Spec


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What a source knows of one image; nothing of it is read yet."""

    truth: Pixels | None
    measurements: Sequence[Measured] | None = None
    """One per operator; None: to be simulated."""
    name: str

    @property
    def bits(self) -> int:
        """Bits per sample of the truth, else of the measurements."""
        known = [pixels for pixels in (self.truth, *(self.measurements or ())) if pixels is not None]
        return known[0].bits


class Source(Protocol):
    """Images by index."""

    def __len__(self) -> int: ...

    def load(self, index: int) -> Picture:
        """Image `index`, the same at every call and in every process."""
        ...


ENDLESS = 2**62
"""Length of a source that makes as many images as asked for."""


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """One image of dead leaves."""

    seed: int
    index: int
    image_size: tuple[int, ...]
    channels: int
    dtype: torch.dtype

    in_parts = True
    bits = 8

    def read(self, box: Box | None) -> Tensor:
        """Made for the box alone."""
        made = whole(self.image_size) if box is None else box
        return dead_leaves(self.seed, self.index, made, self.image_size, self.channels, self.dtype)


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Dead leaves."""

    seed: int
    image_size: tuple[int, ...]
    channels: int
    dtype: torch.dtype

    def __len__(self) -> int:
        return ENDLESS

    def load(self, index: int) -> Picture:
        truth = Leaves(
            seed=self.seed, index=index, image_size=self.image_size, channels=self.channels, dtype=self.dtype
        )
        return Picture(truth=truth, name=f"synthetic-{index}")


def photo_path() -> Path:
    """The demonstration photograph, shipped by matplotlib."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"


@dataclass(frozen=True, kw_only=True)
class Photo:
    """One photograph: its centre of the asked aspect ratio, resized."""

    image_size: tuple[int, ...]
    channels: int
    dtype: torch.dtype

    in_parts = False
    bits = 8

    def __len__(self) -> int:
        return 1

    def load(self, index: int) -> Picture:
        if len(self.image_size) != 2 or self.channels not in (1, 3):
            raise UsageError(
                f"problem.data.source: photo is 2-D with 1 or 3 channels, the problem has {len(self.image_size)} axes and "
                f"{self.channels} channels\n    write: data: {{source: synthetic}}"
            )
        assert index == 0
        return Picture(truth=replace(self), name="photo")  # decoded once for all boxes, and kept no longer

    def read(self, box: Box | None) -> Tensor:
        """The photograph, or a box of it."""
        places = () if box is None else slices(box, whole(self.image_size))
        return to_unit(photo_path(), self._resized[(slice(None), *places)], None, self.dtype)

    @cached_property
    def _resized(self) -> NDArray[np.uint8]:
        """8 bits, channels first."""
        height, width = self.image_size
        with Image.open(photo_path()) as opened:
            picture = opened.convert("L" if self.channels == 1 else "RGB")
        scale = min(picture.width / width, picture.height / height)
        left, top = (picture.width - width * scale) / 2, (picture.height - height * scale) / 2
        box = (left, top, left + width * scale, top + height * scale)
        array = np.asarray(picture.resize((width, height), Image.Resampling.LANCZOS, box=box))
        return array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)


@dataclass(frozen=True, kw_only=True)
class Files:
    """Truth files, measurement files, or both, paired in their sorted order."""

    data: FileData
    where: str
    seed: int
    stream: str
    image_size: tuple[int, ...]
    channels: int
    operators: int
    dtype: torch.dtype
    truth: list[Path] | None = field(init=False)
    measurements: list[Path] | None = field(init=False)

    def __post_init__(self) -> None:
        for name in ("truth", "measurements"):
            patterns = getattr(self.data, name)
            object.__setattr__(self, name, None if patterns is None else expand(patterns, f"{self.where}.{name}"))
        if self.truth and self.measurements and len(self.truth) != len(self.measurements):
            raise UsageError(
                f"{self.where}: {len(self.truth)} truth files and {len(self.measurements)} measurement files; "
                "they are paired in sorted order and must be as many"
            )

    def __len__(self) -> int:
        return len(self.truth or self.measurements or [])

    def load(self, index: int) -> Picture:
        truth = None
        if self.truth:
            truth = TruthFile(
                path=self.truth[index],
                image_size=self.image_size,
                channels=self.channels,
                value_range=self.data.range,
                crop=self.data.crop,
                key=(self.seed, self.stream, index),
                dtype=self.dtype,
            )
        path = (self.truth or self.measurements or [])[index]
        measurements = self._measured(self.measurements[index]) if self.measurements else None
        return Picture(truth=truth, measurements=measurements, name=path.stem)

    def _measured(self, path: Path) -> list[MeasuredFile]:
        shape = read_npy(path).shape
        if self.operators > 1 and shape[0] != self.operators:
            raise UsageError(
                f"{path}: shape {list(shape)}; the first axis counts the operators, the physics has {self.operators}"
            )
        which = [None] if self.operators == 1 else list(range(self.operators))
        return [MeasuredFile(path=path, operator=i, value_range=self.data.range, dtype=self.dtype) for i in which]


@dataclass(frozen=True, kw_only=True)
class UserPixels:
    """One item of a user's sequence: a tensor, an array, or what is sliced like one and read from a file as it is sliced."""

    value: Any
    axes: int
    """Of the image; a leading axis of length 1 before channels and these is a batch axis."""
    where: str
    """For messages."""
    dtype: torch.dtype

    in_parts = True
    bits = 8

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, ...), without a batch axis."""
        return tuple(self.value.shape[1:] if self._batched else self.value.shape)

    def read(self, box: Box | None) -> Tensor:
        """Its numbers, on a box or all.

        :raises UsageError: NaN or infinite values.
        """
        lead = (0,) if self._batched else ()
        places = () if box is None else (slice(None), *(slice(*interval) for interval in box))
        part = self.value[(*lead, *places)]
        tensor = part.detach() if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
        if not torch.isfinite(tensor).all():
            raise UsageError(f"problem.data: {self.where} has NaN or infinite values")
        dtype = self.dtype.to_complex() if tensor.is_complex() else self.dtype
        return tensor.to("cpu", dtype, copy=True)

    @property
    def _batched(self) -> bool:
        return len(self.value.shape) == self.axes + 2 and self.value.shape[0] == 1


@dataclass(frozen=True, kw_only=True)
class UserData:
    """What a user's function returned: a sequence of truths, or of (truth or None, measurements) pairs."""

    items: Sequence[Any]
    function: str
    image_size: tuple[int, ...]
    channels: int
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.items)

    def load(self, index: int) -> Picture:
        item = self.items[index]
        truth, measured = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if truth is None and measured is None:
            raise UsageError(f"problem.data: item {index} of {self.function} has neither a truth nor measurements")
        measurements = None
        if measured is not None:
            parts = measured if isinstance(measured, list | tuple) else [measured]
            measurements = [self._pixels(part, index) for part in parts]
        return Picture(
            truth=None if truth is None else self._truth(truth, index), measurements=measurements, name=f"image-{index}"
        )

    def _truth(self, truth: object, index: int) -> UserPixels:
        want = (self.channels, *self.image_size)
        pixels = self._pixels(truth, index)
        if pixels.shape != want:
            raise UsageError(
                f"problem.data: item {index} of {self.function} has shape {list(pixels.shape)}, "
                f"the problem asks for {list(want)} (channels first)"
            )
        return pixels

    def _pixels(self, value: object, index: int) -> UserPixels:
        if not hasattr(value, "shape") or not hasattr(value, "__getitem__"):
            raise UsageError(
                f"problem.data: item {index} of {self.function} is a {type(value).__name__}; expected a tensor or an array"
            )
        where = f"item {index} of {self.function}"
        return UserPixels(value=value, axes=len(self.image_size), where=where, dtype=self.dtype)


def build_source(
    spec: Spec, data: Data, where: str, *, role: str, stream: str, count: int | None, operators: int
) -> Source:
    """The source of a `data` section.

    :param where: its key, for messages.
    :param stream: names the indices: one seed and one stream give one sequence of images.
    :param count: how many images will be asked for; None: all there are.
    :param operators: operators of the physics.
    """
    problem, seed = spec.problem, spec.run.seed
    size, channels = problem.image_size, problem.channels
    dtype = torch.float64 if spec.resources.precision == "float64" else torch.float32
    if isinstance(data, Factory):
        standard = {
            "image_size": size,
            "channels": channels,
            "count": count,
            "role": role,
            "seed": seed,
            "dtype": dtype,
        }
        made = call_factory(data, where, standard)
        if not hasattr(made, "__getitem__") or not hasattr(made, "__len__"):
            try:
                made = list(made)
            except TypeError:
                raise UsageError(
                    f"{where}: {data.factory} returned a {type(made).__name__}; expected a sequence of images"
                ) from None
        return UserData(items=made, function=data.factory, image_size=size, channels=channels, dtype=dtype)
    if isinstance(data, FileData):
        return Files(
            data=data,
            where=where,
            seed=seed,
            stream=stream,
            image_size=size,
            channels=channels,
            operators=operators,
            dtype=dtype,
        )
    if data.source == "photo":
        return Photo(image_size=size, channels=channels, dtype=dtype)
    return Synthetic(seed=seed_of(seed, stream), image_size=size, channels=channels, dtype=dtype)
