"""The demo: how good it is, and that the number of ranks does not show in it."""

from __future__ import annotations

import itertools

import pytest

from tests.acceptance.runs import Run, run
from tests.cli.cli import Cli


@pytest.fixture(scope="module")
def demo(tool: Cli) -> Run:
    return run(tool, "infer", "demo")


def test_four_db_above_the_adjoint(demo: Run) -> None:
    print(f"adjoint {demo.psnr_db[0]:.2f} dB, reconstruction {demo.psnr_db[-1]:.2f} dB")
    assert demo.psnr_db[-1] >= demo.psnr_db[0] + 4
    for file in ("reconstruction.npy", "reconstruction.png", "side-by-side.png", "psnr.png"):
        assert f"output/{file}" in demo.result["output"] and (demo.paths.output / file).stat().st_size > 0


def test_two_db_above_the_best_iterate_without_denoiser(tool: Cli, demo: Run) -> None:
    plain = run(tool, "infer", "demo", "denoiser={name: identity}")
    print(f"best without denoiser {max(plain.psnr_db):.2f} dB, with {demo.psnr_db[-1]:.2f} dB")
    assert demo.psnr_db[-1] >= max(plain.psnr_db) + 2


@pytest.mark.parametrize("world_size", [1, 4])
def test_the_path_does_not_depend_on_the_ranks(tool: Cli, demo: Run, world_size: int) -> None:
    other = run(tool, "infer", "demo", f"resources.gpus={world_size}")
    difference = max(abs(a - b) for a, b in zip(other.psnr_db, demo.psnr_db, strict=True))
    print(f"{world_size} ranks against 2: at most {difference:.2e} dB apart")
    assert difference <= 1e-4
    for done, ranks in ((other, world_size), (demo, 2)):
        tiles = [done.final(rank)["tiles"] for rank in range(ranks)]
        assert sorted(itertools.chain(*tiles)) == list(range(16))
        if ranks > 1:
            assert all(done.final(rank)["bytes_sent"] > 0 for rank in range(ranks))


def test_tiles_at_halo_32_are_the_untiled_reference(tool: Cli) -> None:
    tiled = run(tool, "infer", "demo", "tiling.halo=32")
    # patch none with a halo: the whole image reflect-padded by it and cropped after.
    untiled = run(tool, "infer", "demo", "tiling.patch=none", "tiling.halo=32", "resources.gpus=1")
    difference = max(abs(a - b) for a, b in zip(tiled.psnr_db, untiled.psnr_db, strict=True))
    print(f"tiled against untiled at halo 32: at most {difference:.5f} dB apart")
    assert difference <= 0.002
