"""`resources.gpus: fit` of a large training problem: what it chooses fits by forecast, one rank less does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.plan.cards import Card
from dptrain.plan.fitting import MARGIN
from dptrain.plan.forecast import forecast
from dptrain.plan.ranks import decide_gpus, request_on
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec

pytestmark = pytest.mark.acceptance

LARGE = """
name: large
problem: {image_size: [EDGE, EDGE], data: {source: synthetic}}
denoiser: {name: drunet, weights: random}
algorithm: {iterations: 5}
tiling: {patch: 448, halo: 32}
resources: {gpus: fit}
train: {steps: 6, images: 3, held_out: 1}
"""


@pytest.mark.parametrize(("edge", "card_gib", "several"), [(16384, 16, True), (16384, 32, True), (4096, 32, False)])
def test_the_fewest_ranks_of_a_large_problem(edge: int, card_gib: float, several: bool) -> None:
    loaded = parse_spec(LARGE.replace("EDGE", str(edge)), "large.yaml", Path.cwd())
    profile = ClusterProfile(name="c", gpus_per_node=1, gpu_memory_gib=card_gib)
    decided, (choice,) = decide_gpus(loaded, "train", profile)
    chosen = decided.spec.resources.gpus
    assert choice.value == chosen and (chosen > 1) == several
    near = [n for n in (chosen, chosen - 1) if n > 0]
    answers = forecast([request_on(loaded.spec, "train", n) for n in near])
    assert [Card(capacity_gib=card_gib).fits(a, 1 - MARGIN) for a in answers] == [True, False][: len(near)]
