"""The tile grid: deepinv's where deepinv has one, a partition everywhere."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrain.geometry.tiles import TileGrid, axis_tiles, tile_grid
from dptrain.spec.schema import Tiling

lengths = st.integers(1, 60)


@given(lengths, lengths, st.integers(0, 20))
def test_cores_partition_the_axis_and_windows_surround_them(length: int, patch: int, halo: int) -> None:
    tiles = axis_tiles(length, patch, halo)
    covered = [i for t in tiles for i in range(t.core_start, t.core_stop)]
    assert covered == list(range(length))
    for tile in tiles:
        assert tile.stop - tile.start == min(patch, length) + 2 * halo
        assert tile.start + halo <= tile.core_start < tile.core_stop == tile.stop - halo
        assert -halo <= tile.start and tile.stop <= length + halo


@given(st.lists(st.integers(2, 40), min_size=2, max_size=3), st.integers(1, 39), st.integers(0, 8))
def test_the_grid_is_deepinvs(shape: list[int], patch: int, halo: int) -> None:
    from deepinv.distributed.strategies.utils import tiling_splitting_strategy

    patch = min(patch, min(shape) - 1)
    dims = tuple(range(-len(shape), 0))
    windows, meta = tiling_splitting_strategy((1, 1, *shape), patch_size=patch, overlap=halo, tiling_dims=dims)
    tiles = TileGrid(tuple(shape), patch, halo).tiles()
    assert len(tiles) == len(windows)
    for tile, window, target, crop in zip(tiles, windows, meta["target_slices"], meta["crop_slices"], strict=True):
        assert [(a.start + halo, a.stop + halo) for a in tile] == [(s.start, s.stop) for s in window[2:]]
        assert [(a.core_start, a.core_stop) for a in tile] == [(s.start, s.stop) for s in target[2:]]
        assert [(a.core_start - a.start, a.core_stop - a.start) for a in tile] == [(s.start, s.stop) for s in crop[2:]]


@given(st.lists(lengths, min_size=2, max_size=3), lengths, st.integers(1, 9))
def test_dealing_is_disjoint_covering_and_even(shape: list[int], patch: int, world_size: int) -> None:
    grid = TileGrid(tuple(shape), patch, 2)
    dealt = grid.deal(world_size)
    assert sorted(itertools.chain(*dealt)) == list(range(len(grid)))
    sizes = [len(ids) for ids in dealt]
    assert max(sizes) - min(sizes) <= 1
    counts = grid.deal_counts(world_size)
    assert (counts.most, counts.idle) == (max(sizes), sizes.count(0))
    assert math.isclose(counts.mean, sum(sizes) / world_size)
    assert grid.counts == tuple(len(axis) for axis in grid.axes)


@pytest.mark.parametrize("image", [2048, 4096])
def test_the_published_work_multiplier(image: int) -> None:
    # Published inference runs (numpex/benchmark_invprob_largescale): patch 448, halo 32.
    assert TileGrid((image, image), 448, 32).work_multiplier == 1.5625


def test_none_is_one_tile_with_its_halo() -> None:
    grid = tile_grid((30, 50), Tiling(patch="none", halo=4))
    assert len(grid) == 1 and grid.window_shape == (38, 58)
    assert math.isclose(grid.work_multiplier, 38 * 58 / 1500)


def test_a_patch_as_long_as_one_axis_is_one_tile_there() -> None:
    assert TileGrid((20, 100), 20, 4).counts == (1, 5)


def test_counting_lists_nothing() -> None:
    # A slip of the keyboard in a size or a number of ranks must not keep plan busy.
    grid = TileGrid((10**9, 10**9), 128, 16)
    assert grid.deal_counts(10**9).most > 0 and grid.work_multiplier > 1
