"""The update rules of the algorithms, as deepinv's `optim_iterators` write them, on whatever part of the image a rank holds.

A rule is made of three pieces that know layout, physics and parameters of the step: `descend`, z - gamma grad f(z); `prox`, the
minimiser of gamma f(u) + 1/2 ||u - z||^2; `denoise`, D_sigma. As deepinv's defaults have it, relaxation is 1 and f comes first.

Letters: x the image, z what else is carried, each (B, C, ...), the rank's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Piece = Callable[[torch.Tensor], torch.Tensor]
Estimates = tuple[torch.Tensor, ...]
"""(x, ...): the image, and what else the algorithm carries."""

FISTA_A = 3
"""deepinv's `a`: z_{k+1} = x_{k+1} + (k + a - 1) / (k + a) (x_{k+1} - x_k)."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What one step is made of."""

    descend: Piece
    prox: Piece
    denoise: Piece


def pgd(est: Estimates, _: int, pieces: Pieces) -> Estimates:
    """x <- D(x - gamma grad f(x)); deepinv's `PGDIteration`."""
    return (pieces.denoise(pieces.descend(est[0])),)


def fista(est: Estimates, k: int, pieces: Pieces) -> Estimates:
    """As `pgd` from an extrapolated point z; deepinv's `FISTAIteration`."""
    x = pieces.denoise(pieces.descend(est[1]))
    return x, x + (k + FISTA_A - 1) / (k + FISTA_A) * (x - est[0])


def hqs(est: Estimates, _: int, pieces: Pieces) -> Estimates:
    """x <- D(prox(x)); deepinv's `HQSIteration`."""
    return (pieces.denoise(pieces.prox(est[0])),)


def drs(est: Estimates, _: int, pieces: Pieces) -> Estimates:
    """u = prox(z), x = D(2 u - z), z <- z + x - u; deepinv's `DRSIteration`."""
    z = est[1]
    u = pieces.prox(z)
    x = pieces.denoise(2 * u - z)
    return x, z + (x - u)


def admm(est: Estimates, _: int, pieces: Pieces) -> Estimates:
    """u = prox(x - z), x = D(u + z), z <- z + u - x; deepinv's `ADMMIteration`."""
    x, z = est
    u = pieces.prox(x - z)
    x = pieces.denoise(u + z)
    return x, z + (u - x)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One algorithm."""

    step: Callable[[Estimates, int, Pieces], Estimates]
    """(estimates, k from 0, pieces) -> estimates."""
    carries: int
    """Tensors of its estimates. All start as the first iterate: deepinv's z_0 is x_0, also the dual of ADMM."""


RULES: Mapping[str, Rule] = {
    "pgd": Rule(step=pgd, carries=1),
    "fista": Rule(step=fista, carries=2),
    "hqs": Rule(step=hqs, carries=1),
    "drs": Rule(step=drs, carries=2),
    "admm": Rule(step=admm, carries=2),
}
"""By the name in the spec."""
