"""Data parallel times spatial, on real gloo ranks: replicas with an image each are one process with all of these images."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dptrain.engine.build import Built, build
from dptrain.engine.context import RankContext, RankEnvironment
from dptrain.engine.mesh import Mesh
from dptrain.engine.problems import build_data
from dptrain.engine.trainer import data_order, make_batch, own_share, seed_replica, training_loss
from dptrain.spec.schema import Algorithm, FileData, Spec, Tiling, Train
from tests.engine.helpers import SMALL, context, single
from tests.local_runs import events, finish, result, running, signal_rank, wait_for
from tests.ranks import RankPool

SHARDED = replace(
    SMALL, resources=replace(SMALL.resources, layout="sharded"), train=Train(images=6, held_out=0, batch_size=1)
)
EVERYTHING = ("denoiser", "step_size", "sigma")


def batch_of(built: Built, spec: Spec, ctx: RankContext, batch_size: int) -> Any:
    """This rank's part of the first batch of the training data."""
    images = build_data(spec, built.physics, role="train")
    indices = next(own_share(data_order(len(images), spec.run.seed, 0), batch_size, ctx.mesh))
    return make_batch([images[i] for i in indices], built.algorithm, blind=False)


def gradients(
    env: RankEnvironment, spec: Spec, replicas: int, batch_size: int
) -> tuple[float, dict[str, torch.Tensor | None]]:
    """(mean loss, gradients by name) of the first step, before the optimiser's."""
    ctx = context(env, replicas)
    built = build(spec, ctx, max_batch_size=2, checkpoint="auto", trainable=EVERYTHING)
    loss = training_loss(built, batch_of(built, spec, ctx, batch_size), "mse")
    loss.backward()  # type: ignore[no-untyped-call]
    built.algorithm.sync_gradients()
    named = {name: p.grad for name, p in built.algorithm.named_parameters() if p.requires_grad}
    return float(built.algorithm.sum(loss)) / replicas, named


@pytest.mark.parametrize(
    ("world_size", "replicas", "batch_size", "tiling"),
    [
        (2, 2, 1, SMALL.tiling),
        (2, 2, 3, SMALL.tiling),
        (4, 2, 1, SMALL.tiling),
        (4, 2, 2, SMALL.tiling),
        (6, 2, 1, SMALL.tiling),
        (6, 3, 2, SMALL.tiling),
        (6, 2, 1, Tiling(patch=36, halo=4)),
    ],
)
def test_gradients_are_those_of_one_process_with_every_image(
    ranks: RankPool, world_size: int, replicas: int, batch_size: int, tiling: Tiling
) -> None:
    check(ranks, replace(SHARDED, tiling=tiling), world_size, replicas, batch_size)


def test_solvers_of_replicas_do_not_wait_for_each_other(ranks: RankPool) -> None:
    check(ranks, replace(SHARDED, algorithm=Algorithm(name="admm", iterations=2, step_size=9.0)), 4, 2, 1)


def test_files_that_are_read_whole_and_measurements_of_files(ranks: RankPool, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(draw.integers(0, 256, (40, 36, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        np.save(tmp_path / f"{i}.npy", draw.random((4, 3, 20, 18)))
    data = FileData(truth=(f"{tmp_path}/*.png",), measurements=(f"{tmp_path}/*.npy",))
    train = Train(images=4, held_out=0)
    check(ranks, replace(SHARDED, problem=replace(SHARDED.problem, data=data), train=train), 4, 2, 1)


def check(ranks: RankPool, spec: Spec, world_size: int, replicas: int, batch_size: int) -> None:
    loss, expected = gradients(single(), spec, 1, replicas * batch_size)
    for got_loss, got in ranks.run(world_size, gradients, spec, replicas, batch_size):
        assert got_loss == pytest.approx(loss, rel=1e-12)
        assert got.keys() == expected.keys()
        for name, gradient in expected.items():
            assert gradient is not None and (got[name] - gradient).norm() <= 1e-10 * gradient.norm(), name


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9))
def test_replicas_see_what_one_process_sees_in_the_same_places(
    images: int, replicas: int, batch_size: int, start: int
) -> None:
    joint = replicas * batch_size
    whole = list(itertools.islice(data_order(images, 3, 0), (start + 5) * joint))[start * joint :]
    shares = []
    for replica in range(replicas):
        mesh = Mesh(replicas=replicas, replica=replica, spatial_size=1, spatial_rank=0, spatial_group=None)
        shares.append(list(itertools.islice(own_share(data_order(images, 3, start * joint), batch_size, mesh), 5)))
    assert [image for step in zip(*shares, strict=True) for part in step for image in part] == whole


def where(env: RankEnvironment, replicas: int) -> tuple[int, int, float, float, int]:
    """(replica, spatial rank, sum of rank numbers in the replica, a random number, bytes sent by a sum over all ranks)."""
    ctx = context(env, replicas)
    total = torch.tensor([float(env.rank)])
    if ctx.mesh.spatial_size > 1:
        torch.distributed.all_reduce(total, group=ctx.mesh.spatial_group)
    seed_replica(0, ctx.mesh.replica)
    drawn = float(torch.rand(()))
    ctx.summed(torch.zeros(6))
    return ctx.mesh.replica, ctx.mesh.spatial_rank, float(total), drawn, ctx.bytes_sent


def test_ranks_of_a_replica_are_neighbours_and_draw_alike(ranks: RankPool) -> None:
    places = ranks.run(6, where, 2)
    assert [place[:3] for place in places] == [(0, 0, 3), (0, 1, 3), (0, 2, 3), (1, 0, 12), (1, 1, 12), (1, 2, 12)]
    drawn = [place[3] for place in places]
    assert drawn[:3] == [drawn[0]] * 3 and drawn[3:] == [drawn[3]] * 3 and drawn[0] != drawn[3]
    # A ring over all six ranks, of 24 bytes.
    assert all(place[4] == 2 * 5 * 24 // 6 for place in places)
    assert [place[:2] for place in ranks.run(2, where, 2)] == [(0, 0), (1, 0)]
    assert [place[:2] for place in ranks.run(2, where, 1)] == [(0, 0), (0, 1)]
    # The first goes on with the stream of the seed.
    assert drawn[0] == float(torch.rand((), generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.acceptance
@pytest.mark.usefixtures("runs_folder")
def test_a_run_with_replicas_equals_one_process_also_interrupted() -> None:
    change = (
        "resources.layout=sharded", "resources.precision=float64", "problem.physics={name: multiframe_superres, frames: 4}",
        "train={steps: 30, images: 5, held_out: 3, save_every_steps: 6}",
    )  # fmt: skip
    with running("train", *change, "resources.gpus=1", "train.batch_size=2") as alone:
        assert finish(alone) == 0
    with running("train", *change, "resources.gpus=4", "resources.replicas=2") as run:
        wait_for(lambda: events(run, 3, "step"), "the first step")
        signal_rank(run, 3, signal.SIGUSR2)
        assert finish(run) == 0, run.attempt(1).rank_log(0).read_text()
    assert run.attempts() == [1, 2]
    expected, got = result(alone), result(run)
    assert (got["world_size"], got["replicas"]) == (4, 2) and len(got["loss"]) == 30 and len(got["psnr_db"]) == 6
    for name in ("loss", "psnr_db", "psnr_steps", "step_size", "sigma"):
        assert got[name] == pytest.approx(expected[name], rel=0, abs=1e-8), name
    tiles = [set(events(run, rank, "final")[0]["tiles"]) for rank in range(4)]
    assert (
        tiles[0] == tiles[2]
        and tiles[1] == tiles[3]
        and tiles[0] | tiles[1] == {0, 1, 2, 3}
        and not tiles[0] & tiles[1]
    )
