"""Settings and fixtures of the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from tests.ranks import RankPool

pytest_plugins = ["tests.slurm_fixtures"]

# No timed assertion: a slow machine is not a fault.
hypothesis.settings.register_profile("dptrain", deadline=None, max_examples=60)
hypothesis.settings.load_profile("dptrain")


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Real gloo ranks, started when first used."""
    pool = RankPool()
    yield pool
    pool.close()
