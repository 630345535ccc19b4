"""How far a denoiser sees, measured on the network itself, in a process of its own: a spec on stdin, one JSON line on stdout.

Two probes. What the network can reach: one pixel of a long strip is not a number, and so is every output that depends on it,
however small its weight; this is exact where a gradient in float32 has long underflowed. What it makes use of: the gradient of a
centre pixel of the output for a random image, whose mass beyond a radius is what a halo of that width cuts off.

Letters: x (1, C, *strip) or (1, C, *cube).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dptrain.engine.denoisers import build_denoiser
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Factory, Spec

STRIPS = (64, 256, 1024, 4096)
"""Lengths of strips tried, pixels."""
THICKNESSES = (16, 32, 64, 128)
"""Of a strip, the first that the network takes; short strips of a volume are what makes its probe affordable."""
MOST_PIXELS = 2**17
"""Of a strip."""
EDGE = {2: 128, 3: 32}
"""Edge of the image whose gradient is taken, at most, by the image's axes."""
LEFT = 1e-3
"""The effective radius leaves this share of the gradient's mass outside."""
STATISTICS = (
    nn.GroupNorm,
    nn.LayerNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.MultiheadAttention,
)
"""Modules by which a network may look at the whole image; named where the probe says that it does."""


def main() -> None:
    """Print what was measured of the spec's denoiser."""
    spec = parse_spec(sys.stdin.read(), "stdin", Path.cwd(), ()).spec
    print(json.dumps(measure(build_denoiser(spec, torch.device("cpu"), torch.float32), spec)))


def measure(network: nn.Module, spec: Spec) -> dict[str, Any]:
    """The answer as plain values; `dptrain.plan.receptive` says what they mean."""
    network.eval().requires_grad_(False)
    axes, channels = len(spec.problem.image_size), spec.problem.channels
    sigma = torch.tensor([_sigma(spec)])
    thickness, flops = _thickness(network, axes, channels, sigma)
    radius, looked = reach(network, axes, channels, sigma, thickness)
    edge = EDGE[axes] if radius is None else min(EDGE[axes], 2 * radius + 2)
    edge = max(thickness, -(-edge // thickness) * thickness)
    gain, beyond = gradient_mass(network, axes, channels, sigma, edge)
    return {
        "radius": radius,
        "looked": looked,
        "effective_radius": next((r for r, share in enumerate(beyond) if share <= LEFT), None),
        "gain": gain,
        "beyond": beyond,
        "statistics": _named(network, STATISTICS, "attention") if radius is None else [],
        "batch_norm": _named(network, (nn.modules.batchnorm._BatchNorm,)),
        "parameters": sum(p.numel() for p in network.parameters()),
        "flops_per_pixel": flops,
    }


def reach(network: nn.Module, axes: int, channels: int, sigma: Tensor, thickness: int) -> tuple[int | None, int]:
    """(radius, pixels looked at): outputs further away than the radius do not depend on a pixel; None: all depend on it."""
    looked = 0
    for length in STRIPS:
        if thickness ** (axes - 1) * length > MOST_PIXELS:
            break
        # At the end of the strip, a multiple of any stride: there the reach is largest.
        x = torch.rand((1, channels) + (thickness,) * (axes - 1) + (length,))
        x[..., 0] = math.nan
        with torch.no_grad():
            touched = network(x, sigma).isnan().flatten(0, -2).any(0).tolist()
        looked = length
        start, stop = longest_run(touched, False)
        # Around the end lies what a circular boundary touches; dilated filters leave small holes.
        if stop - start >= length // 4:
            return max(0, start - 1), looked
    return None, looked


def longest_run(values: list[bool], wanted: bool) -> tuple[int, int]:
    """(start, stop) of the longest run of one value, the first of equals; (0, 0) where there is none."""
    best, start = (0, 0), 0
    for i, value in enumerate([*values, not wanted]):
        if value != wanted:
            if i - start > best[1] - best[0]:
                best = (start, i)
            start = i + 1
    return best


def gradient_mass(network: nn.Module, axes: int, channels: int, sigma: Tensor, edge: int) -> tuple[float, list[float]]:
    """Sum of |d output / d input| for the centre pixel of a cube, and the share of it further away than 0, 1, ... pixels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((1, channels) + (edge,) * axes, generator=generator).requires_grad_()
    centre = edge // 2
    network(x, sigma)[(0, slice(None)) + (centre,) * axes].sum().backward()
    assert x.grad is not None
    mass = x.grad.abs().sum((0, 1)).double()
    total = float(mass.sum())
    beyond = []
    for r in range(centre):
        inside = mass[(slice(centre - r, centre + r + 1),) * axes]
        beyond.append(float(f"{max(0.0, 1 - float(inside.sum()) / total):.3g}") if total else 0.0)
    return total / channels, beyond


def _sigma(spec: Spec) -> float:
    """A noise level that the run has."""
    if spec.algorithm.sigma != "noise":
        return float(spec.algorithm.sigma)
    assert not isinstance(spec.problem.physics, Factory), "the loader refuses it"
    return max(spec.problem.physics.noise_std)


def _thickness(network: nn.Module, axes: int, channels: int, sigma: Tensor) -> tuple[int, float]:
    """The smallest edge of an input that the network takes, and its floating point operations per pixel there."""
    for edge in THICKNESSES:
        counter = FlopCounterMode(display=False)
        try:
            with torch.no_grad(), counter:
                network(torch.rand((1, channels) + (edge,) * axes), sigma)
        except RuntimeError:
            if edge == THICKNESSES[-1]:
                raise
            continue
        return edge, counter.get_total_flops() / edge**axes
    raise AssertionError("the last one returns or raises")


def _named(network: nn.Module, kinds: tuple[type[nn.Module], ...], word: str | None = None) -> list[str]:
    """`GroupNorm (body.0.norm)` for the first module of every type that is one of these or has the word in its name."""
    found: dict[str, str] = {}
    for name, module in network.named_modules():
        kind = type(module).__name__
        if isinstance(module, kinds) or (word is not None and word in kind.lower()):
            found.setdefault(kind, f"{kind} ({name})" if name else kind)
    return list(found.values())


if __name__ == "__main__":
    main()
