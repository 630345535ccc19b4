"""What plan says, refuses and decides."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.errors import NoSuchRun, PlanRefused, SpecError
from dptrain.launch.snapshot import create_run
from dptrain.launch.sweeps import plan_members
from dptrain.plan.plan import Plan, make_plan
from dptrain.records.intent import Intent, write_intent
from dptrain.records.paths import RunPaths
from dptrain.spec.checks import deblur_kernel
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import load_spec, parse_spec
from dptrain.spec.schema import Task
from tests.local_runs import TINY, events, finish, running

LOCAL = ClusterProfile(name="local", launcher="local")
SLURM = ClusterProfile(name="c", gpus_per_node=4, partition="p")

CONTRACT = {
    "fits", "reasons", "layout", "world_size", "tiles", "tiles_per_rank_max", "tiles_per_rank_mean", "idle_ranks",
    "work_multiplier", "halo_needed", "memory", "bytes_per_step", "max_batch_size", "checkpoint", "patch", "step_time_s",
    "gpu_hours", "sbatch", "choices",
}  # fmt: skip


def plan_of(*overrides: str, task: Task = "infer", profile: ClusterProfile = LOCAL, text: str = TINY) -> Plan:
    return make_plan(parse_spec(text, "tiny.yaml", Path.cwd(), overrides), task, profile)


def test_json_has_the_contracts_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    value = plan_of(profile=replace(SLURM, gpu_memory_gib=32)).to_json()
    assert value.keys() >= CONTRACT
    assert value["memory"].keys() >= {
        "forward_gib",
        "backward_gib",
        "peak_gib",
        "allowance_gib",
        "capacity_gib",
        "terms",
    }
    assert value["memory"]["capacity_gib"] == 32
    assert value["fits"] is True and value["tiles"] == 4 and value["tiles_per_rank_max"] == 2
    assert all(c.keys() == {"key", "value", "reason"} and c["reason"] for c in value["choices"])


def test_steps_count_iterations_times_images_or_optimiser_steps(tmp_path: Path) -> None:
    assert plan_of().steps == 3
    assert plan_of(task="train").steps == 6
    for name in ("a.png", "b.png", "c.npy"):
        (tmp_path / name).touch()
    assert plan_of(f'problem.data={{truth: "{tmp_path}/*.png"}}').steps == 6
    assert plan_of(f'problem.data={{truth: ["{tmp_path}/*.png", "{tmp_path}/c.npy", "{tmp_path}/a.png"]}}').steps == 9


@pytest.mark.parametrize("task", ["infer", "train"])
def test_fit_becomes_a_value_with_a_reason(task: Task) -> None:
    value = plan_of(task=task).to_json()
    assert value["max_batch_size"] == 1
    assert value["checkpoint"] == ("always" if task == "train" else "never")
    assert "fit: " in next(c["reason"] for c in value["choices"] if c["key"] == "tiling.checkpoint")


def test_a_batch_larger_than_a_ranks_tiles_is_cut_and_said() -> None:
    plan = plan_of("tiling.max_batch_size=9")
    assert plan.choice("tiling.max_batch_size") == 2
    assert "9 asked for, a rank has at most 2 tiles" in "\n".join(plan.lines())


def test_overrides_are_listed_with_their_origin() -> None:
    assert "override algorithm.iterations = 7 (from --set)" in plan_of("algorithm.iterations=7").lines()


@pytest.mark.parametrize(
    "overrides,words",
    [
        (
            ("resources.precision=float64", "resources.gpus=3", "resources.layout=replicated"),
            ["3 > 1 operators", "float64"],
        ),
        (("algorithm.step_size=2.5",), ["step_size 2.5 >= 2 / ||A||^2 = 2 "]),
        (
            ("problem.physics={name: multiframe_superres, factor: 1}", "algorithm.step_size=0.6"),
            ["0.6 >= 2 / ||A||^2 = 0.5 "],
        ),
        (('problem.data={truth: "/nowhere/*.png"}',), ["no file matches problem.data.truth: /nowhere/*.png"]),
        (
            ("denoiser={name: dncnn, weights: /nowhere/w.safetensors}",),
            ["no file matches denoiser.weights: /nowhere/w.safetensors"],
        ),
        (("denoiser={name: drunet, weights: pretrained}",), ["pretrained weights are missing", "dptrain prepare"]),
    ],
)
def test_refusals_print_both_sides(
    overrides: tuple[str, ...], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    plan = plan_of(*overrides)
    assert plan.fits is False and len(plan.refusals) == 1
    for word in words:
        assert word in plan.refusals[0]
    with pytest.raises(PlanRefused) as raised:
        plan.check()
    assert plan.refusals[0] in str(raised.value)


def test_weights_of_an_unknown_run_and_of_one_without_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    text = TINY.replace("depth: 3, width: 4", "depth: 3")
    with pytest.raises(NoSuchRun):
        plan_of("denoiser.weights=never-made", text=text)
    run = RunPaths(tmp_path / "made-1")
    run.create()
    write_intent(
        run, Intent(run="made-1", task="train", launcher="local", cluster="local", world_size=1, steps=1, created_s=0.0)
    )
    assert plan_of("denoiser.weights=made", text=text).refusals == ("denoiser.weights: run made-1 has no save yet",)
    run.save(1).mkdir()
    assert plan_of(f"denoiser.weights={run.dir}", text=text).refusals == ()


def test_ranks_that_do_not_divide_over_nodes_are_refused() -> None:
    plan = plan_of("resources.gpus=7", profile=SLURM)
    assert plan.fits is False and "7 ranks do not divide evenly over 2 nodes of 4" in plan.refusals[0]
    assert plan.sbatch is None and plan.job is None


def test_a_step_size_below_the_limit_passes() -> None:
    assert plan_of("algorithm.step_size=1.9").fits is None
    # A proximal step of another algorithm has no such limit.
    assert plan_of("algorithm.step_size=5.0", "algorithm.name=hqs").fits is None


def test_idle_ranks_and_missing_operators_are_said() -> None:
    plan = plan_of("resources.gpus=6", "resources.layout=replicated")
    assert plan.to_json()["idle_ranks"] == 2
    assert any("2 of 6 ranks have no tile: 4 tiles < 6 ranks" in note for note in plan.notes)
    assert any("1 operators on 6 ranks" in note for note in plan.notes)


def test_the_script_does_not_depend_on_the_run() -> None:
    assert plan_of(profile=SLURM).sbatch == plan_of(profile=SLURM).sbatch
    assert "#SBATCH --nodes=1" in (plan_of(profile=SLURM).sbatch or "")


def test_planning_loads_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from dptrain.plan.plan import make_plan;"
        "from dptrain.spec.load import parse_spec; from dptrain.spec.cluster import ClusterProfile;"
        f"make_plan(parse_spec({TINY!r}, 't', Path.cwd(), ()), 'infer', ClusterProfile(name='l', launcher='local'));"
        "print([m for m in ('torch', 'deepinv', 'submitit', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("task", ["infer", "train"])
def test_bytes_per_step_are_what_ranks_send(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    change = "problem.image_size=[64, 64]"
    with running(task, change) as run:
        assert finish(run) == 0
    sent = [e["bytes_sent"] for e in events(run, 0, "step")]
    # Steps without an evaluation between them; besides images only flags and, in training, small weights travel.
    step = min(b - a for a, b in itertools.pairwise(sent))
    planned = plan_of(change, task=task).bytes_per_step or 0
    assert planned <= step <= planned * 1.02 + 4000


def test_replicas_are_meshes_of_their_own() -> None:
    change = ("resources.layout=sharded", "problem.image_size=[64, 64]")
    alone = plan_of(*change, "resources.gpus=4", task="train")
    plan = plan_of(*change, "resources.gpus=8", "resources.replicas=2", "train.images=4", task="train")
    assert plan.refusals == ()
    assert plan.to_json()["mesh"] == {"replicas": 2, "spatial": 4} and plan.world_size == 8
    assert plan.lines()[1].startswith("ranks: 8 = 2 replicas x 4 ranks, layout sharded")
    assert plan.tiles_per_rank == alone.tiles_per_rank and plan.bytes_per_step == alone.bytes_per_step
    idle = plan_of("resources.layout=sharded", "resources.gpus=12", "resources.replicas=2", task="train")
    assert idle.to_json()["idle_ranks"] == 4
    said = "4 of 12 ranks have no tile: in each replica 4 tiles < 6 ranks; write: --set resources.gpus=8, or a smaller tiling.patch"
    assert said in idle.notes
    each = plan_of("resources.layout=sharded", "resources.gpus=2", "resources.replicas=2", task="train")
    assert "2 replicas x 1 rank," in each.lines()[1] and each.bytes_per_step == 0


def test_replicas_are_for_training() -> None:
    plan = plan_of("resources.layout=sharded", "resources.gpus=4", "resources.replicas=2")
    assert plan.fits is False and len(plan.refusals) == 1
    assert "resources.replicas is 2" in plan.refusals[0] and "resources.replicas=1" in plan.refusals[0]


SUPERRES = "problem.physics={name: multiframe_superres, factor: 12}"


def test_ranks_without_pixels_are_said() -> None:
    plan = plan_of("resources.layout=sharded", SUPERRES, "resources.gpus=6")
    assert plan.fits is None
    assert any(
        "2 of 6 ranks own no pixels" in note and "2 x 2 blocks make at most 4 boxes" in note for note in plan.notes
    )


def test_an_axis_shorter_than_the_stride_of_the_operators() -> None:
    # The loader refuses it first, for a built-in physics: such an image is no multiple of the factor.
    change = ("resources.layout=sharded", SUPERRES)
    with pytest.raises(SpecError, match=r"factor is 12, which does not divide every axis of image_size \[24, 8\]"):
        plan_of(*change, "problem.image_size=[24, 8]")
    loaded = parse_spec(TINY, "tiny.yaml", Path.cwd(), change)
    short = replace(loaded, spec=replace(loaded.spec, problem=replace(loaded.spec.problem, image_size=(24, 8))))
    with pytest.raises(PlanRefused, match="axis 1 of the image has 8 pixels, fewer than the operators' stride of 12"):
        make_plan(short, "infer", LOCAL)
    assert PlanRefused.exit_code == 3


def test_layout_sharded_takes_more_ranks_than_operators() -> None:
    change = ("resources.layout=sharded", "resources.gpus=3", "resources.precision=float64")
    plan = plan_of(*change)
    assert plan.fits is None and not any("operators" in reason for reason in plan.reasons)
    # Two rows of tiles on three boxes: no centre of a tile lies in the middle one, and an even deal has the same maximum.
    assert (plan.tiles_per_rank.most, plan.tiles_per_rank.idle) == (2, 1)
    assert "1 of 3 ranks have no tile: 4 tiles lie in the boxes of the others" in plan.notes
    assert plan.bytes_per_step is not None and plan.bytes_per_step > 0
    assert plan_of("resources.layout=sharded", "resources.gpus=1", task="train").bytes_per_step == 0


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_what_a_proximal_step_sends_is_said_per_iteration_of_its_solver(layout: str) -> None:
    change = (f"resources.layout={layout}", "algorithm.name=admm", "problem.image_size=[32, 24]")
    blurred = "problem.physics={name: deblur, blur_sigma: 1.0}"
    plan = plan_of(*change, blurred)
    assert plan.bytes_per_step is None and "sent per rank and step: not known" in plan.lines()
    # Two ranks send all pixels once; or the blur's radius, continued around the image, to both sides of the cut and back.
    radius = deblur_kernel((1.0,)) // 2
    sent = {"replicated": 32 * 24 * 4, "sharded": 2 * 2 * radius * (24 + 2 * radius) * 4}[layout]
    assert any(
        f"admm solves a linear system in every step, {sent / 1e6:.3g} MB per rank" in note for note in plan.notes
    )
    if layout == "sharded":
        replicas = plan_of(*change, blurred, "resources.gpus=4", "resources.replicas=2", task="train")
        assert replicas.bytes_per_step is None and any(f"step, {sent / 1e6:.3g} MB" in note for note in replicas.notes)
    alone = plan_of(*change, blurred, "resources.gpus=1")
    assert alone.bytes_per_step == 0 and not any("admm" in note for note in alone.notes)


def test_what_a_users_physics_sends_in_layout_sharded_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def operators(**kwargs): ...\n")
    loaded = parse_spec(
        TINY, "tiny.yaml", tmp_path, ("resources.layout=sharded", 'problem.physics={factory: "mine:operators"}')
    )
    plan = make_plan(loaded, "infer", LOCAL)
    assert plan.bytes_per_step is None and plan.to_json()["bytes_per_step"] is None
    assert "sent per rank and step: not known" in plan.lines()
    assert any("physics of a factory" in note for note in plan.notes)


FITTED = ("tiling.patch=fit", "problem.image_size=[96, 96]", "resources.gpus=3")


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_a_fitted_patch_is_what_the_ranks_read(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    loaded = parse_spec(TINY, "tiny.yaml", Path.cwd(), (*FITTED, f"resources.layout={layout}"))
    plan = make_plan(loaded, "infer", LOCAL)
    # Nine tiles of 32, or three rows of 96 x 32 if patches had two edges: one row of tiles per rank.
    assert (plan.choice("tiling.patch"), plan.to_json()["patch"], plan.tiles_per_rank.most) == (32, 32, 3)
    assert "fit: the busiest rank denoises 1.56 times" in next(c.reason for c in plan.choices)
    assert load_spec(create_run(plan, loaded, LOCAL).spec).spec.tiling.patch == 32


def test_a_fitted_patch_and_its_number_are_one_run_of_a_sweep() -> None:
    sweep = ("sweep={tiling.patch: [fit, 32, 48]}", "problem.image_size=[96, 96]", "resources.gpus=3")
    members, _ = plan_members(parse_spec(TINY, "tiny.yaml", Path.cwd(), sweep), "infer", LOCAL)
    assert [m.plan.spec.tiling.patch for m in members] == [32, 48]
    alone = plan_of("tiling.patch=32", *sweep[1:])
    assert members[0].member.fingerprint == members[0].plan.fingerprint == alone.fingerprint


def test_modules_of_the_current_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tifffile.py").write_text("raise SystemExit('a module of the current folder was run')\n")
    monkeypatch.chdir(tmp_path)
    assert plan_of("algorithm.step_size=1.25").fits is None


def test_a_kernel_larger_than_the_image_of_the_probe() -> None:
    physics = "problem.physics={name: deblur, blur_sigma: 20}"
    plan = plan_of(physics, "problem.image_size=[256, 256]", "algorithm.step_size=1.0")
    assert not plan.refusals


def test_training_on_more_images_than_there_are() -> None:
    change = ("problem.data={source: photo}", "problem.channels=1", "train={steps: 1, images: 2, held_out: 1}")
    refusals = plan_of(*change, task="train").refusals
    (said,) = [text for text in refusals if "problem.data: 1 image, training asks for 3" in text]
    advised = re.findall(r"--set (train\.\w+=\d+)", said)
    assert advised == ["train.images=1", "train.held_out=0"]
    assert not any("training asks for" in text for text in plan_of(*change, *advised, task="train").refusals)
