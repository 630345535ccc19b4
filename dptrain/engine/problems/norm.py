"""||A||^2 of a stacked operator: the largest eigenvalue of x -> sum of A_i^T A_i x."""

from __future__ import annotations

import torch

from dptrain.engine.problems.parts import RankPhysics
from dptrain.engine.problems.random_fields import normal_box

TOLERANCE = 1e-4
MAX_STEPS = 200


def operator_norm_sq(physics: RankPhysics, seed: int) -> float:
    """The squared norm to a relative error of about 1e-4, deterministic in `seed`; a collective.

    Lanczos' three-term recurrence: the largest eigenvalue of its small matrix. It holds three images (of them this rank's
    part) and needs tens of products where the power method needs hundreds (a blur's largest eigenvalues lie close together).
    Sums of products are float64 in any precision.
    """
    # A constant part: for blurs the largest eigenvector is near it.
    v = physics.empty()
    v.copy_(normal_box((seed, "norm"), physics.channels, physics.box, v.dtype)[None]).add_(1)
    v /= physics.dot(v, v) ** 0.5
    previous, beta = torch.zeros_like(v), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(MAX_STEPS):
        # Not in place: an operator may have returned its input.
        w = physics.normal(v).sub(previous, alpha=beta)
        diagonal.append(physics.dot(w, v))
        w.sub_(v, alpha=diagonal[-1])
        beta = physics.dot(w, w) ** 0.5
        largest, last = _largest_eigenpair(diagonal, beside)
        if beta * abs(last) <= TOLERANCE * largest or beta == 0:
            break
        beside.append(beta)
        previous, v = v, w.div_(beta)
    return largest


def _largest_eigenpair(diagonal: list[float], beside: list[float]) -> tuple[float, float]:
    """Largest eigenvalue of a symmetric tridiagonal matrix, and the last entry of its eigenvector (the error bound's factor)."""
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        off = torch.tensor(beside, dtype=torch.float64)
        matrix += torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return float(values[-1]), float(vectors[-1, -1])
