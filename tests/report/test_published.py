"""Published measurements, put through the report, give the published derived numbers.

The rows are those of `training_v100.csv` (experiment, image, channels, operators, K, patch, halo, gpus, max_batch_size, checkpoint,
fwd_peak_mib, bwd_peak_mib, peak_mib, fwd_s, bwd_s, step_s) and `inference_v100.csv` (image, gpus, mode, denoise_s, overhead_s,
physics_s, total_s, work_multiplier) that these numbers follow from.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.report.cost import checkpoint_figure
from dptrain.report.derive import Timing, price, scaled
from dptrain.report.figure import Figure
from dptrain.report.scaling import strong_figure, work_figure
from tests.report.records import ReportedRun, reported

MIB = 2**20
TRAINING = (
    # image, patch, halo, gpus, checkpoint, peak_mib, step_s
    (4096, 512, 32, 1, "always", 14945.014648, 101.164009),
    (4096, 512, 32, 4, "always", 9190.231445, 25.31498),
    (4096, 512, 32, 16, "always", 8900.62207, 7.536453),
    (2048, 512, 32, 16, "always", 4674.362305, 1.90707),
    (2048, 512, 32, 16, "never", 15329.425293, 1.556139),
)
INFERENCE = (
    # image, gpus, total_s, work_multiplier; one GPU is not tiled
    (4096, 1, 3.660166, 1.0),
    (4096, 2, 2.917038, 1.5625),
)


def training_runs(root: Path) -> list[ReportedRun]:
    """One run per published row."""
    runs = []
    for image, patch, halo, gpus, checkpoint, peak_mib, step_s in TRAINING:
        keys = (f"problem.image_size=[{image},{image}]", f"tiling.patch={patch}", f"tiling.halo={halo}")
        how = (f"resources.gpus={gpus}", f"tiling.checkpoint={checkpoint}", "tiling.max_batch_size=1", "train.steps=2")
        name = f"train-{image}-{gpus}-{checkpoint}"
        run = ReportedRun(root, name, *keys, *how, steps_s=(2 * step_s, step_s), task="train")
        run.result(peak_memory_bytes=[int(peak_mib * MIB)] * gpus)
        runs.append(run)
    return runs


def inference_runs(root: Path) -> list[ReportedRun]:
    runs = []
    for image, gpus, total_s, work in INFERENCE:
        patch = "none" if gpus == 1 else "256"
        keys = (f"problem.image_size=[{image},{image}]", f"tiling.patch={patch}", f"resources.gpus={gpus}")
        run = ReportedRun(root, f"infer-{image}-{gpus}", *keys, steps_s=(2 * total_s, total_s))
        run.result()
        # The forecast's word for a single tile includes its halo; what is not tiled is the measure all the same.
        run.plan(work_multiplier=work if gpus > 1 else 1.01)
        runs.append(run)
    return runs


def column(figure: object, name: str, where: dict[str, object]) -> list[object]:
    """The values of a column in the rows that have these others."""
    assert isinstance(figure, Figure), figure
    at = {title: place for place, title in enumerate(figure.table.header)}
    rows = [row for row in figure.table.rows if all(row[at[key]] == value for key, value in where.items())]
    return [row[at[name]] for row in rows]


def test_derived_numbers_of_the_published_ones() -> None:
    training = scaled(Timing(ranks=16, step_s=7.536453), Timing(ranks=1, step_s=101.164009))
    assert f"{training.efficiency:.1%}" == "83.9%"
    inference = scaled(Timing(ranks=2, step_s=2.917038, work=1.5625), Timing(ranks=1, step_s=3.660166))
    assert inference.work_normalised is not None
    assert (f"{inference.efficiency:.1%}", f"{inference.work_normalised:.1%}") == ("62.7%", "98.0%")
    assert f"{price(1.90707, 1.556139):.0%}" == "23%"


def test_efficiency_of_training_on_16(tmp_path: Path) -> None:
    figure = strong_figure(reported(*training_runs(tmp_path)))
    (efficiency,) = column(figure, "efficiency", {"run": "train-4096-16-always"})
    assert f"{efficiency:.1%}" == "83.9%"
    (speedup,) = column(figure, "speedup", {"run": "train-4096-4-always"})
    assert speedup == pytest.approx(101.164009 / 25.31498)


def test_work_normalised_efficiency_of_inference_on_2(tmp_path: Path) -> None:
    figure = work_figure(reported(*inference_runs(tmp_path)))
    (plain,) = column(figure, "efficiency", {"run": "infer-4096-2"})
    (normalised,) = column(figure, "work-normalised", {"run": "infer-4096-2"})
    assert (f"{plain:.1%}", f"{normalised:.1%}") == ("62.7%", "98.0%")


def test_price_of_checkpointing_at_2048_on_16(tmp_path: Path) -> None:
    figure = checkpoint_figure(reported(*training_runs(tmp_path)))
    (price_,) = column(figure, "time price", {"checkpoint": "always"})
    (saved,) = column(figure, "memory against first", {"checkpoint": "always"})
    assert f"{price_:.0%}" == "23%" and f"{saved:.0%}" == "-70%"
