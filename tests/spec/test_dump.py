"""A dumped spec reads back to an equal one, whatever it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrain.errors import SpecError
from dptrain.spec.dump import dump_spec
from dptrain.spec.load import load_spec, parse_spec
from dptrain.spec.schema import Spec
from dptrain.spec.sweep import expand
from tests.spec.reading import loaded, spec_of
from tests.spec.specs import specs

SEED_TEXT = """\
name: a
problem: {image_size: [64, 64], physics: {name: deblur, noise_std: [0.1, 0.2]}, data: {truth: "x/*.png"}}
denoiser: {factory: "m:f", k: [1, {a: no way}]}
train: {steps: 3, trainable: [denoiser]}
sweep: {"tiling.patch, tiling.halo": [[64, 8]]}
"""


@settings(max_examples=100)
@given(specs())
def test_round_trip(spec: Spec) -> None:
    text = dump_spec(spec)
    assert parse_spec(text, "run.yaml", Path("/elsewhere")).spec == spec
    assert dump_spec(parse_spec(text, "run.yaml", Path("/elsewhere")).spec) == text


@settings(max_examples=30)
@given(specs())
def test_members_of_a_sweep_round_trip(spec: Spec) -> None:
    for member in expand(spec)[:4]:
        assert not member.spec.sweep
        assert parse_spec(dump_spec(member.spec), "run.yaml", Path("/elsewhere")).spec == member.spec


def test_defaults_are_written_out(tmp_path: Path) -> None:
    text = dump_spec(spec_of("name: a"))
    for line in ("  gpus: 1", "  iterations: 10", "  patch: 128", "train: null", "sweep: {}", "cluster: null"):
        assert line in text.splitlines()
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    assert load_spec(tmp_path / "s.yaml").spec == spec_of("name: a")


@settings(max_examples=500)
@given(st.text(max_size=60))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    for variant in (
        text,
        f"name: {text}",
        f'name: "{text}"',
        f"name: a\ntiling: {{{text}: 3}}",
        f"name: a\nsweep: {text}",
    ):
        try:
            loaded(variant)
        except SpecError as error:
            assert error.problems


@settings(max_examples=500)
@given(
    st.integers(0, len(SEED_TEXT) - 1), st.text("{}[]:,&*!|>'\"%@`#-?\n\t 0x1_~<nulyes", max_size=4), st.integers(0, 8)
)
def test_no_damage_to_a_spec_ends_in_a_traceback(at: int, put_in: str, cut: int) -> None:
    try:
        loaded(SEED_TEXT[:at] + put_in + SEED_TEXT[at + cut :])
    except SpecError as error:
        assert all(problem.where.startswith("s.yaml:") for problem in error.problems)


@settings(max_examples=100)
@given(st.text(max_size=30))
def test_no_override_ends_in_a_traceback(text: str) -> None:
    for override in (text, f"tiling.patch={text}", f"{text}=3", f"problem.physics.{text}", f"sweep.{text}=[1]"):
        try:
            loaded(SEED_TEXT, override)
        except SpecError as error:
            assert error.problems


def test_a_text_that_would_end_a_line_cannot_be_dumped() -> None:
    with pytest.raises(AssertionError):
        dump_spec(Spec(name="a\nb"))
