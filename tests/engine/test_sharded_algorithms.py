"""Algorithms with a proximal step in the layout sharded, on real gloo ranks: equal to deepinv's and to one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dptrain.spec.schema import Algorithm, Resources, Spec, Tiling
from tests.engine.helpers import SMALL, first_gradient, reconstruct, single
from tests.engine.test_sharded_layout import VOLUME, expected_name, gradient_on_boxes, on_boxes
from tests.ranks import RankPool

EVERYTHING = ("denoiser", "step_size", "sigma")
HQS, DRS, ADMM = (Algorithm(name=name, iterations=3) for name in ("hqs", "drs", "admm"))
WITHOUT_TILES = replace(SMALL, algorithm=DRS, tiling=Tiling(patch=36, halo=4))
LONG_STEPS = replace(SMALL, algorithm=replace(HQS, step_size=30.0, init="zeros"))


@pytest.mark.parametrize(
    ("spec", "world_size"),
    [
        (replace(SMALL, algorithm=HQS), 3),
        (replace(SMALL, algorithm=DRS), 2),
        (replace(SMALL, algorithm=ADMM), 5),
        (WITHOUT_TILES, 3),
        (LONG_STEPS, 3),
    ],
    ids=["hqs", "drs", "admm", "drs, ranks without tiles", "hqs, long steps from zeros"],
)
def test_images_and_gradients_are_deepinvs_and_those_of_one_rank(ranks: RankPool, spec: Spec, world_size: int) -> None:
    image = ranks.run(world_size, on_boxes, spec)[0][0]
    torch.testing.assert_close(image, reconstruct(single(), spec)[0], rtol=0, atol=1e-10)
    loss, gradients = gradient_on_boxes(single(), spec, "always", EVERYTHING, 1)
    other_loss, others = first_gradient(single(), spec)
    for got_loss, got in ranks.run(world_size, gradient_on_boxes, spec, "always", EVERYTHING, 1):
        assert got_loss == pytest.approx(loss, rel=1e-12) == pytest.approx(other_loss, rel=1e-10)
        assert got.keys() == gradients.keys() and len(got) == len(others)
        for key, gradient in got.items():
            # deepinv differentiates its solver's iterations, here the solution is differentiated.
            (other,) = (value for end, value in others.items() if end.endswith(expected_name(key)))
            one = gradients[key]
            assert gradient is not None and one is not None
            assert (gradient - one).norm() <= 1e-10 * one.norm(), key
            assert (gradient - other).norm() <= 1e-8 * other.norm(), key


@pytest.mark.parametrize(
    ("spec", "atol"),
    [
        (replace(VOLUME, algorithm=ADMM), 1e-10),
        (replace(SMALL, algorithm=DRS, resources=Resources(layout="replicated")), 1e-5),
    ],
    ids=["volume", "float32"],
)
def test_other_images_are_deepinvs(ranks: RankPool, spec: Spec, atol: float) -> None:
    image = ranks.run(2, on_boxes, spec)[0][0]
    torch.testing.assert_close(image, reconstruct(single(), spec)[0], rtol=0, atol=atol)
