"""Where images come from: the shipped photograph, dead leaves, files, and user code. Each loads image i when asked, and keeps none.

C = channels; a truth has shape (C, *image_size), its values in [0, 1] where the source has a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dptrain.engine.problems.dead_leaves import dead_leaves
from dptrain.engine.problems.factory import call_factory
from dptrain.engine.problems.files import bits_of, expand, read_npy, read_truth, to_unit
from dptrain.engine.problems.random_fields import seed_of
from dptrain.errors import UsageError
from dptrain.spec.schema import Data, Factory, FileData, Spec


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What a source knows of one image."""

    truth: Tensor | None
    measurements: list[Tensor] | None = None
    """One per operator, without a batch axis; None: to be simulated."""
    name: str
    bit_depth: int = 8


class Source(Protocol):
    """Images by index."""

    def __len__(self) -> int: ...

    def load(self, index: int) -> Picture:
        """Image `index`, the same at every call and in every process."""
        ...


ENDLESS = 2**62
"""Length of a source that makes as many images as asked for."""


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
        truth = dead_leaves(self.seed, index, [(0, n) for n in self.image_size], self.image_size, self.channels)
        return Picture(truth=truth.to(self.dtype), name=f"synthetic-{index}")


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

    def __len__(self) -> int:
        return 1

    def load(self, index: int) -> Picture:
        if len(self.image_size) != 2 or self.channels not in (1, 3):
            raise UsageError(
                f"problem.data.source: photo is 2-D with 1 or 3 channels, the problem has {len(self.image_size)} axes and "
                f"{self.channels} channels\n    write: data: {{source: synthetic}}"
            )
        assert index == 0
        height, width = self.image_size
        with Image.open(photo_path()) as opened:
            picture = opened.convert("L" if self.channels == 1 else "RGB")
        scale = min(picture.width / width, picture.height / height)
        left, top = (picture.width - width * scale) / 2, (picture.height - height * scale) / 2
        box = (left, top, left + width * scale, top + height * scale)
        array = np.asarray(picture.resize((width, height), Image.Resampling.LANCZOS, box=box))
        array = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
        return Picture(truth=to_unit(photo_path(), array, None, self.dtype), name="photo")


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
        measurements, bits = self._measured(self.measurements[index]) if self.measurements else (None, 8)
        truth = None
        if self.truth:
            truth, bits = read_truth(
                self.truth[index],
                image_size=self.image_size,
                channels=self.channels,
                value_range=self.data.range,
                crop=self.data.crop,
                key=(self.seed, self.stream, index),
                dtype=self.dtype,
            )
        path = (self.truth or self.measurements or [])[index]
        return Picture(truth=truth, measurements=measurements, name=path.stem, bit_depth=bits)

    def _measured(self, path: Path) -> tuple[list[Tensor], int]:
        array = read_npy(path)
        values = to_unit(path, array, self.data.range, self.dtype)
        if self.operators == 1:
            return [values], bits_of(array)
        if len(values) != self.operators:
            raise UsageError(
                f"{path}: shape {list(array.shape)}; the first axis counts the operators, the physics has {self.operators}"
            )
        return list(values), bits_of(array)


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
            measurements = [self._tensor(part, index)[0] for part in parts]
        return Picture(
            truth=None if truth is None else self._truth(truth, index), measurements=measurements, name=f"image-{index}"
        )

    def _truth(self, truth: object, index: int) -> Tensor:
        want = (self.channels, *self.image_size)
        tensor = self._tensor(truth, index)
        if tensor.shape[1:] != want:
            raise UsageError(
                f"problem.data: item {index} of {self.function} has shape {list(tensor.shape[1:])}, "
                f"the problem asks for {list(want)} (channels first)"
            )
        return tensor[0]

    def _tensor(self, value: object, index: int) -> Tensor:
        """As floating point with a batch axis of 1: a leading axis of length 1 is one where the rest has enough axes."""
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, Tensor):
            raise UsageError(
                f"problem.data: item {index} of {self.function} is a {type(value).__name__}; expected a tensor"
            )
        if not torch.isfinite(value).all():
            raise UsageError(f"problem.data: item {index} of {self.function} has NaN or infinite values")
        batched = value.ndim == len(self.image_size) + 2 and len(value) == 1
        return (value if batched else value[None]).detach().to("cpu", self.dtype)


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
