"""Dealing of tiles: a partition, balanced, close to the owners."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dptrain.geometry.boxes import cells, contains, intersect, split_boxes, whole
from dptrain.geometry.dealing import at_home, deal_tiles, rectangles
from dptrain.geometry.tiles import TileGrid
from tests.geometry.boxes import shapes

images = shapes(longest=40)


@given(images, st.integers(1, 30), st.integers(0, 6), st.integers(1, 7))
def test_tiles_are_dealt_once_and_evenly(shape: tuple[int, ...], patch: int, halo: int, ranks: int) -> None:
    grid = TileGrid(shape, patch, halo)
    dealing = deal_tiles(grid, split_boxes(shape, ranks, (1,) * len(shape)))
    counts = [len(tiles) for tiles in dealing.tiles]
    assert sorted(itertools.chain(*dealing.tiles)) == list(range(len(grid)))
    if dealing.aligned:
        assert dealing.balance >= 0.97 * len(grid) / ranks / -(-len(grid) // ranks)
    else:
        assert max(counts) - min(counts) <= 1


@given(images, st.integers(1, 30), st.integers(0, 6), st.integers(1, 7))
def test_blocks_hold_their_tiles(shape: tuple[int, ...], patch: int, halo: int, ranks: int) -> None:
    grid = TileGrid(shape, patch, halo)
    dealing = deal_tiles(grid, split_boxes(shape, ranks, (1,) * len(shape)))
    tiles = grid.tiles()
    blocks = list(itertools.chain(*dealing.blocks))
    for block in blocks:
        cores = [tuple((t.core_start, t.core_stop) for t in tiles[i]) for i in block.tiles]
        assert sum(map(cells, cores)) == cells(block.core) and all(contains(block.core, core) for core in cores)
        for i in block.tiles:
            inside = intersect(tuple((t.start, t.stop) for t in tiles[i]), whole(shape))
            assert inside is not None and contains(block.window, inside)
    # Both plans find every pixel they ask for, or they would not be made.
    fetch, back = dealing.fetch_plan(), dealing.return_plan()
    assert [box for boxes in back.wanted for box in boxes] == list(dealing.owned)
    assert fetch.world_size == back.world_size == ranks


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_rectangles_partition_any_set(places: set[tuple[int, int]]) -> None:
    covered = [p for box in rectangles(sorted(places)) for p in itertools.product(*(range(*side) for side in box))]
    assert sorted(covered) == sorted(places)


def test_tiles_that_match_the_boxes_need_one_exchange() -> None:
    dealing = deal_tiles(TileGrid((1024, 1024), 256, 16), split_boxes((1024, 1024), 4, (2, 2)))
    assert dealing.aligned and dealing.balance == 1.0
    assert [len(blocks) for blocks in dealing.blocks] == [1] * 4
    assert not dealing.return_plan().cells_between
    (block,) = dealing.blocks[0]
    assert block.window == ((0, 528), (0, 528)) and block.core == ((0, 512), (0, 512))


def test_the_balance_of_large_images() -> None:
    grid = TileGrid((8192, 8192), 448, 32)
    owned = split_boxes((8192, 8192), 64, (2, 2))
    dealing = deal_tiles(grid, owned)
    blocks = [len(tiles) for tiles in at_home(grid, owned)]
    assert round(len(grid) / 64 / max(blocks), 2) == 0.63
    assert not dealing.aligned and round(dealing.balance, 2) == 0.94
    # Most of what a rank works on is its own: it fetches less than two boxes and talks to few others.
    fetch = dealing.fetch_plan()
    assert max(fetch.bytes_received(r, 1) for r in range(64)) < 2 * 1024**2
    assert max(fetch.messages_received(r) for r in range(64)) <= 9
    assert deal_tiles(TileGrid((8192, 8192), 512, 32), owned).aligned


def test_ranks_beyond_the_tiles_are_idle() -> None:
    dealing = deal_tiles(TileGrid((20, 20), 10, 2), split_boxes((20, 20), 6, (1, 1)))
    assert sorted(map(len, dealing.tiles)) == [0, 0, 1, 1, 1, 1]
