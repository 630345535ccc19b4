"""||A||^2 of a stacked operator: the largest eigenvalue of x -> sum of A_i^T A_i x."""

from __future__ import annotations

import torch
from deepinv.physics import LinearPhysics
from torch import Tensor

from dptrain.engine.problems.random_fields import normal_box

TOLERANCE = 1e-4
MAX_STEPS = 200


def operator_norm_sq(
    physics: LinearPhysics, image_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, seed: int
) -> float:
    """The squared norm to a relative error of about 1e-4, deterministic in `seed`.

    Lanczos' three-term recurrence: the largest eigenvalue of its small matrix. It holds three images and needs tens of products
    where the power method needs hundreds (a blur's largest eigenvalues lie close together).

    :param image_shape: (1, C, ...), of the operator's domain.
    :param dtype: the operator's precision; sums of products are float64 in any case.
    """
    start = normal_box((seed, "norm"), image_shape[1], [(0, n) for n in image_shape[2:]])[None]
    v = (start + 1).to(device, dtype)  # a constant part: for blurs the largest eigenvector is near it
    v = v / v.norm()
    previous, beta = torch.zeros_like(v), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    with torch.no_grad():
        for _ in range(MAX_STEPS):
            w = physics.A_adjoint(physics.A(v)) - beta * previous
            diagonal.append(_dot(w, v))
            w = w - diagonal[-1] * v
            beta = _dot(w, w) ** 0.5
            largest, last = _largest_eigenpair(diagonal, beside)
            if beta * abs(last) <= TOLERANCE * largest or beta == 0:
                break
            beside.append(beta)
            previous, v = v, w / beta
    return largest


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b.double()).sum())


def _largest_eigenpair(diagonal: list[float], beside: list[float]) -> tuple[float, float]:
    """Largest eigenvalue of a symmetric tridiagonal matrix, and the last entry of its eigenvector (the error bound's factor)."""
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        off = torch.tensor(beside, dtype=torch.float64)
        matrix += torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return float(values[-1]), float(vectors[-1, -1])
