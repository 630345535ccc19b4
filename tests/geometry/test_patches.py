"""The patch that gives the busiest rank the fewest pixels."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrain.geometry.boxes import split_boxes
from dptrain.geometry.dealing import busiest, deal_tiles
from dptrain.geometry.patches import LARGEST, NEAR, candidates, fit_patch, measured
from dptrain.geometry.tiles import TileGrid


def benchmark() -> ModuleType:
    """benchmarks/patch_fit.py as a module: it is run, not installed."""
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "patch_fit.py"
    spec = importlib.util.spec_from_file_location("patch_fit", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(
    shape=st.lists(st.integers(8, 90), min_size=2, max_size=3).map(tuple),
    patch=st.integers(7, 40),
    ranks=st.integers(1, 13),
    stride=st.integers(1, 3),
)
def test_the_busiest_rank_is_that_of_the_real_dealing(
    shape: tuple[int, ...], patch: int, ranks: int, stride: int
) -> None:
    grid = TileGrid(shape, patch, 3)
    owned = split_boxes(shape, ranks, (stride,) * len(shape))
    dealing = deal_tiles(grid, owned)
    assert busiest(grid, owned) == (max(len(tiles) for tiles in dealing.tiles), dealing.aligned)
    assert sorted(itertools.chain.from_iterable(dealing.tiles)) == list(range(len(grid)))


@given(
    shape=st.lists(st.integers(16, 400), min_size=2, max_size=2).map(tuple),
    halo=st.integers(0, 20),
    ranks=st.integers(1, 9),
    sharded=st.booleans(),
)
def test_no_other_patch_has_less_load(shape: tuple[int, ...], halo: int, ranks: int, sharded: bool) -> None:
    owned = split_boxes(shape, ranks, (2, 2)) if sharded else None
    fitted = fit_patch(shape, halo, ranks, owned, stride=8)
    every = [measured(TileGrid(shape, edge, halo), ranks, owned) for edge in candidates(shape, halo, 8)]
    near = [patch for patch in every if patch.load <= NEAR * min(patch.load for patch in every)]
    assert fitted == max(near, key=lambda patch: (patch.aligned, patch.edge))


@pytest.mark.parametrize("halo", [0, 10, 16, 33])
@pytest.mark.parametrize(("stride", "smallest"), [(1, 1), (8, 32), (16, 16), (128, 128)])
def test_windows_suit_the_network(halo: int, stride: int, smallest: int) -> None:
    edges = candidates((1000, 700), halo, stride, smallest)
    assert edges and max(edges) <= LARGEST[2]
    for edge in edges:
        assert (edge + 2 * halo) % stride == 0 and edge + 2 * halo >= smallest
    if 2 * halo % stride == 0:
        assert all(edge % stride == 0 for edge in edges)


def test_an_axis_that_no_patch_suits_does_not_end_the_search() -> None:
    # Five slices deep: their windows are never a multiple of 8, whatever the patch.
    edges = candidates((5, 256, 256), 4, 8, 32)
    assert edges[-1] == LARGEST[3] and all((edge + 8) % 8 == 0 for edge in edges)
    assert candidates((6, 6), 1) == [8]
    assert candidates((4, 4), 0, 8, 32) == [32]


def test_large_images_take_no_time_and_stay_with_their_owners() -> None:
    fitted = fit_patch((8192, 8192), 32, 64, split_boxes((8192, 8192), 64, (2, 2)), stride=8, smallest_window=32)
    assert (fitted.edge, fitted.aligned) == (512, True)
    assert math.isclose(fitted.load, 1.265625)


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_a_slice_of_the_benchmark(layout: str) -> None:
    script = benchmark()
    rows = [script.row(edge, ranks, 32, layout, 8) for edge in range(512, 8193, 1280) for ranks in (2, 3, 7, 16, 64)]
    assert script.is_good(rows)
