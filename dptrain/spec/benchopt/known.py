"""The datasets and solvers that have a counterpart, and the defaults of their parameters where a file leaves them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dptrain.spec.benchopt.targets import COMMON, INFERENCE, TRAINING, Target

MAX_RUNS = "100"
"""benchopt's default of `max-runs`."""

OPERATORS = ("1", "8", "16")
"""Default of `num_operators`: all of them."""
DATA = {"channels": "3", "noise_level": "0.1", "seed": "42", "batch_size": "1"}
TILES = {"patch_size": "128", "overlap": "32", "denoiser": "drunet", "denoiser_sigma": "0.05"}
RANKS = {"slurm_nodes": "1", "slurm_ntasks_per_node": "1", "torchrun_nproc_per_node": "1"}


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset of the benchmarks."""

    source: str
    """`problem.data.source` that stands for it."""
    image_size: str
    """Default edge."""
    differs: str
    """How dptrain's data differs."""

    @property
    def one_image(self) -> bool:
        """There is no second one to hold out."""
        return self.source == "photo"


@dataclass(frozen=True, kw_only=True)
class Solver:
    """A solver of the benchmarks."""

    targets: tuple[Target, ...]
    defaults: Mapping[str, str]


_PHOTO = Dataset(
    source="photo",
    image_size="2048",
    differs="the photograph that dptrain ships, resized, in place of the one that the benchmark downloads",
)
DATASETS: Mapping[str, Dataset] = {
    "multiframe_superres": _PHOTO,
    "highres_color_image": _PHOTO,
    "simulated": Dataset(
        source="synthetic", image_size="2048", differs="dead leaves in place of the benchmark's pattern"
    ),
    "synthetic": Dataset(
        source="synthetic", image_size="256", differs="dead leaves in place of the benchmark's pattern"
    ),
}

SOLVERS: Mapping[str, Solver] = {
    "pnp": Solver(
        targets=(*COMMON, *INFERENCE),
        defaults={
            **TILES,
            **RANKS,
            "max_batch_size": "0",
            "distribute_physics": "false",
            "distribute_denoiser": "false",
            "step_size": "null",
            "step_size_scale": "0.99",
            "init_method": "pseudo_inverse",
            "compile": "null",
        },
    ),
    "unrolledpnp": Solver(
        targets=(*COMMON, *TRAINING),
        defaults={
            **TILES,
            **RANKS,
            "max_batch_size": "1",
            "distribute_model": "false",
            "n_iter": "4",
            "init_stepsize": "0.8",
            "checkpoint_batches": "auto",
            "model_learning_rate": "1e-5",
            "train_algo_params": "true",
        },
    ),
}
"""By name in lower case: benchopt does not look at case."""
