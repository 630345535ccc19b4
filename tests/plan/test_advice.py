"""Values that buy nothing, and what plan says of halo and network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dptrain.geometry.tiles import tile_grid
from dptrain.plan.advice import seen, sentences
from dptrain.plan.layouts import tiles_per_rank
from dptrain.plan.receptive import IDENTITY, Receptive
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Task
from tests.local_runs import TINY

SMALL = replace(IDENTITY, radius=3, effective_radius=2, beyond=(0.8, 0.3, 0.0005, 0.0), gain=2.0)


def said(*overrides: str, task: Task = "infer", receptive: Receptive | None = SMALL) -> list[str]:
    spec = parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides).spec
    grid = tile_grid(spec.problem.image_size, spec.tiling)
    return list(sentences(spec, task, grid, tiles_per_rank(spec, grid), receptive))


def test_nothing_is_said_of_values_that_do_something() -> None:
    assert said("tiling.halo=3") == said("tiling.halo=3", task="train") == []
    assert said(receptive=None) == []


def test_a_halo_wider_than_the_network_sees() -> None:
    (text,) = said()
    assert text.startswith(
        "tiling.halo 4 buys nothing over 3: the denoiser sees 3 pixels far; write: --set tiling.halo=3, "
    )
    assert text.endswith("3.36 instead of 4 times the pixels")
    assert said("tiling.patch=64") == []


def test_the_advised_halo_suits_the_network() -> None:
    change = ("denoiser={name: unet, weights: random}", "tiling.halo=16", "problem.image_size=[96, 96]")
    assert "tiling.halo=4," in said(*change)[0]
    # No halo makes windows of an odd patch a multiple of 8.
    assert "tiling.halo=3," in said(*change, "tiling.patch=17")[0]


def test_a_halo_that_cuts_off_much() -> None:
    (text,) = said("tiling.halo=1")
    assert "leaves out 30 % of what the denoiser sees" in text and text.endswith("write: --set tiling.halo=2")
    assert said("tiling.halo=2") == []
    (suited,) = said("tiling.halo=1", "denoiser={name: unet, weights: random}", "tiling.patch=8")
    assert suited.endswith("write: --set tiling.halo=4")
    assert said("tiling.halo=1", receptive=replace(SMALL, beyond=(0.5,) * 3, radius=90))[0].endswith("on one rank")


def test_batches_and_checkpointing_that_do_nothing() -> None:
    assert said("tiling.max_batch_size=5", "tiling.halo=3") == [
        "tiling.max_batch_size 5 buys nothing over 2: no rank has more tiles"
    ]
    auto = ("tiling.checkpoint=auto", "tiling.halo=3")
    assert "here it is never" in said(*auto, "tiling.max_batch_size=2", task="train")[0]
    assert said(*auto, "tiling.max_batch_size=1", task="train") == []
    assert "without training there is nothing" in said(*auto, "train=null")[0]
    assert said(*auto) == []


def test_networks_that_see_the_whole_image() -> None:
    everywhere = replace(SMALL, radius=None, looked=4096, statistics=("GroupNorm (body.1)",), beyond=(0.0001,))
    (text,) = said(receptive=everywhere)
    assert "looks at the whole image (GroupNorm (body.1))" in text and "tiling.patch" in text
    assert said("tiling.patch=24", "tiling.halo=0", receptive=everywhere) == []
    (text,) = said("tiling.patch=24", receptive=everywhere)
    assert "reflected border" in text and "--set tiling.halo=0" in text
    normal = replace(SMALL, batch_norm=("BatchNorm2d (body.2)",))
    assert "BatchNorm2d (body.2): in training" in said("tiling.halo=3", task="train", receptive=normal)[0]


def test_the_line_on_what_the_denoiser_sees() -> None:
    spec = parse_spec(TINY, "tiny.yaml", Path.cwd(), ("tiling.halo=1",)).spec
    grid = tile_grid(spec.problem.image_size, spec.tiling)
    line = seen(spec, grid, SMALL)
    assert "sees 3 pixels far, all but a thousandth within 2 (with untrained weights" in line
    assert "halo 1 leaves out 30 % of it" in line and "at most about 0.06 at seams" in line
    assert "tiles equal the whole image" in seen(spec, replace(grid, halo=3), SMALL)
    assert "one tile has no seams" in seen(spec, replace(grid, patch=24), SMALL)
