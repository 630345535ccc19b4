"""The operator of a spec: always a stack of deepinv operators, even of one. Operators are summed, never averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from deepinv.physics import LinearPhysics, StackedLinearPhysics, stack

from dptrain.engine.problems import deblur, denoise, inpaint, multiframe_superres
from dptrain.engine.problems.factory import call_factory
from dptrain.errors import UsageError
from dptrain.spec.schema import Deblur, Denoise, Factory, Inpaint, MultiframeSuperres, Spec


def build_physics(spec: Spec, device: torch.device, dtype: torch.dtype) -> StackedLinearPhysics:
    """The stacked operator of `problem.physics`, without noise of its own for the built-in problems."""
    standard: Mapping[str, Any] = {
        "image_size": spec.problem.image_size,
        "channels": spec.problem.channels,
        "device": device,
        "dtype": dtype,
        "seed": spec.run.seed,
    }
    physics = spec.problem.physics
    if isinstance(physics, Factory):
        operators = _operators(call_factory(physics, "problem.physics", standard), physics.factory)
    else:
        operators = _builtin(physics, spec.problem.image_size, spec.problem.channels, spec.run.seed)
    return stack(*(_convert(operator, device, dtype) for operator in operators))


def _builtin(
    physics: MultiframeSuperres | Deblur | Denoise | Inpaint, image_size: tuple[int, ...], channels: int, seed: int
) -> list[LinearPhysics]:
    match physics:
        case MultiframeSuperres():
            return multiframe_superres.build(
                image_size=image_size,
                channels=channels,
                frames=physics.frames,
                factor=physics.factor,
                blur_sigma=physics.blur_sigma,
            )
        case Deblur():
            return deblur.build(image_size=image_size, blur_sigma=physics.blur_sigma)
        case Denoise():
            return denoise.build()
        case Inpaint():
            return inpaint.build(image_size=image_size, seed=seed, keep=physics.keep)


def _operators(made: object, function: str) -> list[LinearPhysics]:
    """The operators that a user's function returned: one, a list, or a stack."""
    if isinstance(made, StackedLinearPhysics):
        return list(made.physics_list)
    operators = list(made) if isinstance(made, list | tuple) else [made]
    wrong = [type(operator).__name__ for operator in operators if not isinstance(operator, LinearPhysics)]
    if wrong or not operators:
        raise UsageError(
            f"problem.physics: {function} returned {wrong[0] if wrong else 'an empty list'}; it must return a deepinv "
            "LinearPhysics, a list of them, or deepinv.physics.stack(...) of them"
        )
    return operators


def _convert(operator: LinearPhysics, device: torch.device, dtype: torch.dtype) -> LinearPhysics:
    """Move an operator and give its buffers the run's precision."""
    complex_dtype = torch.complex128 if dtype is torch.float64 else torch.complex64

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        # Module.to(dtype) would turn complex buffers (Fourier filters) into real ones.
        if tensor.is_complex():
            return tensor.to(device, complex_dtype)
        return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

    apply: Callable[[Callable[[torch.Tensor], torch.Tensor]], LinearPhysics] = operator.to(device)._apply
    return apply(cast)
