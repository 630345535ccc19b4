"""Short ways to read a spec from text, and to get what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.errors import Problem, SpecError
from dptrain.spec.load import LoadedSpec, parse_spec
from dptrain.spec.schema import Spec

HERE = Path("/specs")


def loaded(text: str, *overrides: str, folder: Path = HERE) -> LoadedSpec:
    return parse_spec(text, "s.yaml", folder, overrides)


def spec_of(text: str, *overrides: str) -> Spec:
    return loaded(text, *overrides).spec


def problems_of(text: str, *overrides: str) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        loaded(text, *overrides)
    return caught.value.problems
