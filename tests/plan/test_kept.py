"""What lies in a cache is an answer only where it is what was kept there under that name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptrain.plan import kept
from dptrain.plan.forecast import KEPT as FORECASTS
from dptrain.plan.forecast import Request, forecast
from dptrain.plan.norm import KEPT as NORMS
from dptrain.plan.receptive import KEPT as RECEPTIVE
from dptrain.plan.receptive import _key, known
from dptrain.spec.load import parse_spec
from tests.local_runs import TINY

ANSWER = {"peaks": {"forward": 5}, "terms": {"forward": {"weights": 5}}, "per_step_bytes": None, "rank": 0}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["peaks", "terms", "forward", "digest", "answer", "rank"]), inner, max_size=4)
    ),
    max_leaves=8,
)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(folder: str, name: str, text: str) -> Path:
    path = kept.place(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@QUICK
@given(VALUES)
def test_what_is_kept_is_read_again(answer: Any) -> None:
    kept.keep("any", "a", answer)
    again = kept.read("any", "a")
    assert json.dumps(again) == json.dumps(json.loads(json.dumps(answer)))
    kept.place("any").joinpath("a.json").rename(kept.place("any") / "b.json")
    assert kept.read("any", "b") is None, "the answer to another question"


@QUICK
@given(VALUES | st.fixed_dictionaries({"answer": VALUES, "digest": VALUES}))
def test_other_json_is_no_answer(value: Any) -> None:
    written("any", "a", json.dumps(value))
    assert kept.read("any", "a") is None


@QUICK
@given(st.data())
def test_a_file_that_is_cut_or_changed_is_no_answer(data: st.DataObject) -> None:
    kept.keep("any", "a", ANSWER)
    path = kept.place("any") / "a.json"
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]):
        path.write_bytes(damaged)
        assert kept.read("any", "a") in (None, ANSWER)
        if json_or_none(damaged) != json_or_none(whole):
            assert kept.read("any", "a") is None


def json_or_none(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def test_a_damaged_cache_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse_spec(TINY, "tiny.yaml", Path.cwd()).spec
    request = Request(spec=spec, task="train", max_batch_size=1, checkpoint="always")
    monkeypatch.setattr("dptrain.plan.forecast._ask", lambda requests: [ANSWER] * len(requests))
    assert forecast([request])[0].peak_bytes == 5
    (file,) = kept.place(FORECASTS).iterdir()
    name = _key(spec) or ""
    values: list[Any] = [
        {"peaks": {}},
        {"peaks": None},
        {"peaks": {"forward": 5}},
        [],
        3,
        None,
        {"digest": 1, "answer": {}},
    ]
    for value in values:
        file.write_text(json.dumps(value))
        written(RECEPTIVE, name, json.dumps(value))
        assert forecast([request])[0].peak_bytes == 5 and known(spec) is None
    written(NORMS, "deep", "[" * 100_000)
    assert kept.read(NORMS, "deep") is None
