"""Fixtures of the command line tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dptrain.launch.cancel import cancel
from dptrain.launch.local import supervisor_alive
from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from tests.cli.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """The tool in a new folder; local runs that a failed test leaves behind are ended."""
    yield Cli(tmp_path)
    for paths in find_runs(tmp_path / "runs"):
        with suppress(OSError, ValueError):  # damaged on purpose
            if read_intent(paths).launcher == "local" and supervisor_alive(paths) == "alive":
                cancel(paths)
