"""Rows over numbers of ranks and sizes, and the knee."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

from dptrain.errors import UsageError
from dptrain.plan.figure import draw
from dptrain.plan.plan import Plan, make_plan
from dptrain.plan.receptive import IDENTITY
from dptrain.plan.rows import Row, largest_fitting, mark_knees, row_of
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Task
from tests.local_runs import TINY

SLURM = ClusterProfile(name="c", gpus_per_node=4, intra_node_gb_s=10, inter_node_gb_s=1)


def plan_of(*overrides: str, task: Task = "infer", profile: ClusterProfile = SLURM) -> Plan:
    change = ("problem.image_size=[64, 64]", *overrides)
    return make_plan(parse_spec(TINY, "tiny.yaml", Path.cwd(), change), task, profile)


def row(gpus: int, efficiency: float, size: int = 64, fits: bool | None = None) -> Row:
    return Row(image_size=(size, size), gpus=gpus, fits=fits, peak_gib=None, efficiency_bound=efficiency)


def knees(*rows: Row) -> list[int]:
    return [r.gpus for r in mark_knees(rows) if r.knee]


def test_a_row_is_a_plan_in_numbers() -> None:
    plan = plan_of("resources.gpus=6")
    made = row_of(plan)
    assert (made.tiles, made.tiles_per_rank_max, made.idle_ranks, made.fits) == (16, 3, 0, None) or plan.refusals
    assert made.balance == pytest.approx(16 / 6 / 3) and made.work_multiplier == plan.grid.work_multiplier
    assert made.efficiency_bound == pytest.approx(16 / 6 / 3 / plan.grid.work_multiplier)


def test_communication_uses_the_link_of_the_nodes() -> None:
    one, two = row_of(plan_of("resources.gpus=4")), row_of(plan_of("resources.gpus=8"))
    assert one.bytes_per_step and two.bytes_per_step
    assert one.communication_s == pytest.approx(one.bytes_per_step / 10e9)
    assert two.communication_s == pytest.approx(two.bytes_per_step / 1e9)
    assert row_of(plan_of("resources.gpus=1")).communication_s == 0
    assert row_of(plan_of("resources.gpus=4", profile=replace(SLURM, intra_node_gb_s=None))).communication_s is None


@pytest.mark.parametrize("task", ["infer", "train"])
def test_the_share_of_communication_where_the_cards_speed_is_known(task: Task) -> None:
    plan = plan_of("resources.gpus=4", "tiling.checkpoint=never", task=task, profile=replace(SLURM, gpu_tflops=1e-6))
    without = row_of(plan).efficiency_bound
    known = replace(plan, receptive=replace(IDENTITY, parameters=500, flops_per_pixel=100.0))
    made = row_of(known)
    assert without == pytest.approx(plan.tiles_per_rank.mean / plan.tiles_per_rank.most / plan.grid.work_multiplier)
    passes = 1 if task == "infer" else 3 * 3
    compute_s = passes * plan.tiles_per_rank.most * 24 * 24 * 100 / 1e6
    sent = (plan.bytes_per_step or 0) + (0 if task == "infer" else 2 * 4 * 500 * 3 // 4)
    assert made.communication_s == pytest.approx(sent / 10e9)
    assert without is not None
    assert made.efficiency_bound == pytest.approx(without * compute_s / (compute_s + sent / 10e9))


def test_the_knee_is_where_added_ranks_bring_less_than_half() -> None:
    assert knees(row(1, 1.0), row(2, 0.9), row(4, 0.8), row(8, 0.5)) == [4]
    # From 4 to 8 nothing is gained, from 4 to 16 more than half of what the first ranks did.
    assert knees(row(1, 1.0), row(4, 1.0), row(8, 0.5), row(16, 0.8), row(32, 0.4)) == [16]


def test_where_all_ranks_pay_the_knee_lies_beyond() -> None:
    assert knees(row(2, 1.0), row(4, 0.8)) == []
    assert knees(row(1, 1.0)) == []


def test_refused_rows_are_no_knee_and_images_have_their_own() -> None:
    assert knees(row(1, 1.0), row(2, 1.0), row(3, 0.4), row(4, 1.0, fits=False)) == [2]
    assert knees(row(1, 1.0), row(2, 0.5), row(1, 1.0, 128), row(2, 1.0, 128), row(4, 0.5, 128)) == [1, 2]


def test_the_largest_image_that_fits() -> None:
    rows = [
        row(1, 1, 64, True),
        row(1, 1, 128, False),
        row(2, 1, 128, True),
        row(2, 1, 64, True),
        row(4, 1, 128, False),
    ]
    assert largest_fitting(rows) == {1: (64, 64), 2: (128, 128), 4: None}
    assert largest_fitting([row(1, 1), row(2, 1)]) == {}, "no card is known"


def test_the_picture_of_memory(tmp_path: Path) -> None:
    terms = {"weights": 1.0, "retained": 2.0, "allowance": 0.4}
    rows = [replace(row(n, 1 / n), terms_gib=terms, capacity_gib=4.0) for n in (1, 2)]
    draw(rows, tmp_path / "with.png")
    draw([row(1, 1.0), row(2, 0.5)], tmp_path / "without.png")
    wide, narrow = (imread(tmp_path / name).shape[1] for name in ("with.png", "without.png"))
    assert wide > narrow


def test_the_picture(tmp_path: Path) -> None:
    rows = mark_knees(
        [row(1, 1.0), row(2, 0.9), row(4, 0.3), Row(image_size=(64, 64), gpus=8, fits=False, peak_gib=None)]
    )
    draw(rows, tmp_path / "e.png")
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"write: e.png"):
        draw(rows, tmp_path / "e.bmpx")
    with pytest.raises(UsageError, match="cannot be written"):
        draw(rows, tmp_path / "no" / "e.png")
