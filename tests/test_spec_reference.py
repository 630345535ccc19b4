"""docs/spec.md says what the classes say."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dptrain.spec.cluster import ClusterProfile

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def spec_reference() -> ModuleType:
    """scripts/spec_reference.py as a module: scripts are run, not installed."""
    spec = importlib.util.spec_from_file_location("spec_reference", ROOT / "scripts" / "spec_reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(spec_reference: ModuleType) -> None:
    assert spec_reference.PAGE.read_text(encoding="utf-8") == spec_reference.page(), "write: make docs"


def test_every_key_has_a_meaning(spec_reference: ModuleType) -> None:
    for kind in [kind for _, kind in spec_reference.SECTIONS] + [ClusterProfile]:
        texts = spec_reference.meanings(kind)
        assert list(texts) == [field.name for field in dataclasses.fields(kind)]
        assert all(texts.values()), (kind, texts)
