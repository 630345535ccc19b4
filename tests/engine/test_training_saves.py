"""A save of training goes on on any number of ranks, in either layout, with any replicas, as if nothing had happened."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import pytest
import torch

from dptrain.engine.build import build
from dptrain.engine.context import RankEnvironment
from dptrain.engine.problems import build_data
from dptrain.engine.saves import agreed_save, restore_rng
from dptrain.engine.trainer import data_order, make_batch, make_optimizer, own_share, training_loss
from dptrain.engine.training_saves import Progress, load_optimizer_state, load_training, save_training
from dptrain.records.paths import RunPaths
from dptrain.spec.schema import Spec, Train
from tests.engine.helpers import SMALL, context, single
from tests.ranks import RankPool

SPEC = replace(SMALL, train=Train(images=6, held_out=0, batch_size=2))
EVERYTHING = ("denoiser", "step_size", "sigma")
SAVED, WHOLE = 2, 4
Layout = Literal["replicated", "sharded"]
Outcome = tuple[list[float], dict[str, torch.Tensor]]


def of(layout: Layout, replicas: int = 1) -> Spec:
    """The same images per step, however they are dealt."""
    assert SPEC.train is not None
    resources = replace(SPEC.resources, layout=layout, replicas=replicas)
    return replace(SPEC, resources=resources, train=replace(SPEC.train, batch_size=2 // replicas))


def train(env: RankEnvironment, spec: Spec, folder: Path, until: int) -> Outcome:
    """Go on from the folder's newest save, if it has one, and save: (loss of every step, weights)."""
    assert spec.train is not None
    paths, ctx = RunPaths(folder), context(env, spec.resources.replicas)
    built = build(spec, ctx, max_batch_size=2, checkpoint="auto", trainable=EVERYTHING)
    algorithm, images = built.algorithm, build_data(spec, built.physics, role="train")
    optimizer = make_optimizer(algorithm, 1e-2)
    found = agreed_save(paths)
    progress = Progress() if found is None else load_training(found[1], algorithm, optimizer, spec.run.seed)
    order = data_order(len(images), 0, progress.step * ctx.mesh.replicas * spec.train.batch_size)
    for indices in itertools.islice(own_share(order, spec.train.batch_size, ctx.mesh), until - progress.step):
        optimizer.zero_grad()
        loss = training_loss(built, make_batch([images[i] for i in indices], algorithm, blind=False), "mse")
        loss.backward()  # type: ignore[no-untyped-call]
        algorithm.sync_gradients()
        optimizer.step()
        progress.step += 1
        progress.loss.append(float(algorithm.sum(loss.detach())) / ctx.mesh.replicas)
    save_training(paths, algorithm, optimizer, progress, keep=2)
    return progress.loss, {name: p.detach().clone() for name, p in algorithm.trained.items()}


def started(folder: Path) -> Path:
    RunPaths(folder).create()
    return folder


@pytest.fixture(scope="module")
def uninterrupted(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = started(tmp_path_factory.mktemp("whole") / "run")
    outcome: Outcome = ranks.run(4, train, of("sharded"), folder, WHOLE)[0]
    return outcome


@pytest.fixture(scope="module")
def stopped(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four ranks in layout sharded, with a save in its middle."""
    folder = started(tmp_path_factory.mktemp("stopped") / "run")
    ranks.run(4, train, of("sharded"), folder, SAVED)
    return folder


@pytest.mark.parametrize(
    ("world_size", "layout", "replicas"),
    [
        (2, "sharded", 1),
        (1, "sharded", 1),
        (6, "sharded", 1),
        (2, "replicated", 1),
        (4, "sharded", 2),
    ],
)
def test_a_save_of_four_ranks_goes_on_elsewhere(
    ranks: RankPool,
    uninterrupted: Outcome,
    stopped: Path,
    tmp_path: Path,
    world_size: int,
    layout: Layout,
    replicas: int,
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    loss, weights = ranks.run(world_size, train, of(layout, replicas), tmp_path / "run", WHOLE)[-1]
    assert loss == pytest.approx(uninterrupted[0], rel=1e-10)
    assert list(weights) == list(uninterrupted[1])
    for name, value in uninterrupted[1].items():
        torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-10)


def test_a_save_of_the_layout_replicated_goes_on_in_the_other(
    ranks: RankPool, uninterrupted: Outcome, tmp_path: Path
) -> None:
    folder = started(tmp_path / "run")
    ranks.run(2, train, of("replicated"), folder, SAVED)
    loss, _ = ranks.run(4, train, of("sharded"), folder, WHOLE)[0]
    assert loss == pytest.approx(uninterrupted[0], rel=1e-10)


@pytest.mark.parametrize("trainable", [EVERYTHING, ("denoiser",), ("step_size",), ("sigma", "denoiser")])
def test_layouts_name_the_same_parameters_in_the_same_order(trainable: tuple[str, ...]) -> None:
    names = [
        list(
            build(
                of(layout), context(single()), max_batch_size=1, checkpoint="auto", trainable=trainable
            ).algorithm.trained
        )
        for layout in get_args(Layout)
    ]
    assert names[0] == names[1]
    assert {name.split(".")[0] for name in names[0]} == set(trainable)


def test_state_of_what_is_not_trained_is_refused() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(ValueError, match=r"what is not trained here: sigma\.0"):
        load_optimizer_state(optimizer, ["step_size.0"], {"sigma.0": {}})


def test_streams_beyond_those_of_the_save_differ_and_are_the_same_every_time() -> None:
    torch.manual_seed(5)
    saved = [{"cpu": torch.get_rng_state()}]

    def draw(rank: int, step: int = 3) -> float:
        restore_rng(saved, rank, 0, step)
        return float(torch.rand(()))

    torch.manual_seed(5)
    assert draw(0) == float(torch.rand(torch.Size(), generator=torch.Generator().manual_seed(5)))
    drawn = [draw(0), draw(1), draw(2), draw(1, step=4)]
    assert len(set(drawn)) == 4
    assert drawn == [draw(0), draw(1), draw(2), draw(1, step=4)]
