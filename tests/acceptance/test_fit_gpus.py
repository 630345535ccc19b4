"""`resources.gpus: fit` of a large training problem: what it chooses fits by forecast, one rank less does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.launch.sweeps import plan_members
from dptrain.plan.cards import Card
from dptrain.plan.fitting import MARGIN
from dptrain.plan.forecast import GIB, forecast
from dptrain.plan.ranks import decide_gpus, request_on
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from dptrain.spec.sweep import expand
from tests.local_runs import TINY

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(3000)]
"""Seconds of a quiet machine, many minutes of one that others use too."""

LARGE = """
name: large
problem: {image_size: [EDGE, EDGE], data: {source: synthetic}}
denoiser: {name: drunet, weights: random}
algorithm: {iterations: 5}
tiling: {patch: 448, halo: 32}
resources: {gpus: fit}
train: {steps: 6, images: 3, held_out: 1}
"""


def test_every_member_of_a_sweep_gets_a_number_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = TINY.replace("gpus: 2", "gpus: fit") + "sweep: {problem.image_size: [[24, 24], [160, 160]]}\n"
    loaded = parse_spec(text, "tiny.yaml", Path.cwd())
    least = [forecast([request_on(replace(m.spec, sweep={}), "train", 1)])[0].peak_bytes for m in expand(loaded.spec)]
    # Not enough for the larger image on one rank.
    card = 1.13 * 0.9 * least[1] / GIB
    members, _ = plan_members(loaded, "train", ClusterProfile(name="c", gpus_per_node=1, gpu_memory_gib=card))
    counts = [member.plan.world_size for member in members]
    print(f"ranks of the members on a card of {card * 1024:.2f} MiB: {counts}")
    assert counts[0] == 1 < counts[1] and all(member.plan.fits for member in members)


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
