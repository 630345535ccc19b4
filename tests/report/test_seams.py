"""Seams that were put into an image are found, and an image without them has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrain.errors import UsageError
from dptrain.geometry.tiles import TileGrid
from dptrain.report import seams
from dptrain.report.seams import Seams, find_untiled, scores, seams_of
from tests.report.records import ReportedRun, reported

GRID = TileGrid((96, 80), 32, 4)


def texture(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Smoothed noise."""
    x = np.random.default_rng(seed).normal(size=shape)
    return (x + np.roll(x, 1, -1) + np.roll(x, 1, -2)) / 3


def with_seams(x: Any, height: float) -> Any:
    """Every second tile along the first axis is brighter."""
    y = x.copy()
    y[:, 32:64] += height
    return y


def test_no_seams_score_one() -> None:
    for axis in scores(GRID, [texture((3, 96, 80))]):
        assert axis.score == pytest.approx(1, abs=0.15) and not axis.seam
        assert axis.borders == 2 and axis.sigma is not None


def test_seams_are_found_across_their_axis_only() -> None:
    rows, columns = scores(GRID, [with_seams(texture((3, 96, 80)), 0.5)])
    assert rows.score is not None and rows.score > 1.15 and rows.seam
    assert columns.seam is False


def test_brightness_and_slopes_are_no_seams() -> None:
    ramp = np.linspace(0, 9, 96)[None, :, None] + np.linspace(0, 5, 80)
    assert all(axis.at_borders == pytest.approx(0, abs=1e-12) for axis in scores(GRID, [ramp]))


def test_slabs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = with_seams(texture((2, 96, 80)), 0.2)
    whole = scores(GRID, [x])
    monkeypatch.setattr(seams, "SLAB_ELEMENTS", 2 * 80 * 7)
    for a, b in zip(whole, scores(GRID, [x]), strict=True):
        assert a.at_borders == pytest.approx(b.at_borders) and a.inside == pytest.approx(b.inside)


def test_volumes_have_three_axes() -> None:
    grid = TileGrid((24, 24, 40), 8, 2)
    assert [axis.axis for axis in scores(grid, [texture((1, 24, 24, 40))])] == [0, 1, 2]


def run_of(root: Path, name: str, x: Any, *overrides: str) -> ReportedRun:
    run = ReportedRun(root, name, "problem.image_size=[96,80]", "tiling.patch=32", *overrides)
    run.result()
    np.save(run.paths.output / "reconstruction.npy", x.astype(np.float32))
    return run


def test_difference_to_the_untiled_run_shows_what_the_image_hides(tmp_path: Path) -> None:
    x = texture((1, 96, 80))
    y = x + 1e-6 * texture((1, 96, 80), seed=1)
    tiled = run_of(tmp_path, "tiled", with_seams(y, 0.02), "resources.gpus=2")
    untiled = run_of(tmp_path, "untiled", x, "tiling.patch=none")
    run, other = reported(tiled, untiled)
    assert find_untiled(run, [run, other]) == other
    found = seams_of(run, other)
    (image,) = found.images
    assert image.untiled is not None and not image.axes[0].seam and image.untiled.axes[0].seam
    assert image.untiled.largest == pytest.approx(0.02, rel=1e-2)
    assert image.untiled.rms_at_borders is not None and image.untiled.rms_inside is not None
    json.dumps(found.to_json(), allow_nan=False)


def test_refused(tmp_path: Path) -> None:
    x = texture((1, 96, 80))
    untiled, other = (
        run_of(tmp_path, "u", x, "tiling.patch=none"),
        run_of(tmp_path, "o", x, "run.seed=3", "tiling.patch=none"),
    )
    run = run_of(tmp_path, "r", x)
    wrong = run_of(tmp_path, "w", x[:, :90])
    empty = ReportedRun(tmp_path, "e")

    def refused(which: ReportedRun, against: ReportedRun | None = None) -> Seams:
        return seams_of(reported(which)[0], None if against is None else reported(against)[0])

    cases: list[tuple[str, ReportedRun, ReportedRun | None]] = [
        ("has one tile", untiled, None),
        ("run.seed differ", run, other),
        ("no completed untiled run", run, run),
        ("has shape", wrong, None),
        ("has no reconstruction", empty, None),
    ]
    for match, which, against in cases:
        with pytest.raises(UsageError, match=match):
            refused(which, against)
