"""Sweeps: the grid, coupled keys, names, fingerprints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dptrain.spec.schema import Deblur, Denoise, Denoiser, Factory, Spec
from dptrain.spec.sweep import expand, fingerprint, value_at
from tests.spec.reading import problems_of, spec_of

GRID = """\
name: grid
train: {steps: 3}
sweep:
  resources.gpus: [1, 2, 4]
  "tiling.patch, tiling.halo": [[128, 16], [256, 32]]
"""


def test_a_grid_with_coupled_keys() -> None:
    spec = spec_of(GRID)
    assert spec.sweep == {"resources.gpus": (1, 2, 4), "tiling.patch, tiling.halo": ((128, 16), (256, 32))}
    members = expand(spec)
    assert [tuple(m.values.values()) for m in members] == [
        (g, p, h) for g in (1, 2, 4) for p, h in ((128, 16), (256, 32))
    ]
    assert list(members[0].values) == ["resources.gpus", "tiling.patch", "tiling.halo"]
    first = members[1].spec
    assert (first.resources.gpus, first.tiling.patch, first.tiling.halo) == (1, 256, 32)
    assert first.name == "grid-gpus1-patch256-halo32"
    assert first.sweep == {}
    assert len({m.fingerprint for m in members}) == 6
    assert len({m.spec.name for m in members}) == 6


def test_without_a_sweep_there_is_one_member() -> None:
    spec = spec_of("name: a")
    (member,) = expand(spec)
    assert member.spec == spec
    assert member.values == {}
    assert member.fingerprint == fingerprint(spec, "infer")


def test_values_are_typed_as_at_their_key() -> None:
    text = (
        "name: a\nsweep:\n  problem.image_size: [[64, 64], [128, 96]]\n  problem.physics.blur_sigma: [1, [1, 2]]\n"
        "  resources.time_min: [01:00:00, 20]\n  denoiser.weights: [random, w/n.pth]\n"
    )
    assert spec_of(text).sweep == {
        "problem.image_size": ((64, 64), (128, 96)),
        "problem.physics.blur_sigma": ((1.0,), (1.0, 2.0)),
        "resources.time_min": (60, 20),
        "denoiser.weights": ("random", "/specs/w/n.pth"),
    }


def test_another_kind_takes_its_own_defaults() -> None:
    text = "name: a\nproblem: {physics: {name: multiframe_superres, frames: 2}}\nsweep: {problem.physics.name: [deblur, denoise]}\n"
    assert [m.spec.problem.physics for m in expand(spec_of(text))] == [Deblur(), Denoise()]
    text = "name: a\ndenoiser: {weights: random, nb: 2}\nsweep: {denoiser.name: [drunet, identity, dncnn]}\n"
    assert [m.spec.denoiser for m in expand(spec_of(text))] == [
        Denoiser(weights="random", nb=2),
        Denoiser(name="identity"),
        Denoiser(name="dncnn", weights="random"),
    ]


def test_defaults_that_follow_from_swept_values_follow() -> None:
    spec = spec_of("name: a\ntrain: {}\nsweep: {algorithm.sigma: [0.05, noise], resources.time_min: [1, 60]}\n")
    seen = [(m.spec.train.trainable, m.spec.run.signal_lead_s) for m in expand(spec) if m.spec.train is not None]
    three, two = ("denoiser", "step_size", "sigma"), ("denoiser", "step_size")
    assert seen == [(three, 30), (three, 90), (two, 30), (two, 90)]


def test_arguments_of_a_factory_can_be_swept() -> None:
    text = "name: a\ndenoiser: {factory: 'm:f', strength: 0.5}\nsweep: {denoiser.strength: [0.1, 1], denoiser.other: [x, null]}\n"
    denoisers = [m.spec.denoiser for m in expand(spec_of(text))]
    assert all(isinstance(d, Factory) and d.search_path == "/specs" for d in denoisers)
    assert [getattr(d, "arguments", None) for d in denoisers] == [
        {"strength": strength, "other": other} for strength in (0.1, 1) for other in ("x", None)
    ]
    assert "cannot be swept" in problems_of("name: a\nsweep: {denoiser.factory: ['m:f']}\n")[0].found


def test_long_names_are_cut_but_stay_apart() -> None:
    text = f"name: {'n' * 50}\nsweep: {{algorithm.step_size: [0.123456789, 0.123456788, 0.123456787]}}\n"
    names = [m.spec.name for m in expand(spec_of(text))]
    assert len(set(names)) == 3
    assert max(map(len, names)) == 64


def test_one_wrong_member_is_named_with_its_values() -> None:
    (problem,) = problems_of("name: a\nsweep:\n  problem.image_size: [[64, 64], [65, 64]]\n  resources.gpus: [1, 2]\n")
    assert problem.where == "s.yaml:3:34"
    assert problem.found.endswith("(in the run problem.image_size=[65, 64], resources.gpus=1 of the sweep)")


@pytest.mark.parametrize(
    ("line", "where", "write"),
    [
        ("resources.gpus: [1, two]", ["3:23"], ["a whole number"]),
        ("resources.gpus: [0, one, 1.5]", ["3:20", "3:23", "3:28"], ["", "a whole number", "a whole number"]),
        ("problem.image_size: [32, 64]", ["3:24", "3:28"], ["[32, 32]", "[64, 64]"]),
        ("problem.physics.name: [x, y]", ["3:26", "3:29"], None),
        ('"tiling.patch, tiling.halo": [[x, 2], [x, 2], [y, 2]]', ["3:34", "3:42", "3:50"], None),
        ('"tiling.patch, tiling.halo": [[32], 16]', ["3:33", "3:39"], ["[32, ...]", "[16, ...]"]),
    ],
)
def test_a_value_that_cannot_be_read_is_one_problem(line: str, where: list[str], write: list[str] | None) -> None:
    found = problems_of(f"name: a\nsweep:\n  {line}\n")
    assert [p.where for p in found] == [f"s.yaml:{place}" for place in where], [str(p) for p in found]
    if write is not None:
        assert [p.write.partition(", the values")[0] for p in found] == write


BASE = spec_of("name: a\ntrain: {}\n")


def changed(path: str, value: Any) -> Spec:
    section, _, key = path.rpartition(".")
    if not section:
        return replace(BASE, **{key: value})
    return replace(BASE, **{section: replace(getattr(BASE, section), **{key: value})})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("problem.channels", 1),
        ("denoiser.weights", "random"),
        ("algorithm.sigma", 0.1),
        ("tiling.halo", 8),
        ("resources.gpus", 2),
        ("resources.precision", "float64"),
        ("train.steps", 7),
        ("run.seed", 1),
    ],
)
def test_the_fingerprint_sees_what_determines_the_result(path: str, value: Any) -> None:
    assert fingerprint(changed(path, value), "train") != fingerprint(BASE, "train")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "b"),
        ("cluster", "local"),
        ("resources.time_min", 7),
        ("run.stall_timeout_s", 7),
        ("run.signal_lead_s", 7),
        ("run.keep_saves", 7),
        ("train.save_every_steps", 7),
    ],
)
def test_the_fingerprint_does_not_see_the_rest(path: str, value: Any) -> None:
    assert fingerprint(changed(path, value), "train") == fingerprint(BASE, "train")


def test_the_fingerprint_is_of_a_task() -> None:
    assert fingerprint(BASE, "infer") != fingerprint(BASE, "train")
    assert fingerprint(changed("train.steps", 7), "infer") == fingerprint(BASE, "infer")
    assert len(fingerprint(BASE, "infer")) == 12


def test_value_at() -> None:
    assert value_at(BASE, "tiling.patch") == 128
    assert value_at(replace(BASE, train=None), "train.steps") is None
