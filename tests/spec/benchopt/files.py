"""Experiment files of the shape of the public benchmarks, shrunken, and short ways to read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.errors import Problem, SpecError
from dptrain.spec.benchopt.convert import Converted, convert

SCALING = """\
# strong scaling of a reconstruction
objective:
  - reconstruction_objective:
      save_output_figures: true
dataset:
  - multiframe_superres:
      image_size: [64, 96]
      num_operators: 4
      noise_level: 0.05
      seed: 7
solver:
  - PnP:
      denoiser: dncnn
      denoiser_sigma: 0.05
      step_size: 0.5
      init_method: ["zeros"]
      profiler_mode, profiler_active: [[custom, 0]]
      patch_size, overlap, max_batch_size: [
        [32, 8, 4],
        [48, 4, 0],
      ]
      slurm_gres, slurm_ntasks_per_node, slurm_nodes, distribute_physics, distribute_denoiser: [
        ["gpu:1", 1, 1, False, no],
        ["gpu:2", 2, 1, True, yes],
        ["gpu:2", 2, 2, true, true],
      ]
max-runs: 3
n-repetitions: 1
plot: false
"""
TRAINING = """\
dataset:
  - synthetic: {num_operators: 2, image_size: 64, batch_size: 2}
solver:
  - UnrolledPnP:
      n_iter: 2
      init_stepsize: 0.8
      grad_clip: 1.0
      train_algo_params: false
      distribute_model, patch_size, overlap: [[true, 32, 8]]
      max_batch_size: [1, 2]
      checkpoint_batches: [auto]
      slurm_gres, slurm_ntasks_per_node, slurm_nodes, image_size: [
        ["gpu:1", 1, 1, 32],
        ["gpu:2", 2, 1, 64],
      ]
max-runs: 4
"""
PARALLEL = """\
backend: submitit
slurm_time: 1801
slurm_stderr_to_stdout: True
slurm_additional_parameters:
  cpus-per-task: 6
  qos: fast
  account: # none yet
  constraint: big-card
  hint: nomultithread
  exclusive: true
slurm_setup:
  - module purge
  - export LIST=[a,b]
slurm_python: nsys profile -o out python3
"""


def converted(folder: Path, text: str, parallel: str | None = None) -> Converted:
    """The conversion of a file `exp.yml`, and of `par.yml` beside it."""
    path = folder / "exp.yml"
    path.write_text(text)
    if parallel is None:
        return convert(path)
    (folder / "par.yml").write_text(parallel)
    return convert(path, folder / "par.yml")


def problems(folder: Path, text: str, parallel: str | None = None) -> list[Problem]:
    """What the conversion, or else the reading of the spec that it makes, refuses."""
    with pytest.raises(SpecError) as caught:
        converted(folder, text, parallel).load()
    return caught.value.problems
