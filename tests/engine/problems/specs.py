"""Small specs for these tests."""

from __future__ import annotations

from typing import Any

import torch

from dptrain.engine.problems import WholePhysics, build_physics
from dptrain.spec.schema import Denoise, Problem, Resources, Run, SourceData, Spec, Train

CPU = torch.device("cpu")


def spec_of(*, precision: Any = "float64", seed: int = 0, train: Train | None = None, **problem: Any) -> Spec:
    """A spec of one problem: denoising of dead leaves unless said otherwise."""
    problem = {
        "image_size": (24, 32),
        "channels": 1,
        "physics": Denoise(),
        "data": SourceData(source="synthetic"),
        **problem,
    }
    return Spec(
        name="test",
        problem=Problem(**problem),
        resources=Resources(precision=precision),
        run=Run(seed=seed),
        train=train,
    )


def whole_physics(spec: Spec, dtype: torch.dtype = torch.float64) -> WholePhysics:
    """The operators of a spec on one rank that has all of the image."""
    shape = (spec.problem.channels, *spec.problem.image_size)
    return WholePhysics(build_physics(spec, CPU, dtype), shape, CPU, dtype)
