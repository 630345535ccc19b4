"""What texts mean: wall times, numbers, truth values, texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spec.reading import problems_of, spec_of

TIMES = {
    "12:00:00": 720,
    "'12:00:00'": 720,
    '"12:00:00"': 720,
    "00:30:00": 30,
    "0:30:00": 30,
    "00:10:30": 11,
    "00:00:01": 1,
    "100:00:00": 6000,
    "1-00:00:00": 1440,
    "1-12:00:00": 2160,
    "2-03:04:05": 3065,
    "1-12:30": 2190,
    "0-00:01": 1,
    "7": 7,
    "'90'": 90,
    "43200": 43200,
}


@pytest.mark.parametrize("text", TIMES)
def test_wall_times(text: str) -> None:
    assert spec_of(f"name: a\nresources: {{time_min: {text}}}\n").resources.time_min == TIMES[text]
    assert spec_of("name: a", f"resources.time_min={text}").resources.time_min == TIMES[text]


@pytest.mark.parametrize(
    "text",
    ["10:30", "'10:30'", "1-12", "1:2:3:4", "24:60:00", "00:00:60", "1-24:00:00", "30m", "half an hour", "-5", "0",
     "00:00:00", "12:00:00.5", "UNLIMITED", "1e2", "030", "1-", "9-99", "999999999"],
)  # fmt: skip
def test_times_that_are_refused(text: str) -> None:
    (problem,) = problems_of(f"name: a\nresources: {{time_min: {text}}}\n")
    assert problem.where == "s.yaml:2:23"
    assert problem.found.startswith("resources.time_min is ")


@given(days=st.integers(0, 300), hours=st.integers(0, 23), minutes=st.integers(0, 59), seconds=st.integers(0, 59))
def test_every_four_field_time(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = days * 1440 + hours * 60 + minutes + bool(seconds)
    text = f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    if total:
        assert spec_of("name: a", f"resources.time_min={text}").resources.time_min == total


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.0e-4", 1e-4),
        ("1E-4", 1e-4),
        ("'1e-4'", 1e-4),
        (".5", 0.5),
        ("5.", 5.0),
        ("+0.1", 0.1),
        ("3", 3.0),
    ],
)
def test_numbers_with_a_fraction(text: str, value: float) -> None:
    read = spec_of(f"name: a\ntrain: {{learning_rate: {text}}}\n").train
    assert read is not None
    assert read.learning_rate == value
    assert type(read.learning_rate) is float


@pytest.mark.parametrize(
    "text", ["1e", "e4", "1e-4x", "--1", "1 000", "0x1p3", "1/3", "inf", "-.inf", "NaN", "1e-400", "0.1.2"]
)
def test_numbers_that_are_refused(text: str) -> None:
    assert problems_of(f"name: a\ntrain: {{learning_rate: {text}}}\n")[0].where == "s.yaml:2:24"


@given(st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False))
def test_every_float_is_read_as_python_writes_it(value: float) -> None:
    read = spec_of("name: a", f"train.learning_rate={value!r}").train
    assert read is not None
    assert read.learning_rate == value


@pytest.mark.parametrize("text", ["2024-01-01", "123", "0123", "1e4", "a:b"])
def test_a_text_is_what_is_written(text: str) -> None:
    data = spec_of(f"name: a\nproblem: {{data: {{truth: {text}}}}}\n").problem.data
    assert getattr(data, "truth", None) == (f"/specs/{text}",)


@pytest.mark.parametrize("word", ["no", "No", "YES", "on", "off", "true", "False", "y", "n"])
def test_words_that_yaml_turns_into_truth_values_need_quotes(word: str) -> None:
    assert problems_of(f"name: {word}")[0].where == "s.yaml:1:7"
    assert spec_of(f"name: '{word}'").name == word


def test_none_is_a_word_and_null_is_nothing() -> None:
    assert spec_of("name: a\ntiling: {patch: none}\n").tiling.patch == "none"
    assert spec_of("name: a\ntrain: null\ncluster: ~\n").train is None
    assert spec_of("name: a\ntrain: {}\n").train is not None
    assert spec_of("name: a\nproblem: {data: {truth: x.png, crop: none}}\n").problem.data is not None


def test_arguments_of_a_factory_are_what_they_plainly_are() -> None:
    given_ones = 'i: 3, x: 1e-4, b: true, z: null, t: two words, q: "12", l: [1, [a, 2.5]], d: {k: {v: "no"}}'
    text = f'name: a\ndenoiser: {{factory: "m:f", {given_ones}}}\n'
    denoiser = spec_of(text).denoiser
    expected = {
        "i": 3,
        "x": 1e-4,
        "b": True,
        "z": None,
        "t": "two words",
        "q": "12",
        "l": [1, ["a", 2.5]],
        "d": {"k": {"v": "no"}},
    }
    assert getattr(denoiser, "arguments", None) == expected
    assert getattr(denoiser, "search_path", None) == "/specs"


@pytest.mark.parametrize("text", ["0123", "1_000", "0x10", "12:00:00", ".inf", "yes", "~x: y", "NULL"])
def test_arguments_that_are_ambiguous_are_refused(text: str) -> None:
    assert problems_of(f"name: a\ndenoiser:\n  factory: 'm:f'\n  v: {text}\n")[0].where.startswith("s.yaml:4:")
