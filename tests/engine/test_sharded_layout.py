"""Layout sharded as the loops use it, on real gloo ranks: outputs, gradients and whole runs are those of one process."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deepinv.physics import Denoising, LinearPhysics, ZeroNoise

from dptrain.engine.build import build
from dptrain.engine.context import RankEnvironment
from dptrain.engine.local_physics import local_stages
from dptrain.engine.problems import build_physics
from dptrain.engine.reconstruct import load_iterate, save_iterate
from dptrain.engine.saves import agreed_save
from dptrain.engine.trainer import make_batch, training_loss
from dptrain.geometry.tiles import tile_grid
from dptrain.plan.layouts import bytes_per_step, footprints
from dptrain.records.paths import RunPaths
from dptrain.spec.schema import Algorithm, Deblur, Denoise, Factory, Inpaint, MultiframeSuperres, Spec, Task, Tiling
from tests.engine.helpers import SMALL, context, first_gradient, reconstruct, sample_of, single, whole_of
from tests.local_runs import events, finish, result, running, signal_rank, wait_for
from tests.ranks import RankPool

SHARDED = replace(SMALL, resources=replace(SMALL.resources, layout="sharded"))
VOLUME = replace(
    SMALL,
    problem=replace(SMALL.problem, image_size=(20, 18, 22), channels=1, physics=Inpaint()),
    tiling=Tiling(patch=12, halo=4),
)
NAMES = {"gamma_k": "stepsize", "sigma_k": "g_param"}
"""What the layout replicated calls the same parameters."""


def sharded(spec: Spec) -> Spec:
    """The spec in the layout sharded."""
    return replace(spec, resources=replace(spec.resources, layout="sharded"))


def on_boxes(env: RankEnvironment, spec: Spec) -> tuple[torch.Tensor | None, set[int], int]:
    """(whole x_K on rank 0, tiles executed, bytes sent) of one rank."""
    ctx = context(env)
    built = build(sharded(spec), ctx, max_batch_size=2, checkpoint="never")
    sample = sample_of(spec, built.physics)
    with torch.no_grad():
        x = built.algorithm(built.algorithm.measured(sample.measurements))
    return whole_of(built.physics, x), built.algorithm.executed, ctx.bytes_sent


def gradient_on_boxes(
    env: RankEnvironment, spec: Spec, checkpoint: str, trainable: tuple[str, ...], batch: int
) -> tuple[float, dict[str, torch.Tensor | None]]:
    """(loss, gradients by name) as training has them before the optimiser's step."""
    ctx = context(env)
    built = build(sharded(spec), ctx, max_batch_size=batch, checkpoint=checkpoint, trainable=trainable)
    images = make_batch([sample_of(spec, built.physics)], built.algorithm, blind=False)
    loss = training_loss(built, images, "mse")
    loss.backward()  # type: ignore[no-untyped-call]
    built.algorithm.sync_gradients()
    gradients = {n: p.grad for n, p in built.algorithm.named_parameters() if p.requires_grad}
    return float(built.algorithm.sum(loss)), gradients


def check_output(ranks: RankPool, spec: Spec, world_size: int) -> None:
    expected, every_tile, _ = reconstruct(single(), spec)
    results = ranks.run(world_size, on_boxes, spec)
    torch.testing.assert_close(results[0][0], expected, rtol=0, atol=1e-12)
    assert all(image is None for image, _, _ in results[1:])
    assert sorted(itertools.chain(*(tiles for _, tiles, _ in results))) == every_tile
    assert (sum(sent for _, _, sent in results) > 0) == (world_size > 1)


def expected_name(name: str) -> str:
    """The end of a parameter's name in the layout replicated."""
    first, _, rest = name.partition(".")
    return f"{NAMES[first]}.{rest}" if first in NAMES else name.removeprefix("denoiser.processor.")


def check_gradients(
    ranks: RankPool, spec: Spec, world_size: int, checkpoint: str = "always", batch: int = 1
) -> dict[str, torch.Tensor | None]:
    loss, expected = first_gradient(single(), spec)
    everything = ("denoiser", "step_size", "sigma")
    for got_loss, gradients in ranks.run(world_size, gradient_on_boxes, spec, checkpoint, everything, batch):
        assert got_loss == pytest.approx(loss, rel=1e-12)
        assert len(gradients) == len(expected)
        for name, gradient in gradients.items():
            (other,) = (value for key, value in expected.items() if key.endswith(expected_name(name)))
            assert (gradient - other).norm() <= 1e-10 * other.norm(), name
    last: dict[str, torch.Tensor | None] = gradients
    return last


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_reconstruction_equals_one_process(ranks: RankPool, world_size: int) -> None:
    check_output(ranks, SMALL, world_size)


@pytest.mark.parametrize("spec", [
    replace(SMALL, algorithm=Algorithm(name="fista", iterations=4)),
    replace(SMALL, algorithm=Algorithm(iterations=2, init="zeros")),
    replace(SMALL, problem=replace(SMALL.problem, physics=Deblur())),
    replace(SMALL, tiling=Tiling(patch=36, halo=4)),
    VOLUME,
], ids=["fista", "from zeros", "deblur", "ranks without tiles", "volume"])  # fmt: skip
def test_other_problems_equal_one_process(ranks: RankPool, spec: Spec) -> None:
    check_output(ranks, spec, 3)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_gradients_equal_one_process(ranks: RankPool, world_size: int) -> None:
    check_gradients(ranks, SMALL, world_size)


@pytest.mark.parametrize(("mode", "batch"), [("never", 2), ("auto", 1), ("auto", 9), ("always", 2), ("stages", 2)])
def test_checkpoint_modes_give_one_gradient(ranks: RankPool, mode: str, batch: int) -> None:
    check_gradients(ranks, SMALL, 3, mode, batch)


@pytest.mark.parametrize("spec", [
    replace(SMALL, algorithm=Algorithm(name="fista", iterations=4)),
    replace(SMALL, tiling=Tiling(patch=36, halo=4)),
    VOLUME,
], ids=["fista", "ranks without tiles", "volume"])  # fmt: skip
def test_other_gradients_equal_one_process(ranks: RankPool, spec: Spec) -> None:
    check_gradients(ranks, spec, 3)


@pytest.mark.parametrize("trainable", [("denoiser",), ("step_size",), ("sigma",)])
def test_part_of_the_parameters_may_be_trained(ranks: RankPool, trainable: tuple[str, ...]) -> None:
    everything = check_gradients(ranks, SMALL, 2)
    for _, gradients in ranks.run(2, gradient_on_boxes, SMALL, "auto", trainable, 1):
        assert gradients
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, everything[name], rtol=1e-9, atol=1e-14)


def test_step_sizes_come_back_from_a_save() -> None:
    trained = build(SHARDED, context(single()), max_batch_size=1, checkpoint="auto", trainable=("step_size",)).algorithm
    with torch.no_grad():
        for k, parameter in enumerate(p for p in trained.parameters() if p.requires_grad):
            parameter.mul_(1 - 0.1 * k)
    values = {name: torch.stack(v) for name, v in trained.parameters_k.items()}
    for other in (SHARDED, SMALL):
        fixed = build(other, context(single()), max_batch_size=1, checkpoint="auto").algorithm
        fixed.load_parameters_k(values)
        assert all(torch.equal(torch.stack(v), values[name]) for name, v in fixed.parameters_k.items())
    longer = replace(SHARDED, algorithm=Algorithm(iterations=5))
    with pytest.raises(ValueError, match="3 unrolled steps"):
        build(longer, context(single()), max_batch_size=1, checkpoint="auto").algorithm.load_parameters_k(values)


def test_a_noise_level_per_image(ranks: RankPool) -> None:
    alone = [image for level in (0.1, 0.5) if (image := _with_levels(single(), level)) is not None]
    together = ranks.run(2, _with_levels, 0.1, 0.5)[0]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-12)
    assert not torch.equal(together[0], together[1])


def _with_levels(env: RankEnvironment, *levels: float) -> torch.Tensor | None:
    ctx = context(env)
    built = build(SHARDED, ctx, max_batch_size=2, checkpoint="auto")
    batch = make_batch([sample_of(SMALL, built.physics)] * len(levels), built.algorithm, blind=False)
    with torch.no_grad():
        x = built.algorithm(batch.measured, torch.tensor(levels, dtype=torch.float64))
    return whole_of(built.physics, x)


class Spectrum(LinearPhysics):  # type: ignore[misc]
    """The lower half of an image's Fourier coefficients: a global operator with complex measurements."""

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        coefficients: torch.Tensor = torch.fft.fft2(x, norm="ortho")
        return coefficients[..., : x.shape[-2] // 2, :]

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        padded = torch.nn.functional.pad(y, (0, 0, 0, y.shape[-2]))
        image: torch.Tensor = torch.fft.ifft2(padded, norm="ortho").real
        return image


def spectrum_and_identity() -> list[LinearPhysics]:
    """One global operator and a local one."""
    return [Spectrum(noise_model=ZeroNoise()), Denoising(noise_model=ZeroNoise())]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_users_global_operator(ranks: RankPool, world_size: int) -> None:
    physics = Factory(factory="tests.engine.test_sharded_layout:spectrum_and_identity")
    spec = replace(SMALL, problem=replace(SMALL.problem, physics=physics))
    check_output(ranks, spec, world_size)
    check_gradients(ranks, spec, world_size)


def _stretch(env: RankEnvironment, spec: Spec, steps: range, folder: Path, keep: bool) -> torch.Tensor | None:
    """The whole image after some steps, from the save in a folder where there is one; perhaps saved."""
    built = build(spec, context(env), max_batch_size=2, checkpoint="never")
    algorithm, paths = built.algorithm, RunPaths(folder)
    measured = algorithm.measured(sample_of(spec, built.physics).measurements)
    found = agreed_save(paths)
    state = algorithm.initial(measured) if found is None else load_iterate(found[1], built, steps.start)
    with torch.no_grad():
        for k in steps:
            state = algorithm.iterate(state, k, measured)
    if keep:
        save_iterate(paths, built, state, steps.stop, {}, 1)
    return whole_of(built.physics, state["est"][0])


@pytest.mark.parametrize(
    ("saved_by", "layout", "algorithm"),
    [
        (1, "sharded", "fista"),
        (3, "sharded", "pgd"),
        (4, "sharded", "admm"),
        (2, "replicated", "pgd"),
        (2, "replicated", "drs"),
    ],
)
def test_another_number_of_ranks_goes_on_from_a_save_in_either_layout(
    ranks: RankPool, tmp_path: Path, saved_by: int, layout: Any, algorithm: Any
) -> None:
    spec = replace(SMALL, algorithm=Algorithm(name=algorithm, iterations=4))
    expected = reconstruct(single(), spec)[0]
    RunPaths(tmp_path / "run").create()
    before = replace(spec, resources=replace(spec.resources, layout=layout))
    ranks.run(saved_by, _stretch, before, range(2), tmp_path / "run", True)
    assert len(list((tmp_path / "run").glob("saves/step-2/shard-*"))) == (1 if layout == "replicated" else saved_by)
    for world_size, after in ((1, sharded(spec)), (6, sharded(spec)), (2, spec)):
        got = ranks.run(world_size, _stretch, after, range(2, 4), tmp_path / "run", False)[0]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)


def _traffic(env: RankEnvironment, spec: Spec, task: Task) -> int:
    """Bytes a rank sends in one step."""
    ctx = context(env)
    assert spec.train is not None
    trainable = spec.train.trainable if task == "train" else ()
    built = build(spec, ctx, max_batch_size=2, checkpoint="always", trainable=trainable)
    sample = sample_of(spec, built.physics)
    if task == "infer":
        measured = built.algorithm.measured(sample.measurements)
        state, begin = built.algorithm.initial(measured), ctx.bytes_sent
        with torch.no_grad():
            built.algorithm.iterate(state, 0, measured)
        return ctx.bytes_sent - begin
    begin = ctx.bytes_sent
    batch = make_batch([sample], built.algorithm, blind=False)
    training_loss(built, batch, "mse").backward()  # type: ignore[no-untyped-call]
    return ctx.bytes_sent - begin


@pytest.mark.parametrize("task", ["infer", "train"])
@pytest.mark.parametrize(
    ("physics", "trainable", "world_size"),
    [
        (MultiframeSuperres(frames=4), ("denoiser", "step_size"), 3),
        (Deblur(), ("denoiser",), 4),
        (Inpaint(), ("step_size",), 2),
    ],
)
def test_ranks_send_what_plan_says(
    ranks: RankPool, task: Task, physics: Any, trainable: tuple[Any, ...], world_size: int
) -> None:
    assert SHARDED.train is not None
    spec = replace(
        SHARDED,
        problem=replace(SHARDED.problem, physics=physics),
        train=replace(SHARDED.train, trainable=trainable),
        resources=replace(SHARDED.resources, gpus=world_size),
    )
    planned = bytes_per_step(spec, task, tile_grid(spec.problem.image_size, spec.tiling))
    assert max(ranks.run(world_size, _traffic, spec, task)) == planned


@pytest.mark.parametrize(
    "physics", [MultiframeSuperres(frames=2), MultiframeSuperres(frames=2, factor=1), Deblur(), Denoise(), Inpaint()]
)
def test_plan_knows_what_built_in_operators_read(physics: Any) -> None:
    spec = replace(SMALL, problem=replace(SMALL.problem, physics=physics))
    (expected,) = footprints(spec) or []
    for operator in build_physics(spec, torch.device("cpu"), torch.float64).physics_list:
        stages = local_stages(operator, spec.problem.image_size)
        assert stages is not None and [stage.footprint for stage in stages] == expected


@pytest.fixture
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


FLOAT64 = ("resources.precision=float64", "problem.physics={name: multiframe_superres, frames: 4}")


def both(task: Any, *change: str) -> tuple[dict[str, Any], dict[str, Any], np.ndarray[Any, Any] | None]:
    """result.json of a run in either layout, and the difference of their reconstructions."""
    results, images = [], []
    for layout in ("replicated", "sharded"):
        with running(task, f"resources.layout={layout}", *change) as run:
            assert finish(run) == 0, run.attempt(1).rank_log(0).read_text()
        results.append(result(run))
        images += [np.load(path) for path in run.output.glob("reconstruction.npy")]
    return results[0], results[1], images[1] - images[0] if images else None


@pytest.mark.usefixtures("runs_folder")
def test_an_inference_run_has_the_numbers_of_the_layout_replicated() -> None:
    whole, boxes, difference = both("infer", *FLOAT64, "resources.gpus=3", "algorithm.name=admm")
    assert boxes["layout"] == "sharded" and len(boxes["psnr_db"]) == len(boxes["ssim"]) == 4
    for name in ("psnr_db", "ssim"):
        assert boxes[name] == pytest.approx(whole[name], rel=0, abs=1e-9), name
    assert difference is not None and np.abs(difference).max() < 1e-10
    assert boxes["sections"].keys() == whole["sections"].keys()
    assert boxes["sections"]["gradient"] > 0 and boxes["sections"]["denoise"] > 0
    assert boxes["output"] == whole["output"]


@pytest.mark.acceptance
@pytest.mark.usefixtures("runs_folder")
def test_a_training_run_has_the_numbers_of_the_layout_replicated() -> None:
    whole, boxes, _ = both("train", *FLOAT64, "train.batch_size=2", "train.loss=l1")
    assert len(boxes["loss"]) == 6
    for name in ("loss", "psnr_db", "step_size", "sigma"):
        assert boxes[name] == pytest.approx(whole[name], rel=0, abs=1e-9), name


@pytest.mark.usefixtures("runs_folder")
def test_a_training_run_interrupted_and_resumed_equals_uninterrupted() -> None:
    change = ("resources.layout=sharded", "train.steps=80", "train.save_every_steps=10")
    with running("train", *change) as whole:
        assert finish(whole) == 0
    with running("train", *change) as stopped:
        wait_for(lambda: events(stopped, 1, "step"), "the first step")
        signal_rank(stopped, 1, signal.SIGUSR2)
        assert finish(stopped) == 0
    assert stopped.attempts() == [1, 2]
    assert result(stopped)["loss"] == result(whole)["loss"]
    assert result(stopped)["psnr_db"] == result(whole)["psnr_db"]
    models = [(run.save(80) / "model.safetensors").read_bytes() for run in (whole, stopped)]
    assert models[0] == models[1]


@pytest.mark.acceptance
@pytest.mark.usefixtures("runs_folder")
def test_a_reconstruction_interrupted_and_resumed_equals_uninterrupted() -> None:
    change = (
        "resources.layout=sharded",
        "algorithm.iterations=150",
        "algorithm.name=fista",
        "denoiser.init=passthrough",
    )
    with running("infer", *change) as whole:
        assert finish(whole) == 0
    with running("infer", *change) as stopped:
        wait_for(lambda: events(stopped, 0, "step"), "the first step")
        signal_rank(stopped, 0, signal.SIGUSR2)
        assert finish(stopped) == 0
    assert stopped.attempts() == [1, 2]
    assert result(stopped)["psnr_db"] == result(whole)["psnr_db"]
    first, second = (np.load(p.output / "reconstruction.npy") for p in (whole, stopped))
    assert np.array_equal(first, second)


@pytest.mark.usefixtures("runs_folder")
def test_divergence_keeps_the_last_finite_image(tmp_path: Path) -> None:
    (tmp_path / "wild.py").write_text(
        "import torch\n"
        "class Wild(torch.nn.Module):\n"
        "    def forward(self, x, sigma):\n"
        "        return x * 1e30\n"
        "def build(**kwargs):\n"
        "    return Wild()\n"
    )
    change = ("resources.layout=sharded", 'denoiser={factory: "wild:build"}', "algorithm.iterations=9")
    with running("infer", *change, folder=tmp_path) as run:
        assert finish(run) == 1
    failure = events(run, 0, "failure")[0]
    assert failure["class"] == "diverged" and not failure["secondary"]
    image = np.load(run.output / "last-good.npy")
    assert image.shape == (1, 24, 24) and bool(np.isfinite(image).all())
