"""What plan asks of the physics, in a process of its own: a spec on stdin, one JSON line on stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from dptrain.engine.problems import WholePhysics, build_physics, operator_norm_sq
from dptrain.spec.checks import deblur_kernel
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Deblur, MultiframeSuperres, Spec

EDGE = 64
"""Pixels per axis of the image the norm is measured on: the built-in operators' norm hardly depends on the size."""


def shrink(spec: Spec) -> Spec:
    """The same physics on a small image whose axes the decimation divides."""
    physics = spec.problem.physics
    factor = physics.factor if isinstance(physics, MultiframeSuperres) else 1
    edge = -(-EDGE // factor) * factor
    if isinstance(physics, Deblur):
        edge = max(edge, deblur_kernel(physics.blur_sigma))
    size = tuple(min(length, edge) for length in spec.problem.image_size)
    return replace(spec, problem=replace(spec.problem, image_size=size, channels=1))


def main() -> None:
    """Print {"norm_sq": ...} of the stacked operator."""
    spec = shrink(parse_spec(sys.stdin.read(), "stdin", Path.cwd(), ()).spec)
    device, dtype = torch.device("cpu"), torch.float64
    physics = build_physics(spec, device, dtype)
    whole = WholePhysics(physics, (1, *spec.problem.image_size), device, dtype)
    norm_sq = operator_norm_sq(whole, spec.run.seed)
    print(json.dumps({"norm_sq": norm_sq}))


if __name__ == "__main__":
    main()
