"""Layout sharded on the photograph: neither the number of ranks nor the tiling shows in the result."""

from __future__ import annotations

import itertools

import pytest

from tests.acceptance.runs import Run, run
from tests.cli.cli import Cli

pytestmark = pytest.mark.timeout(1200)

RANKS = (1, 2, 4, 6)
HALO = ("algorithm.iterations=20", "tiling.halo=32")


@pytest.fixture(scope="module")
def by_ranks(tool: Cli) -> dict[int, Run]:
    return {n: run(tool, "infer", "demo", *HALO, "resources.layout=sharded", f"resources.gpus={n}") for n in RANKS}


def distance_db(one: Run, other: Run) -> float:
    """The largest difference of two PSNR paths."""
    return max(abs(a - b) for a, b in zip(one.psnr_db, other.psnr_db, strict=True))


def test_the_path_does_not_depend_on_the_ranks(by_ranks: dict[int, Run]) -> None:
    assert len(by_ranks[1].psnr_db) == 21
    far = {(a, b): distance_db(by_ranks[a], by_ranks[b]) for a, b in itertools.combinations(RANKS, 2)}
    print(f"PSNR paths, ranks against ranks, dB apart: { {pair: f'{value:.1e}' for pair, value in far.items()} }")
    assert max(far.values()) <= 1e-4


@pytest.mark.parametrize("ranks", RANKS)
def test_every_tile_is_executed_on_one_rank(by_ranks: dict[int, Run], ranks: int) -> None:
    tiles = [by_ranks[ranks].final(rank)["tiles"] for rank in range(ranks)]
    print(f"{ranks} ranks execute {tiles}")
    assert sorted(itertools.chain(*tiles)) == list(range(16))
    assert all(tiles)


def test_tiles_at_halo_32_are_the_untiled_reference(tool: Cli, by_ranks: dict[int, Run]) -> None:
    # patch none with a halo: the whole image reflect-padded by it and cropped after.
    untiled = run(tool, "infer", "demo", *HALO, "tiling.patch=none", "resources.gpus=1")
    far = {ranks: distance_db(done, untiled) for ranks, done in by_ranks.items()}
    print(f"against untiled, dB: { {ranks: f'{value:.5f}' for ranks, value in far.items()} }")
    assert max(far.values()) <= 0.002
