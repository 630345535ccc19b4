"""From a spec to the objects of a run: physics, step size, denoiser, tile grid, algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dptrain.engine.context import RankContext
from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.pnp import PlugAndPlay
from dptrain.engine.problems import RankPhysics, WholePhysics, build_physics, operator_norm_sq
from dptrain.engine.sharded import ShardedPlugAndPlay
from dptrain.engine.sharded_physics import ShardedPhysics
from dptrain.engine.unrolled import Unrolled
from dptrain.engine.weights import FILE_SUFFIXES, load_run_parameters
from dptrain.errors import UsageError
from dptrain.geometry.tiles import tile_grid
from dptrain.spec.schema import PROXIMAL, Denoiser, Spec

STEP_SIZE_SHARE = 0.99
"""`step_size: auto` takes this share of 1 / ||A||^2; below 2 / ||A||^2 the gradient step does not diverge."""
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}
"""dtype of iterate, physics and weights; bf16 concerns the inside of the denoiser."""


@dataclass(kw_only=True)
class Built:
    """What both tasks work with."""

    physics: RankPhysics
    """The operators, and this rank's part of the image."""
    algorithm: Unrolled
    dtype: torch.dtype


def step_size(spec: Spec, norm_sq: float) -> float:
    """gamma of the spec, checked against the operator.

    :raises UsageError: at 2 / ||A||^2 or more, where a gradient step diverges.
    """
    if spec.algorithm.step_size == "auto":
        return STEP_SIZE_SHARE / norm_sq
    if spec.algorithm.name not in PROXIMAL and spec.algorithm.step_size >= 2 / norm_sq:
        raise UsageError(
            f"algorithm.step_size is {spec.algorithm.step_size:g}, but must stay below 2 / ||A||^2 = {2 / norm_sq:.4g}"
        )
    return spec.algorithm.step_size


def build(
    spec: Spec,
    ctx: RankContext,
    *,
    max_batch_size: int,
    checkpoint: str,
    trainable: tuple[str, ...] = (),
    norm_sq: float | None = None,
    network: torch.nn.Module | None = None,
) -> Built:
    """Build everything on this rank; every rank builds the same.

    :param max_batch_size: tiles per denoiser call, as plan decided.
    :param checkpoint: auto, always, never or stages, as plan decided.
    :param trainable: of denoiser, step_size, sigma.
    :param norm_sq: ||A||^2 of the stacked operator; None: it is measured.
    :param network: the denoiser where it is there already.
    """
    dtype = DTYPES[spec.resources.precision]
    operators = build_physics(spec, ctx.device, dtype)
    shape = (spec.problem.channels, *spec.problem.image_size)
    sharded = spec.resources.layout == "sharded"
    physics: Any = (
        ShardedPhysics(operators, shape, ctx, ctx.device, dtype)
        if sharded
        else WholePhysics(operators, shape, ctx.device, dtype, ctx.rank)
    )
    if norm_sq is None:
        norm_sq = operator_norm_sq(physics, spec.run.seed)
    sigma = spec.algorithm.sigma
    algorithm = (ShardedPlugAndPlay if sharded else PlugAndPlay)(
        spec.algorithm,
        ctx,
        physics,
        network or build_denoiser(spec, ctx.device, dtype),
        tile_grid(spec.problem.image_size, spec.tiling),
        step_size=step_size(spec, norm_sq),
        norm_sq=norm_sq,
        sigma=None if sigma == "noise" else float(sigma),
        dtype=dtype,
        max_batch_size=max_batch_size,
        checkpoint=checkpoint,
        bf16=spec.resources.precision == "bf16",
        compiled=spec.resources.compile,
        trainable=trainable,
    )
    _take_learned_parameters(spec, algorithm)
    return Built(physics=physics, algorithm=algorithm, dtype=dtype)


def _take_learned_parameters(spec: Spec, algorithm: Unrolled) -> None:
    """Weights named by a run are its whole unrolled network, gamma_k and sigma_k included; a file gives the denoiser alone."""
    if not isinstance(spec.denoiser, Denoiser) or Path(spec.denoiser.weights).suffix in FILE_SUFFIXES:
        return
    learned = load_run_parameters(spec.denoiser.weights)
    if learned is None:
        return
    try:
        algorithm.load_parameters_k(learned)
    except ValueError as error:
        raise UsageError(
            f"denoiser.weights: run {spec.denoiser.weights}: {error}\n"
            "    write: the same algorithm.iterations, or the path of the save's model.safetensors for the denoiser alone"
        ) from None
    shown = {name: [round(float(v), 5) for v in tensor.reshape(-1)] for name, tensor in learned.items()}
    print(f"step sizes and noise levels are those the run trained: {shown}", flush=True)
