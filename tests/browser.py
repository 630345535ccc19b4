"""A headless chromium of this machine, for tests of pages; a test that needs one says why where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """A playwright browser. Skips the test without the extra `browser` or without chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the extra `browser` is not installed")
    program = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no chromium on this machine (looked for {', '.join(CHROMIUM)})")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        try:
            yield browser
        finally:
            browser.close()
