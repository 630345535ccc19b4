"""The family of awkward problems at length."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.engine.sharded_family import Case, cases, check
from tests.ranks import RankPool


@pytest.mark.timeout(1800)
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_the_layout_sharded_is_one_process(ranks: RankPool, case: Case) -> None:
    check(ranks, case)
