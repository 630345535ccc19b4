"""What `dptrain init` writes: every template is a legal spec, explains every line, and starts with its name."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from dptrain.spec.load import parse_spec
from dptrain.spec.profiles import parse_profile
from dptrain.spec.schema import DENOISER_KEYS, Denoiser, MultiframeSuperres, SourceData, Spec, Train
from dptrain.spec.sections import hints_of
from dptrain.spec.tree import Source

FOLDER = files("dptrain.templates")
SPECS = {p.name.removesuffix(".yaml"): p.read_text("utf-8") for p in FOLDER.iterdir() if p.name.endswith(".yaml")}
PROFILES = {p.name.removesuffix(".yaml"): p.read_text("utf-8") for p in (FOLDER / "clusters").iterdir() if p.is_file()}
FOR_NEWCOMERS = ("demo", "factory", "measured", "sweep", "train", "volume")


@pytest.mark.parametrize("name", SPECS)
def test_each_is_a_legal_spec(name: str) -> None:
    spec = parse_spec(SPECS[name], f"{name}.yaml", Path("/specs")).spec
    first, second = SPECS[name].splitlines()[:2]
    assert first.split()[:2] == ["name:", spec.name]
    assert second.startswith("# ")


@pytest.mark.parametrize("name", FOR_NEWCOMERS)
def test_each_line_with_a_value_has_a_comment(name: str) -> None:
    lines = [line for line in SPECS[name].splitlines() if line.strip() and not line.endswith(":")]
    assert [line for line in lines if "#" not in line] == []


def test_the_demo() -> None:
    spec = parse_spec(SPECS["demo"], "demo.yaml", Path("/specs")).spec
    assert spec.problem.image_size == (512, 512)
    assert spec.problem.physics == MultiframeSuperres(frames=4, factor=2, blur_sigma=(1.0, 2.0), noise_std=(0.05,))
    assert spec.problem.data == SourceData(source="photo")
    assert spec.denoiser == Denoiser(name="drunet", weights="builtin")
    assert (spec.algorithm.iterations, spec.algorithm.sigma, spec.algorithm.init) == (10, 0.05, "adjoint")
    assert (spec.tiling.patch, spec.tiling.halo, spec.resources.gpus, spec.train) == (128, 16, 2, None)


def test_the_demo_and_the_training_template_show_every_key() -> None:
    shown = yaml.safe_load(SPECS["demo"])
    for section in ("problem", "algorithm", "tiling", "resources", "run"):
        assert set(shown[section]) == set(hints_of(hints_of(Spec)[section]))
    train = yaml.safe_load(SPECS["train"])
    assert set(train["train"]) == set(hints_of(Train)) - {"held_out_data"}
    assert set(train["denoiser"]) == set(DENOISER_KEYS["drunet"])


def test_what_the_training_template_trained_can_be_used() -> None:
    used = parse_spec(SPECS["train"], "train.yaml", Path("/specs"), ["denoiser.weights=unrolled-train-20250101-ab"])
    assert isinstance(used.spec.denoiser, Denoiser)
    assert used.spec.denoiser.weights == "unrolled-train-20250101-ab"


def without_comment_marks(text: str) -> str:
    """A profile with its commented lines switched on, but for one of the two memory forms."""
    lines = text[text.index("launcher:") :].splitlines()
    switched = [line.removeprefix("# ") for line in lines]
    return "\n".join(line for line in switched if not line.startswith("mem_per_cpu_gib"))


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_is_legal_with_and_without_its_commented_lines(name: str) -> None:
    for text in (PROFILES[name], without_comment_marks(PROFILES[name])):
        parse_profile(text, name, Source(label=name, folder=Path("/sites")))


def test_reading_specs_loads_nothing_heavy() -> None:
    code = (
        "import sys, dptrain.spec.load, dptrain.spec.sweep, dptrain.spec.profiles, dptrain.spec.files, "
        "dptrain.records.index; "
        "sys.exit(', '.join({'numpy', 'torch', 'deepinv', 'submitit', 'rich', 'typer'} & sys.modules.keys()) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
