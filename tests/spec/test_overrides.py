"""`--set`: the same reading as the file, put in before anything is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.spec.schema import Deblur, Denoise, Denoiser, Factory, FileData, MultiframeSuperres, SourceData
from tests.spec.reading import loaded, problems_of, spec_of

FULL = """\
name: a
problem:
  physics: {name: multiframe_superres, frames: 3, factor: 2, noise_std: 0.07}
  data: {source: photo}
denoiser: {name: drunet, weights: random, nc: [8, 8, 8, 8], nb: 1}
tiling: {patch: 64, halo: 8}
train: {steps: 5}
"""


def test_a_value_and_the_last_one_wins() -> None:
    result = loaded(FULL, "tiling.patch=32", "tiling.patch=48", "train.steps=1e1".replace("1e1", "10"))
    assert result.spec.tiling.patch == 48
    assert [(o.key, o.value, o.origin, o.replaces) for o in result.overrides] == [
        ("tiling.patch", "48", "--set", "64 (s.yaml:6:17)"),
        ("train.steps", "10", "--set", "5 (s.yaml:7:16)"),
    ]
    assert result.origins["tiling.patch"] == "--set tiling.patch"
    assert result.origins["tiling.halo"] == "s.yaml:6:27"
    assert "run.seed" not in result.origins


def test_sections_are_made_and_removed() -> None:
    assert spec_of(FULL, "train=null").train is None
    made = spec_of("name: a", "train.steps=3").train
    assert made is not None
    assert made.steps == 3
    assert spec_of("name: a\ntrain: null\n", "train.steps=3").train == made
    assert spec_of("name: a", "train={}").train is not None


def test_a_section_as_a_flow_value() -> None:
    assert spec_of(FULL, "problem.data={source: synthetic}").problem.data == SourceData(source="synthetic")
    assert spec_of(FULL, "problem.physics={name: denoise, noise_std: [0.1, 0.2]}").problem.physics == Denoise(
        noise_std=(0.1, 0.2)
    )


def test_another_kind_drops_what_it_does_not_take() -> None:
    assert spec_of(FULL, "problem.physics.name=deblur").problem.physics == Deblur(noise_std=(0.07,))
    assert spec_of(FULL, "denoiser.name=identity").denoiser == Denoiser(name="identity")
    assert spec_of(FULL, "denoiser.name=dncnn", "denoiser.depth=4").denoiser == Denoiser(
        name="dncnn", weights="random", depth=4
    )
    factory = spec_of(FULL, "denoiser.factory=m:f", "denoiser.k=2").denoiser
    assert factory == Factory(factory="m:f", arguments={"k": 2}, search_path="/specs")
    data = spec_of(FULL, "problem.data.truth=[x.png]").problem.data
    assert data == FileData(truth=(str(Path.cwd() / "x.png"),))
    back = "name: a\nproblem: {physics: {factory: 'm:f', k: 2}, data: {truth: x.png, crop: center}}\n"
    assert spec_of(back, "problem.physics.name=denoise").problem.physics == Denoise()
    assert spec_of(back, "problem.data.source=photo").problem.data == SourceData()


def test_the_same_kind_keeps_everything() -> None:
    physics = spec_of(FULL, "problem.physics.name=multiframe_superres", "problem.physics.factor=4").problem.physics
    assert physics == MultiframeSuperres(frames=3, factor=4, noise_std=(0.07,))


def test_a_key_of_a_section_that_is_not_there_belongs_to_its_default_kind() -> None:
    assert spec_of("name: a", "problem.physics.frames=2").problem.physics == MultiframeSuperres(frames=2)
    assert problems_of("name: a", "problem.data.crop=center")[0].where == "--set problem.data.crop"


def test_what_is_replaced_cannot_complain() -> None:
    assert spec_of("name: no way\ntiling: {patch: many}\n", "name=fine", "tiling.patch=64").name == "fine"
    assert spec_of("name: a\ntrain: {steps: -1}\n", "train=null").train is None


def test_relative_paths_start_where_the_path_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    in_file = loaded("name: a\nproblem: {data: {truth: x/*.png}}\n", folder=Path("/specs")).spec.problem.data
    assert in_file == FileData(truth=("/specs/x/*.png",))
    (tmp_path / "beside").touch()
    for text, read in {
        "w/net.pth": f"{tmp_path}/w/net.pth",
        "net.safetensors": f"{tmp_path}/net.safetensors",
        "beside": f"{tmp_path}/beside",
        "demo-20250101-ab12": "demo-20250101-ab12",
        "builtin": "builtin",
        "/abs/run": "/abs/run",
    }.items():
        denoiser = spec_of("name: a", f"denoiser.weights={text}").denoiser
        assert isinstance(denoiser, Denoiser)
        assert denoiser.weights == read


def test_a_folder_with_brackets_is_no_pattern() -> None:
    data = loaded("name: a\nproblem: {data: {truth: '*.png'}}\n", folder=Path("/data/[old]")).spec.problem.data
    assert data == FileData(truth=("/data/[[]old]/*.png",))


@pytest.mark.parametrize(
    ("override", "where", "found", "write"),
    [
        ("tiling", "--set", "not KEY=VALUE", "--set section.key=value"),
        ("=3", "--set", "not KEY=VALUE", ""),
        ("tiling..patch=3", "--set", "not KEY=VALUE", ""),
        ("tilin.patch=3", "--set tilin.patch", "tilin is not a key", "--set tiling.patch=3"),
        ("patch=3", "--set patch", "it belongs in tiling", "--set tiling.patch=3"),
        ("tiling.pach=3", "--set tiling.pach", "tiling.pach is not a key", "--set tiling.patch=3"),
        ("tiling={pach: 3}", "--set tiling", "tiling.pach is not a key", "--set tiling.patch=3"),
        ("tiling.patch=0123", "--set tiling.patch", "leading zeros", "--set tiling.patch=123"),
        ("tiling.patch=", "--set tiling.patch", "left empty", ""),
        ("tiling.patch.x=3", "--set tiling.patch.x", "it takes one whole number", ""),
        ("tiling.patch=[", "--set tiling.patch", "not YAML", ""),
        ("tiling.patch=!!int 3", "--set tiling.patch", "the tag", ""),
        ("resources.time_min=10:30", "--set resources.time_min", "hours:minutes or", "--set resources.time_min="),
        ("tiling.halo=512", "--set tiling.halo", "not smaller than every axis", ""),
        ("problem.image_size=[63, 64]", "--set problem.image_size", "does not divide", ""),
        ("name=no", "--set name", "without quotes", ""),
        ('cluster="a\\nb"', "--set cluster", "U+000A", ""),
        ("cluster=a\x1b[2J", "--set cluster", "U+001B", ""),
    ],
)
def test_refused(override: str, where: str, found: str, write: str) -> None:
    problem = problems_of(FULL, override)[0]
    assert problem.where == where
    assert found in problem.found
    assert write in problem.write


def test_problems_of_overrides_come_after_those_of_the_file() -> None:
    wheres = [p.where for p in problems_of("name: a\nrun: {seed: x}\n", "foo", "tiling.patch=x")]
    assert wheres == ["s.yaml:2:13", "--set", "--set tiling.patch"]


def test_sweeps_are_set_whole_or_by_key() -> None:
    swept = FULL + "sweep: {tiling.halo: [4, 8]}\n"
    assert spec_of(swept, "sweep=null").sweep == {}
    assert spec_of(swept, "sweep={}").sweep == {}
    assert spec_of(swept, "sweep.tiling.halo=[2]").sweep == {"tiling.halo": (2,)}
    assert spec_of(swept, "sweep=null", "tiling.halo=2").tiling.halo == 2
    assert "is swept at s.yaml:8:9" in problems_of(swept, "tiling.halo=2")[0].found
