"""The images of a run: truth, measurements and noise level of image i, made when asked for and equal in every process.

Noise is keyed by (seed, stream, image, operator) and by position in the measurement, never by rank or by order of access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from deepinv.physics import GaussianNoise, StackedLinearPhysics, ZeroNoise
from deepinv.utils import TensorList
from torch import Tensor

from dptrain.engine.problems.random_fields import normal_like, seed_of, uniform_between
from dptrain.engine.problems.sources import ENDLESS, Picture, Source, build_source
from dptrain.errors import UsageError
from dptrain.spec.schema import Factory, Spec

Role = Literal["infer", "train", "held_out"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One image of a run."""

    truth: Tensor | None
    """(1, C, *image_size); None: there is no truth, hence no PSNR."""
    measurements: TensorList
    """One tensor (1, ...) per operator."""
    noise_std: float | None
    """Standard deviation of the Gaussian noise in image units; None: not known."""
    name: str
    bit_depth: int
    """Bits per sample of the source: 8, 16 or 32."""


class ImageSet(Sequence[Sample]):
    """Images of one role. `len()`, `[i]`; nothing is kept between accesses."""

    def __init__(
        self,
        spec: Spec,
        physics: StackedLinearPhysics,
        source: Source,
        *,
        indices: range,
        stream: str,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """
        :param source: where the images come from.
        :param indices: which of its images these are.
        :param stream: first part of the key of everything random.
        """
        self._spec, self._physics, self._source = spec, physics, source
        self._indices, self._stream = indices, stream
        self._device, self._dtype = device, dtype
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
        truth = None if picture.truth is None else picture.truth[None].to(self._device, self._dtype)
        key = (self._spec.run.seed, self._stream, index)
        noise_std = self._noise_std(key, measured=picture.measurements is not None)
        if picture.measurements is None:
            assert truth is not None
            measurements = self._simulate(truth, noise_std, key)
        else:
            measurements = self._check(picture)
        return Sample(
            truth=truth, measurements=measurements, noise_std=noise_std, name=picture.name, bit_depth=picture.bit_depth
        )

    def _noise_std(self, key: tuple[int | str, ...], *, measured: bool) -> float | None:
        """The noise level of one image: drawn between two numbers, or what the user's operators say."""
        physics = self._spec.problem.physics
        if isinstance(physics, Factory):
            levels = {_gaussian_std(operator.noise_model) for operator in self._physics.physics_list}
            return levels.pop() if len(levels) == 1 else None
        if len(physics.noise_std) == 1:
            return physics.noise_std[0]
        low, high = physics.noise_std
        return None if measured else uniform_between(low, high, *key, "noise_std")

    def _simulate(self, truth: Tensor, noise_std: float | None, key: tuple[int | str, ...]) -> TensorList:
        user_physics = isinstance(self._spec.problem.physics, Factory)
        noisy = []
        with torch.no_grad():
            for i, (operator, y) in enumerate(zip(self._physics.physics_list, self._physics.A(truth), strict=True)):
                std = _gaussian_std(operator.noise_model) if user_physics else noise_std
                if std is None:
                    noisy.append(_with_noise_model(operator.noise_model, y, seed_of(*key, "noise", i)))
                else:
                    noisy.append(y + std * normal_like((*key, "noise", i), y) if std else y)
        return TensorList(noisy)

    def _check(self, picture: Picture) -> TensorList:
        """Measurements that were given, if they have the physics' shapes."""
        assert picture.measurements is not None
        if self._shapes is None:
            problem = self._spec.problem
            zero = torch.zeros(1, problem.channels, *problem.image_size, device=self._device, dtype=self._dtype)
            with torch.no_grad():
                self._shapes = [tuple(y.shape[1:]) for y in self._physics.A(zero)]
        have = [tuple(y.shape) for y in picture.measurements]
        if have != self._shapes:
            raise UsageError(
                f"problem.data.measurements: {picture.name} has {_shapes(have)}, the physics on image_size "
                f"{list(self._spec.problem.image_size)} measures {_shapes(self._shapes)}"
            )
        return TensorList([y[None].to(self._device, self._dtype) for y in picture.measurements])


def build_data(
    spec: Spec, physics: StackedLinearPhysics, *, role: Role, device: torch.device, dtype: torch.dtype
) -> ImageSet:
    """The images of one role.

    `infer`: every file of a glob, every item of a user's sequence, or one image. `train`: the first `train.images`;
    `held_out`: the `train.held_out` after them, or the first of `train.held_out_data`.

    :param physics: the stacked operator of the same spec.
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
    source = build_source(spec, data, where, role=role, stream=stream, count=count, operators=len(physics.physics_list))
    if role == "infer":
        indices = range(1 if len(source) == ENDLESS else len(source))
    if not indices and role == "infer":
        raise UsageError(f"{where}: no images")
    if indices.stop > len(source):
        raise UsageError(
            f"{where}: {len(source)} image{'s' * (len(source) != 1)}, training asks for {indices.stop} "
            "(train.images, and train.held_out after them)\n    write: fewer, or data: {source: synthetic}"
        )
    return ImageSet(spec, physics, source, indices=indices, stream=stream, device=device, dtype=dtype)


def _gaussian_std(noise_model: object) -> float | None:
    """Standard deviation where a deepinv noise model is Gaussian or none at all."""
    if isinstance(noise_model, ZeroNoise):
        return 0.0
    if isinstance(noise_model, GaussianNoise) and noise_model.sigma.numel() == 1:
        return float(noise_model.sigma)
    return None


def _with_noise_model(noise_model: torch.nn.Module, y: Tensor, seed: int) -> Tensor:
    """Any other noise model of deepinv's, with the global generators seeded for the call and restored after it."""
    devices = [y.device] if y.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        noisy: Tensor = noise_model(y)
    return noisy


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(f"{shapes.count(s)} x {list(s)}" for s in dict.fromkeys(shapes))
