"""Images for training and measuring the built-in denoisers: crops of shipped photographs and of dead leaves, as data factories.

The lists of photographs are `templates/weights/images.yaml`; the files lie inside scikit-image and scikit-learn, which need not be
imported to read them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dptrain.engine.problems.dead_leaves import dead_leaves
from dptrain.engine.problems.random_fields import generator
from dptrain.errors import UsageError

SCALES = (1.0, 1.0, 0.75, 0.5)
"""Sizes in which training photographs are seen: smaller ones are sharper."""


@dataclass(frozen=True, kw_only=True)
class Photograph:
    """One line of the list."""

    package: str
    file: str
    licence: str
    weight: float = 1.0

    def path(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            raise UsageError(
                f'the photograph {self.package}/{self.file} needs its package\n    write: pip install "dptrain[weights]"'
            )
        return Path(spec.origin).parent / self.file


def listed(which: Literal["training", "held_out"]) -> list[Photograph]:
    """The photographs of one list."""
    text = (resources.files("dptrain.templates") / "weights" / "images.yaml").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = yaml.safe_load(text)[which]
    return [Photograph(**entry) for entry in entries]


@cache
def _pixels(path: Path, channels: int, scale: float) -> NDArray[np.uint8]:
    """A photograph, 8 bits, channels first, at a scale; kept, since crops of it are taken many times."""
    with Image.open(path) as opened:
        picture = opened.convert("L" if channels == 1 or opened.mode == "L" else "RGB")
    if scale != 1:
        size = (round(picture.width * scale), round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    array = np.asarray(picture)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(np.moveaxis(array, -1, 0))


class Mixed(Sequence[Tensor]):
    """Image i: a crop of a photograph, flipped and turned at random, or with probability `synthetic` dead leaves."""

    def __init__(self, image_size: tuple[int, int], channels: int, count: int, seed: int, synthetic: float) -> None:
        self._size, self._channels, self._count, self._seed, self._synthetic = (
            image_size,
            channels,
            count,
            seed,
            synthetic,
        )
        self._photographs = [(p.path(), p.weight) for p in listed("training")]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        draw = generator(self._seed, "mixed", index)
        kind, which, scale, row, column, turn, *tint = torch.rand(9, generator=draw, dtype=torch.float64).tolist()
        if kind < self._synthetic:
            return dead_leaves(self._seed, index, [(0, n) for n in self._size], self._size, self._channels)
        pixels = _pixels(self._choose(which), self._channels, SCALES[int(scale * len(SCALES))])
        height, width = self._size
        if pixels.shape[1] < height or pixels.shape[2] < width:
            raise UsageError(
                f"problem.image_size: {list(self._size)} is larger than a photograph of {list(pixels.shape[1:])}"
            )
        top, left = int(row * (pixels.shape[1] - height + 1)), int(column * (pixels.shape[2] - width + 1))
        crop = torch.tensor(pixels[:, top : top + height, left : left + width], dtype=torch.float64) / 255
        if len(crop) < self._channels:  # a gray photograph among colour ones: tinted, so that channels differ
            crop = crop * (0.7 + 0.3 * torch.tensor(tint, dtype=torch.float64)).reshape(3, 1, 1)
        return _turned(crop, int(turn * 8))

    def _choose(self, u: float) -> Path:
        u *= sum(weight for _, weight in self._photographs)
        for path, weight in self._photographs:
            u -= weight
            if u < 0:
                return path
        return self._photographs[-1][0]


def _turned(image: Tensor, which: int) -> Tensor:
    """One of the eight symmetries of the square (four where the image is not square)."""
    if which & 1:
        image = image.flip(-1)
    if which & 2:
        image = image.flip(-2)
    if which & 4 and image.shape[-1] == image.shape[-2]:
        image = image.transpose(-1, -2)
    return image.contiguous()


def mixed(
    *, image_size: tuple[int, ...], channels: int, count: int | None, seed: int, synthetic: float = 0.3
) -> Sequence[Tensor]:
    """Training images as a data factory: `{factory: "dptrain.engine.problems.training:mixed", synthetic: 0.3}`.

    :param synthetic: fraction of dead leaves.
    """
    height, width = _size(image_size, channels)
    return Mixed((height, width), channels, 1 if count is None else count, seed, synthetic)


def photographs(
    *, image_size: tuple[int, ...], channels: int, images: Literal["training", "held_out"] = "held_out"
) -> list[Tensor]:
    """The centre of every photograph of a list, as a data factory."""
    height, width = _size(image_size, channels)
    centres = []
    for photograph in listed(images):
        pixels = _pixels(photograph.path(), channels, 1.0)
        top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
        if top < 0 or left < 0:
            raise UsageError(
                f"problem.image_size: {list(image_size)} is larger than {photograph.file} of {list(pixels.shape[1:])}"
            )
        centre = torch.tensor(pixels[:, top : top + height, left : left + width], dtype=torch.float64) / 255
        centres.append(centre.expand(channels, height, width))
    return centres


def _size(image_size: tuple[int, ...], channels: int) -> tuple[int, int]:
    if len(image_size) != 2 or channels not in (1, 3):
        raise UsageError(
            f"problem.data: photographs are 2-D with 1 or 3 channels, not {len(image_size)}-D with {channels}"
        )
    return image_size[0], image_size[1]
