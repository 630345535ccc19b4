"""Experiment files: what becomes of each key, what is listed, what is refused and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.spec.load import parse_spec
from dptrain.spec.profiles import parse_profile
from dptrain.spec.schema import MultiframeSuperres, SourceData
from dptrain.spec.sweep import expand
from dptrain.spec.tree import Source
from tests.spec.benchopt.files import PARALLEL, SCALING, TRAINING, converted, problems


def test_strong_scaling(tmp_path: Path) -> None:
    spec = converted(tmp_path, SCALING).load().spec
    assert spec.name == "exp" and spec.train is None
    assert spec.problem.physics == MultiframeSuperres(frames=4, factor=2, blur_sigma=(1.0,), noise_std=(0.05,))
    assert spec.problem.data == SourceData(source="photo") and spec.run.seed == 7
    assert (spec.algorithm.iterations, spec.algorithm.step_size, spec.algorithm.init) == (3, 0.5, "zeros")
    assert spec.resources.layout == "replicated"
    # Sizes stay an axis of their own; the tiles depend on whether the denoiser is distributed, so that these two are one.
    assert spec.sweep == {
        "problem.image_size": ((64, 64), (96, 96)),
        "tiling.patch, tiling.halo, tiling.max_batch_size, resources.gpus": (
            ("none", 0, 1, 1),
            (32, 8, 4, 2),
            (32, 8, 4, 4),
            (48, 4, "fit", 2),
            (48, 4, "fit", 4),
        ),
    }
    assert len(expand(spec)) == 10


def test_axes_that_become_one_bring_all_of_their_keys(tmp_path: Path) -> None:
    text = SCALING.replace("patch_size, overlap, max_batch_size", "patch_size, overlap, seed")
    sweep = converted(tmp_path, text).load().spec.sweep
    (joined,) = [line for line in sweep if "," in line]
    assert set(joined.split(", ")) == {
        "tiling.patch",
        "tiling.halo",
        "resources.gpus",
        "tiling.max_batch_size",
        "run.seed",
    }
    assert len(sweep[joined]) == 6 and len(sweep) == 2


def test_training(tmp_path: Path) -> None:
    spec = converted(tmp_path, TRAINING).load().spec
    assert spec.train is not None
    assert (spec.train.steps, spec.train.batch_size, spec.train.images, spec.train.learning_rate) == (4, 2, 2, 1e-5)
    assert spec.train.trainable == ("denoiser",) and spec.algorithm.iterations == 2
    assert (spec.tiling.patch, spec.tiling.halo, spec.tiling.checkpoint) == (32, 8, "auto")
    assert spec.problem.data == SourceData(source="synthetic")
    assert spec.sweep == {  # the solver's image size holds against the dataset's
        "tiling.max_batch_size": (1, 2),
        "problem.image_size, resources.gpus": (((32, 32), 1), ((64, 64), 2)),
    }


def test_volumes_are_denoised_and_may_be_mixed_with_images(tmp_path: Path) -> None:
    text = (
        "dataset: [{simulated: {image_size: [32, [8, 16, 16]], num_operators: 2, channels: 1}}]\n"
        "solver: [{PnP: {init_method: zeros, denoiser: dncnn}}]\nmax-runs: 1\n"
    )
    members = [m.spec for m in expand(converted(tmp_path, text).load().spec)]
    physics = [(m.problem.image_size, getattr(m.problem.physics, "name", None)) for m in members]
    assert physics == [((32, 32), "multiframe_superres"), ((8, 16, 16), "denoise")]
    assert [getattr(m.denoiser, "weights", None) for m in members] == ["pretrained", "random"]


def test_the_written_file_is_the_same_spec(tmp_path: Path) -> None:
    for text, parallel in ((SCALING, None), (TRAINING, PARALLEL)):
        made = converted(tmp_path, text, parallel)
        again = parse_spec(made.spec_text(), "again.yaml", tmp_path)
        assert again.spec == made.load().spec
        assert all(str(remark) in made.spec_text() for remark in made.remarks)


def test_a_parallel_config_becomes_a_profile(tmp_path: Path) -> None:
    made = converted(tmp_path, SCALING, PARALLEL)
    assert made.load().spec.cluster == made.profile_name == "par"
    assert made.load().spec.resources.time_min == 31
    profile = parse_profile(made.profile_text(), "par", Source(label="par.yaml", folder=tmp_path))
    assert (profile.launcher, profile.gpus_per_node, profile.cpus_per_task) == ("slurm", 2, 6)
    assert (profile.qos, profile.account, profile.constraint) == ("fast", None, "big-card")
    assert profile.setup == ("module purge", "export LIST=[a,b]")
    assert (profile.command_prefix, profile.python) == (("nsys", "profile", "-o", "out"), "python3")
    assert profile.extra_sbatch == {"hint": "nomultithread", "exclusive": ""}
    assert "slurm_stderr_to_stdout" in [r["key"] for r in made.unmapped]


def test_a_solver_speaks_louder_than_the_parallel_config(tmp_path: Path) -> None:
    text = SCALING.replace("denoiser: dncnn", "denoiser: dncnn\n      slurm_qos: long\n      slurm_time: 1:00:00")
    made = converted(tmp_path, text, PARALLEL)
    assert made.load().spec.resources.time_min == 60
    assert "qos: long" in made.profile_text()
    alone = converted(tmp_path, text)
    assert [r["key"] for r in alone.unmapped if r["key"].startswith("solver.slurm")] == ["solver.slurm_qos"]


def test_local_backends_run_here(tmp_path: Path) -> None:
    made = converted(tmp_path, SCALING, "backend: torchrun\n")
    assert made.profile is None and made.load().spec.cluster == "local"


@pytest.mark.parametrize(
    ("written", "minutes"),
    [("1800", 30), ("1801", 31), ("0:30:00", 30), ('"0:30:00"', 30), ("12:00:00", 720), ("1-00:00:00", 1440)],
)
def test_wall_times_are_read_from_their_text(tmp_path: Path, written: str, minutes: int) -> None:
    made = converted(tmp_path, SCALING, f"backend: submitit\nslurm_time: {written}\n")
    assert made.load().spec.resources.time_min == minutes
    assert any("seconds" in r.reason for r in made.remarks) == written.isdigit()


@pytest.mark.parametrize("written", ["30:00", "0:0:99", "soon", "0", "1800.5", "0x10", "1_800"])
def test_wall_times_that_say_two_things_are_refused(tmp_path: Path, written: str) -> None:
    (problem,) = problems(tmp_path, SCALING, f"backend: submitit\nslurm_time: {written}\n")
    assert problem.where == f"{tmp_path}/par.yml:2:13" and "slurm_time is" in problem.found


def test_every_key_without_a_counterpart_is_listed(tmp_path: Path) -> None:
    text = SCALING.replace("seed: 7", "seed: 7\n      batch_size: 3").replace("plot: false", "plot: false\ntimeout: 9")
    unmapped = {(r["key"], r["value"]) for r in converted(tmp_path, text).unmapped}
    assert unmapped == {
        ("objective.save_output_figures", "true"),
        ("dataset.batch_size", "3"),
        ("solver.profiler_active", "0"),
        ("plot", "false"),
        ("timeout", "9"),
    }


@pytest.mark.parametrize(
    ("written", "measure", "listed"),
    [
        ("profiler_mode: torch\n      profiler_warmup: 3\n      profiler_active: 4", ("torch", 3, 4), set()),
        ("profiler_mode: [nvidia]\n      profiler_warmup: 0", ("nvtx", 0, 5), set()),
        ("profiler_mode: null\n      profiler_active: 0", ("custom", 2, 5), {"profiler_mode", "profiler_active"}),
        (
            "profiler_mode: other\n      profiler_per_step: true",
            ("custom", 2, 5),
            {"profiler_mode", "profiler_per_step"},
        ),
        ("profiler_save_file: true", ("custom", 2, 5), {"profiler_save_file"}),
    ],
)
def test_profilers_are_modes_of_measuring(
    tmp_path: Path, written: str, measure: tuple[str, int, int], listed: set[str]
) -> None:
    made = converted(tmp_path, SCALING.replace("profiler_mode, profiler_active: [[custom, 0]]", written))
    run = made.load().spec.run
    assert (run.measure, run.measure_warmup_steps, run.measure_steps) == measure
    assert {r["key"].removeprefix("solver.") for r in made.unmapped if "profiler" in r["key"]} == listed


def test_values_without_a_counterpart_are_listed_too(tmp_path: Path) -> None:
    text = SCALING.replace('["zeros"]', "pseudo_inverse").replace("[32, 8, 4]", "[[16, 32], [4, 8], 4]")
    made = converted(tmp_path, text.replace('"gpu:2", 2, 2', '"gpu:v100:1", 2, 2'))
    keys = {r["key"] for r in made.unmapped}
    assert {"solver.init_method", "solver.patch_size", "solver.overlap", "solver.slurm_gres"} <= keys
    assert made.load().spec.algorithm.init == "adjoint"


def test_what_is_given_twice_has_its_last_value(tmp_path: Path) -> None:
    text = SCALING.replace("denoiser: dncnn", "denoiser: dncnn\n      distribute_denoiser: false\n      patch_size: 9")
    made = converted(tmp_path, text)
    assert made.load().spec.sweep == converted(tmp_path, SCALING).load().spec.sweep
    assert sum("and holds" in r.reason for r in made.remarks) == 2


def test_one_line_names(tmp_path: Path) -> None:
    text = (
        "dataset: \"simulated[image_size=[64, 96], 'noise_level, seed'=[(0.1, 1), (2e-2, 2)], num_operators=2]\"\n"
        "solver:\n  - PnP[denoiser=dncnn,step_size=None,init_method='zeros']\nmax_runs: 3\n"
    )
    spec = converted(tmp_path, text).load().spec
    assert spec.sweep == {
        "problem.image_size": ((64, 64), (96, 96)),
        "problem.physics.noise_std, run.seed": (((0.1,), 1), ((0.02,), 2)),
    }
    assert (spec.algorithm.step_size, spec.algorithm.init, spec.algorithm.iterations) == ("auto", "zeros", 3)


@pytest.mark.parametrize(
    ("old", "new", "where", "found"),
    [
        ("solver:", "solvers:", "2:1", "no solver; 'solvers' is not read"),
        ("multiframe_superres:", "walnut:", "6:5", "dataset walnut has no counterpart"),
        ("PnP:", "Denoiser:", "12:5", "solver Denoiser has no counterpart"),
        ("[32, 8, 4]", "[32, 8]", "19:9", "has 2 values where its 3 keys take 3"),
        ("[48, 4, 0],", "[48, 4, 0], 7", "20:21", "has 7 where its 3 keys take 3"),
        ("[64, 96]", "[]", "7:19", "an empty list"),
        ("[64, 96]", "[64, 0400]", "7:24", "leading zeros (octal in YAML)"),
        ("seed: 7", "seed: 1_0", "10:13", "a number with underscores"),
        ("seed: 7", "noise_level: 0.1", "10:7", "written twice"),
        ("denoiser: dncnn", "denoiser: &d dncnn", "13:17", "YAML anchor"),
        ("1, 1, False, no", "1, 1, False, nope", "23:32", "distribute_denoiser is nope, not true or false"),
        ("2, 1, True, yes", "2, 1, True, no", "24:19", "1 x 2 ranks with an untiled denoiser"),
        ("step_size: 0.5", "step_size: fast", "15:18", "algorithm.step_size is 'fast'"),
        ("max-runs: 3", "max-runs: 0", "27:11", "algorithm.iterations is 0"),
        ("- PnP:", "- PnP[denoiser=drunet]\n  - PnP:", "13:5", "2 entries of solver: PnP, PnP"),
        ("- PnP:", "- PnP[dncnn]\n  - 7:", "12:5", "a value without the name of its parameter"),
    ],
)
def test_refused_with_its_position(tmp_path: Path, old: str, new: str, where: str, found: str) -> None:
    assert old in SCALING
    seen = problems(tmp_path, SCALING.replace(old, new, 1))
    assert (f"{tmp_path}/exp.yml:{where}", True) in [(p.where, found in p.found) for p in seen], [str(p) for p in seen]


def test_what_nobody_can_submit_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SCALING, "backend: dask\n")
    assert problem.where.endswith("par.yml:1:10") and "dask" in problem.found
    (problem,) = problems(tmp_path, SCALING, "backend: submitit\nslurm_account: two words\n")
    assert problem.where.endswith("par.yml:2:16") and "account" in problem.found


@pytest.mark.parametrize("dataset", ["highres_color_image", "multiframe_superres", "synthetic"])
def test_of_one_image_none_is_held_out(tmp_path: Path, dataset: str) -> None:
    made = converted(tmp_path, TRAINING.replace("- synthetic:", f"- {dataset}:"))
    train = made.load().spec.train
    assert train is not None and train.held_out == (dataset == "synthetic")
    assert any("train.held_out: 0" in r.reason and r.mapped for r in made.remarks) == (dataset != "synthetic")


def test_a_line_of_the_other_file_is_cited_with_its_name(tmp_path: Path) -> None:
    made = converted(tmp_path, TRAINING.replace("n_iter: 2", "n_iter: 2\n      slurm_time: 60"), PARALLEL)
    (holds,) = [r for r in made.remarks if r.reason.endswith("says it too, and holds") and "slurm_time" in r.key]
    assert holds.where.startswith(f"{tmp_path}/par.yml:") and holds.reason.startswith(f"{tmp_path}/exp.yml:6:")
