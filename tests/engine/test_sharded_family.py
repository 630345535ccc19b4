"""Layout sharded on real gloo ranks against one process, on a family of awkward problems; the long version is part of acceptance."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.engine.sharded_family import BOUNDARIES, Case, cases, check
from tests.ranks import RankPool

AWKWARD = {
    "the last tile is shifted by most of a patch": Case(
        shape=(33, 17), patch=16, halo=4, world_size=4, boundaries=BOUNDARIES, images=2, channels=3, batch=2
    ),
    "patch = image on one axis": Case(
        shape=(12, 23), patch=12, halo=3, world_size=6, boundaries=("reflect",), dropout=0.3, checkpoint="never"
    ),
    "thinner than the kernel": Case(shape=(3, 26), patch=2, halo=2, world_size=5, boundaries=("circular", "replicate")),
    "a volume": Case(
        shape=(7, 9, 10), patch=4, halo=2, world_size=3, boundaries=BOUNDARIES, batch=3, checkpoint="auto"
    ),
    "random layers": Case(
        shape=(21, 19), patch=7, halo=3, world_size=3, boundaries=("constant", "circular"), batch=3, dropout=0.3
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_problems(ranks: RankPool, name: str) -> None:
    check(ranks, AWKWARD[name])


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_any_problem(ranks: RankPool, case: Case) -> None:
    check(ranks, case)
