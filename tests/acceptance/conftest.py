"""The long checks: whole commands on the shipped templates, as a user types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli import Cli

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is part of `make acceptance`, not of `make test`."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("acceptance")


@pytest.fixture(scope="session")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The command line tool with one folder of runs for all of the session."""
    return Cli(tmp_path_factory.mktemp("acceptance"))
