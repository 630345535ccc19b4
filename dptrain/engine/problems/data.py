"""The images of a run: truth, measurements and noise level of image i, made when asked for and equal in every process.

A sample is this rank's part of the image: its box in the layout sharded, all of it in the layout replicated. Noise is keyed by
(seed, stream, image, operator) and by position in the measurement, never by rank or by order of access.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from deepinv.physics import GaussianNoise, ZeroNoise
from deepinv.utils import TensorList
from torch import Tensor

from dptrain.engine.problems.parts import Measured, RankPhysics
from dptrain.engine.problems.random_fields import normal_like, seed_of, uniform_between
from dptrain.engine.problems.sources import ENDLESS, Source, build_source
from dptrain.errors import UsageError
from dptrain.geometry.boxes import Box, cells
from dptrain.spec.advice import fewer_images
from dptrain.spec.schema import Factory, Spec

Role = Literal["infer", "train", "held_out"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """This rank's part of one image of a run."""

    truth: Tensor | None
    """(1, C, *box); None: there is no truth, hence no PSNR."""
    measurements: TensorList
    """One tensor (1, ...) per operator."""
    noise_std: float | None
    """Standard deviation of the Gaussian noise in image units; None: not known."""
    name: str
    bit_depth: int
    """Bits per sample of the source: 8, 16 or 32; on ranks that write nothing 0."""


class ImageSet(Sequence[Sample]):
    """Images of one role. `len()`, `[i]`; nothing is kept between accesses. All ranks access the same image together."""

    def __init__(
        self,
        spec: Spec,
        physics: RankPhysics,
        source: Source,
        *,
        indices: range,
        stream: str,
    ) -> None:
        """
        :param source: where the images come from.
        :param indices: which of its images these are.
        :param stream: first part of the key of everything random.
        """
        self._spec, self._physics, self._source = spec, physics, source
        self._indices, self._stream = indices, stream
        self._shapes: list[tuple[int, ...]] | None = None

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(index, slice):
            return [self._sample(i) for i in self._indices[index]]
        return self._sample(self._indices[index])

    def _sample(self, index: int) -> Sample:
        picture = self._source.load(index)
        truth = None if picture.truth is None else self._physics.read(picture.truth)
        key = (self._spec.run.seed, self._stream, index)
        noise_std = self._noise_std(key, measured=picture.measurements is not None)
        if picture.measurements is None:
            assert truth is not None
            measurements = self._simulate(truth, noise_std, key)
        else:
            measurements = self._read(picture.name, picture.measurements)
        bits = picture.bits if self._physics.first else 0
        return Sample(truth=truth, measurements=measurements, noise_std=noise_std, name=picture.name, bit_depth=bits)

    def _noise_std(self, key: tuple[int | str, ...], *, measured: bool) -> float | None:
        """The noise level of one image: drawn between two numbers, or what the user's operators say."""
        physics = self._spec.problem.physics
        if isinstance(physics, Factory):
            levels = {_gaussian_std(model) for model in self._physics.noise_models}
            return levels.pop() if len(levels) == 1 else None
        if len(physics.noise_std) == 1:
            return physics.noise_std[0]
        low, high = physics.noise_std
        return None if measured else uniform_between(low, high, *key, "noise_std")

    def _simulate(self, truth: Tensor, noise_std: float | None, key: tuple[int | str, ...]) -> TensorList:
        user_physics = isinstance(self._spec.problem.physics, Factory)
        noisy = []
        for i, y in enumerate(self._physics.measure(truth)):
            model = self._physics.noise_models[i]
            std = _gaussian_std(model) if user_physics else noise_std
            if std is None:
                noisy.append(self._physics.change_whole(i, y, _noise(model, seed_of(*key, "noise", i))))
            else:
                place = self._physics.place(i)
                noisy.append(normal_like((*key, "noise", i), y, place).mul_(std).add_(y) if std else y)
        return TensorList(noisy)

    def _read(self, name: str, pixels: Sequence[Measured]) -> TensorList:
        """Measurements that were given, if they have the physics' shapes."""
        if self._shapes is None:
            self._shapes = self._physics.shapes()
        have = [tuple(y.shape) for y in pixels]
        if have != self._shapes:
            raise UsageError(
                f"problem.data.measurements: {name} has {_shapes(have)}, the physics on image_size "
                f"{list(self._spec.problem.image_size)} measures {_shapes(self._shapes)}"
            )
        return TensorList([self._part(y, self._physics.place(i)) for i, y in enumerate(pixels)])

    def _part(self, y: Measured, place: Box | None) -> Tensor:
        like = self._physics.empty()
        if place is not None and not cells(place):
            # Measurements that are no image have no boxes to be cut out.
            return like.new_empty((1, y.shape[0], *(0,) * len(place)))
        return y.read(place)[None].to(like.device)


def build_data(spec: Spec, physics: RankPhysics, *, role: Role) -> ImageSet:
    """The images of one role.

    `infer`: every file of a glob, every item of a user's sequence, or one image. `train`: the first `train.images`;
    `held_out`: the `train.held_out` after them, or the first of `train.held_out_data`.

    :param physics: the stacked operator of the same spec, and this rank's part of the image.
    """
    data, where, stream, indices = spec.problem.data, "problem.data", "data", range(1)
    count: int | None = None
    if role == "infer":
        stream = "infer"
    else:
        assert spec.train is not None
        if role == "train":
            indices = range(spec.train.images)
        elif spec.train.held_out_data is None:
            indices = range(spec.train.images, spec.train.images + spec.train.held_out)
        else:
            data, where, stream = spec.train.held_out_data, "train.held_out_data", "held_out"
            indices = range(spec.train.held_out)
        count = indices.stop
    source = build_source(spec, data, where, role=role, stream=stream, count=count, operators=len(physics.noise_models))
    if role == "infer":
        indices = range(1 if len(source) == ENDLESS else len(source))
    if not indices and role == "infer":
        raise UsageError(f"{where}: no images")
    if (have := len(source)) < indices.stop:
        assert spec.train is not None
        fewer = "other data" if have == 0 else fewer_images(spec.train, spec.resources.replicas, have, where)
        raise UsageError(
            f"{where}: {have} image{'s' * (have != 1)}, training asks for {indices.stop} "
            f"(train.images, and train.held_out after them)\n    write: {fewer}"
        )
    return ImageSet(spec, physics, source, indices=indices, stream=stream)


def _gaussian_std(noise_model: object) -> float | None:
    """Standard deviation where a deepinv noise model is Gaussian or none at all."""
    if isinstance(noise_model, ZeroNoise):
        return 0.0
    if isinstance(noise_model, GaussianNoise) and noise_model.sigma.numel() == 1:
        return float(noise_model.sigma)
    return None


def _noise(noise_model: torch.nn.Module, seed: int) -> Callable[[Tensor], Tensor]:
    """Any other noise model of deepinv's, with the global generators seeded for the call and restored after it."""

    def noisy(y: Tensor) -> Tensor:
        with torch.no_grad(), torch.random.fork_rng(devices=[y.device] if y.device.type == "cuda" else []):
            torch.manual_seed(seed)
            made: Tensor = noise_model(y)
        return made

    return noisy


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(f"{shapes.count(s)} x {list(s)}" for s in dict.fromkeys(shapes))
