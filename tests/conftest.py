"""Settings and fixtures of the whole suite."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import hypothesis
import pytest

from tests.ranks import RankPool

pytest_plugins = ["tests.slurm_fixtures"]

# No timed assertion: a slow machine is not a fault.
hypothesis.settings.register_profile("dptrain", deadline=None, max_examples=60)
hypothesis.settings.load_profile("dptrain")

# A shell starts what it puts into the background with Ctrl-C ignored, and every program started from there inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Real gloo ranks, started when first used."""
    pool = RankPool()
    yield pool
    pool.close()
