"""Which figures runs give, and what is in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dptrain.report.communication import pop_figure, split_figure
from dptrain.report.cost import batch_figure, breakdown_figure, memory_figure
from dptrain.report.figure import Figure, Missing
from dptrain.report.forecasts import forecast_figure, misfits_figure
from dptrain.report.page import FIGURES, figures, html
from dptrain.report.quality import difference_figure, loss_figure, psnr_figure, thinned
from dptrain.report.runs import Run
from dptrain.report.scaling import strong, strong_figure, weak_figure, work_figure
from dptrain.report.svg import Axis, Line, Point, line_chart
from dptrain.report.together import at_once
from tests.report.records import ReportedRun, reported
from tests.report.test_published import column

GIB = 2**30


def study(root: Path) -> list[Run]:
    """Two layouts on 1, 2 and 4 ranks, an untiled run, two batches, a weak ladder."""
    made = []

    def add(name: str, step_s: float, *overrides: str, **numbers: Any) -> None:
        run = ReportedRun(root, name, *overrides, steps_s=(9.0, step_s, step_s * 1.1, step_s * 0.9))
        ranks = run.world_size
        values = {
            "psnr_db": [20.0, 24.0, 25.0 + 1e-6 * (ranks - 1)],
            "ssim": [0.5, 0.6, 0.7],
            "sections": {"denoise": step_s},
        }
        run.result(**{**values, "peak_memory_bytes": [GIB // ranks] * ranks, "bytes_sent": [400] * ranks, **numbers})
        memory = {"peak_gib": 0.9 / ranks, "capacity_gib": 32.0}
        run.plan(work_multiplier=2.25, bytes_per_step=200, memory=memory, max_batch_size=1, choices=[], fits=True)
        made.append(run)

    for layout in ("sharded", "replicated"):
        for ranks in (1, 2, 4):
            keys = (f"resources.gpus={ranks}", f"resources.layout={layout}")
            add(f"{layout}-{ranks}", 1 / ranks + 0.05, *keys)
    add("untiled", 0.6, "tiling.patch=none")
    add("wide", 1.1, "problem.image_size=[64,128]", "resources.gpus=2")
    return reported(*made)


def table(figure: Figure | Missing) -> tuple[tuple[Any, ...], ...]:
    assert isinstance(figure, Figure), figure
    return figure.table.rows


def test_every_figure_that_the_data_allow_and_a_reason_for_the_others(tmp_path: Path) -> None:
    runs = study(tmp_path)
    made, missing = figures(runs)
    assert [f.ident for f in made] == [
        "psnr",
        "reference",
        "breakdown",
        "strong-scaling",
        "work-normalised",
        "weak-scaling",
        "memory",
        "forecast",
    ]
    assert len(made) + len(missing) == len(FIGURES) and all(m.why for m in missing)
    for figure in made:
        assert figure.how.endswith(".") and figure.table.rows and figure.pictures
        assert all(len(row) == len(figure.table.header) for row in figure.table.rows)
        for picture in figure.pictures:
            drawn = ElementTree.fromstring(picture.svg)
            assert drawn.get("role") == "img" and drawn.get("aria-label")
            numbers = re.findall(r"-?\d+\.\d+", picture.svg)
            assert numbers and all(-5 <= float(n) <= 2000 for n in numbers)


def test_no_runs_give_no_figures(tmp_path: Path) -> None:
    alone = ReportedRun(tmp_path, "alone")
    for runs in ([], reported(alone)):
        made, missing = figures(runs)
        assert not made and len(missing) == len(FIGURES)


def test_series_hold_what_differs_in_ranks_alone(tmp_path: Path) -> None:
    runs = study(tmp_path)
    found = {one.label: [run.name for run in one.runs] for one in strong(runs)}
    assert found == {
        "sharded": ["sharded-1", "sharded-2", "sharded-4"],
        "replicated": ["replicated-1", "replicated-2", "replicated-4"],
    }
    (efficiency,) = column(strong_figure(runs), "efficiency", {"run": "sharded-4"})
    assert efficiency == pytest.approx(1.05 / (4 * 0.3))


def test_of_runs_alike_the_newest_counts_and_failed_ones_do_not(tmp_path: Path) -> None:
    old = ReportedRun(tmp_path, "old", "resources.gpus=2", steps_s=(1.0, 5.0), created_s=1000.0)
    new = ReportedRun(tmp_path, "new", "resources.gpus=2", steps_s=(1.0, 4.0), created_s=2000.0)
    one = ReportedRun(tmp_path, "one", steps_s=(1.0, 6.0), created_s=1000.0)
    failed = ReportedRun(tmp_path, "failed", "resources.gpus=4", steps_s=(1.0, 6.0))
    failed.fail(1)
    assert [[run.name for run in s.runs] for s in strong(reported(new, old, one, failed))] == [["one", "new"]]


def test_fitted_patches_are_one_series(tmp_path: Path) -> None:
    made = []
    for ranks, patch in ((1, 32), (2, 16)):
        run = ReportedRun(tmp_path, f"r{ranks}", f"resources.gpus={ranks}", f"tiling.patch={patch}")
        run.plan(choices=[{"key": "tiling.patch", "value": patch, "reason": "fit: the busiest rank"}])
        made.append(run)
    assert len(strong(reported(*made))) == 1
    made[1].plan(choices=[{"key": "tiling.patch", "value": 16, "reason": "as the spec says"}])
    assert not strong(reported(*made))


def test_weak_ladder(tmp_path: Path) -> None:
    figure = weak_figure(study(tmp_path))
    assert column(figure, "run", {}) == ["sharded-1", "wide"]
    assert column(figure, "weak efficiency", {"run": "wide"}) == [pytest.approx(1.05 / 1.1)]


def test_untiled_run_is_the_measure_of_work(tmp_path: Path) -> None:
    figure = work_figure(study(tmp_path))
    (value,) = column(figure, "work-normalised", {"run": "sharded-2"})
    assert value == pytest.approx(0.6 / (2 * 0.55) * 2.25)


def test_untiled_training_measures_runs_that_recompute_as_much(tmp_path: Path) -> None:
    def trained(name: str, patch: str, step_s: float, checkpoint: str, tiles: int) -> ReportedRun:
        keys = (f"tiling.patch={patch}", f"tiling.checkpoint={checkpoint}", "train.steps=2")
        run = ReportedRun(tmp_path, name, *keys, steps_s=(9.0, step_s), task="train")
        run.result(loss=[0.1])
        decided = checkpoint if checkpoint != "fit" else "always"
        run.plan(work_multiplier=2.0, checkpoint=decided, max_batch_size=1, tiles_per_rank_max=tiles)
        return run

    untiled = [trained("u-never", "none", 1.0, "never", 1), trained("u-always", "none", 1.5, "always", 1)]
    tiled = [trained(f"t-{mode}", "16", 2.0, mode, 16) for mode in ("never", "auto", "fit", "stages")]
    figure = work_figure(reported(*tiled, *untiled))
    (never, always, fit) = (column(figure, "untiled run", {"run": f"t-{mode}"}) for mode in ("never", "auto", "fit"))
    assert (never, always, fit) == (["u-never"], ["u-always"], ["u-always"])
    assert column(figure, "run", {"run": "t-stages"}) == []
    assert isinstance(work_figure(reported(tiled[1], untiled[0])), Missing)
    # Of one tile `auto` recomputes nothing.
    one = trained("one", "none", 1.0, "auto", 1)
    assert column(work_figure(reported(tiled[0], one)), "untiled run", {}) == ["one"]


def test_what_is_no_number_moves_nothing_along_the_axis(tmp_path: Path) -> None:
    run = ReportedRun(tmp_path, "t", "train.steps=3", task="train")
    run.result(loss=[None, 0.2, 0.1], psnr_db=[None, 22.0, 23.0], psnr_steps=[0, 3, None])
    other = ReportedRun(tmp_path, "i")
    other.result(psnr_db=[20.0, None, 25.0])
    runs = reported(run, other)
    assert column(loss_figure(runs), "step", {}) == [2, 3]
    assert [(row[0], row[1], row[2]) for row in table(psnr_figure(runs))] == [
        ("t", 3, 22.0),
        ("i", 0, 20.0),
        ("i", 2, 25.0),
    ]


def test_settings_are_asked_for_as_often_as_there_are_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = study(tmp_path)
    asked = 0
    setting = Run.setting

    def counted(self: Run, *words: Any, **names: Any) -> str:
        nonlocal asked
        asked += 1
        return setting(self, *words, **names)

    monkeypatch.setattr(Run, "setting", counted)
    figures(runs)
    once, asked = asked, 0
    figures(runs * 4)
    assert 0 < asked <= 4 * once


def test_reference_is_the_single_rank_run_of_any_layout(tmp_path: Path) -> None:
    figure = difference_figure(study(tmp_path))
    assert column(figure, "run", {}) == ["sharded-2", "sharded-4", "replicated-2", "replicated-4"]
    assert column(figure, "PSNR (dB)", {"run": "sharded-4"}) == [pytest.approx(3e-6, rel=1e-3)]


def test_psnr_of_training_differs_only_after_the_same_steps(tmp_path: Path) -> None:
    made = []
    for gpus, every, at in ((1, 50, (0, 50, 100)), (2, 60, (0, 60, 100)), (3, 60, (0, 50, 60)), (4, 70, (70,))):
        name, saved = f"r{gpus}", f"train.save_every_steps={every}"
        run = ReportedRun(tmp_path, name, f"resources.gpus={gpus}", "train.steps=100", saved, task="train")
        run.result(psnr_db=[20.0 + step / 10 + (gpus == 3) for step in at], psnr_steps=at, loss=[0.5])
        made.append(run)
    figure = difference_figure(reported(*made))
    assert column(figure, "run", {}) == ["r2", "r3", "r4"]
    assert column(figure, "PSNR (dB)", {}) == [0.0, 1.0, None]


def test_numbers_of_a_restarted_run_are_those_of_what_it_did(tmp_path: Path) -> None:
    run = ReportedRun(tmp_path, "restarted", "resources.gpus=2", steps_s=(1.0,) * 9)
    run.start(0, 2)
    run.step(0, 10, 2)
    for rank in range(2):
        run.final(rank, 2)
    # Counted from the start of the process, as the peak is.
    run.result(bytes_sent=[640, 800], peak_memory_bytes=[10, 20], steps=10)
    (read,) = reported(run)
    assert (read.sent_per_step_bytes, read.peak_bytes) == (800, 2000)
    # A restart with nothing left to do.
    run.start(0, 3)
    assert reported(run)[0].sent_per_step_bytes is None
    run.change(asked_attempt=2)
    assert reported(run)[0].peak_bytes == 1000


def test_training_has_losses_and_a_path_over_steps(tmp_path: Path) -> None:
    run = ReportedRun(tmp_path, "t", "train.steps=3", task="train")
    run.result(loss=[0.3, 0.2, 0.1], psnr_db=[20.0, 22.0], psnr_steps=[0, 3])
    runs = reported(run)
    assert column(psnr_figure(runs), "step", {}) == [0, 3]
    assert column(loss_figure(runs), "loss", {"step": 3}) == [0.1]


def test_batches(tmp_path: Path) -> None:
    made = []
    for batch, step_s in ((1, 1.0), (4, 0.8)):
        run = ReportedRun(tmp_path, f"b{batch}", f"tiling.max_batch_size={batch}", steps_s=(1.0, step_s))
        run.result(peak_memory_bytes=[batch * GIB])
        made.append(run)
    figure = batch_figure(reported(*made))
    assert column(figure, "time against first", {"run": "b4"}) == [pytest.approx(-0.2)]
    assert column(figure, "peak (GiB)", {"run": "b4"}) == [4.0]


def test_memory_and_forecast(tmp_path: Path) -> None:
    runs = study(tmp_path)
    assert column(memory_figure(runs), "measured (GiB)", {"run": "sharded-2"}) == [0.5]
    ratios = column(forecast_figure(runs), "measured / forecast", {"run": "sharded-2"})
    assert ratios == [pytest.approx(0.5 / 0.45), pytest.approx(400 / 4 / 200)]


def test_configurations_that_did_not_fit(tmp_path: Path) -> None:
    refused = ReportedRun(tmp_path, "refused", submission="dry-run")
    refused.plan(
        fits=False, reasons=["memory: 40 GiB > 32 GiB of the card"], memory={"peak_gib": 40.0, "capacity_gib": 32.0}
    )
    burst = ReportedRun(tmp_path, "burst", "resources.gpus=2")
    burst.fail(1, "out-of-memory (device)", message="CUDA out of memory")
    sound = ReportedRun(tmp_path, "sound")
    figure = misfits_figure(reported(refused, burst, sound))
    assert column(figure, "run", {}) == ["refused", "burst"]
    assert column(figure, "reason", {}) == [
        "memory: 40 GiB > 32 GiB of the card",
        "out-of-memory (device): CUDA out of memory",
    ]


def test_a_slow_rank_is_wait_of_the_other(tmp_path: Path) -> None:
    run = ReportedRun(tmp_path, "two", "resources.gpus=2")
    part = {"compute_s": [0.4, 0.5], "wait_s": [0.1, 0.0], "transfer_s": [0.02, 0.02], "bytes_sent": [8, 8]}
    idle = {key: [1.0, 1.0] for key in part}
    run.result(communication={"steps": 2, "sections": {"denoise": part, "between": idle}, "step": part, "whole": idle})
    runs = reported(run)
    assert column(split_figure(runs), "wait (s)", {"section": "all of the step"}) == [0.05, 0.0]
    assert column(split_figure(runs), "section", {"rank": 0}) == ["denoise", "all of the step"]
    figure = pop_figure(runs)
    assert column(figure, "load balance", {}) == [pytest.approx(0.225 / 0.25)]
    assert column(figure, "communication efficiency", {}) == [pytest.approx(0.25 / 0.26)]
    assert column(figure, "parallel efficiency", {}) == [pytest.approx(0.225 / 0.26)]


WORDS: list[Any] = [
    None,
    3,
    [],
    {},
    {"steps": 0, "step": {}},
    {"steps": 1, "step": {"compute_s": ["x"]}, "sections": [1]},
]


@pytest.mark.parametrize("value", WORDS, ids=str)
def test_other_words_for_communication_are_none(tmp_path: Path, value: Any) -> None:
    run = ReportedRun(tmp_path, "odd", "resources.gpus=2")
    run.result(communication=value, sections=value, psnr_db=value, loss=value)
    runs = reported(run)
    assert isinstance(split_figure(runs), Missing) and isinstance(breakdown_figure(runs), Missing | Figure)
    figures(runs)


def test_thinned_keeps_the_last() -> None:
    assert thinned(5, 10) == [0, 1, 2, 3, 4] and thinned(0, 10) == []
    assert thinned(1000, 50)[-1] == 999 and len(thinned(1000, 50)) <= 51


def test_a_chart_of_one_point_and_of_hostile_words() -> None:
    text = line_chart(
        "<b>", [Line(label="</svg><script>", points=[Point(x=1, y=0.0)])], Axis(label="&"), Axis(label='"')
    )
    assert "<script" not in text and "<b>" not in text
    ElementTree.fromstring(text)


def test_a_resumed_run_is_timed_since_it_was_asked_for_last(tmp_path: Path) -> None:
    run = ReportedRun(tmp_path, "r", steps_s=(9.0, 5.0, 5.0), asked_attempt=2, first_attempt=2)
    run.start(0, 2)
    for number, seconds in ((4, 8.0), (5, 1.0), (6, 2.0)):
        run.step(0, number, 2, seconds=seconds)
    assert reported(run)[0].steps_s == (1.0, 2.0)


def test_runs_with_injected_faults_are_compared_with_no_others(tmp_path: Path) -> None:
    one = ReportedRun(tmp_path, "one")
    two = ReportedRun(tmp_path, "two", "resources.gpus=2", faults="slow@rank=0,step=1,attempt=1,seconds=2")
    assert not strong(reported(one, two))
    for run in (one, two):
        run.plan(step_time_s=0.5)
    assert column(forecast_figure(reported(one, two)), "run", {}) == ["one"]


def test_lines_that_coincide_are_one(tmp_path: Path) -> None:
    figure = psnr_figure(study(tmp_path))
    assert isinstance(figure, Figure)
    keys = [[key.label for key in picture.keys] for picture in figure.pictures]
    assert keys[0][0].startswith("6 runs that coincide at this scale: ranks 1, sharded; ranks 2, sharded;")


def test_runs_on_one_machine_at_the_same_time_are_no_scaling(tmp_path: Path) -> None:
    spans = {"alone": (0, 9), "long": (10, 40), "inside": (15, 16), "late": (35, 39), "after": (40, 50)}
    written = {}
    for ranks, (name, (begin_s, end_s)) in enumerate(spans.items(), start=1):
        run = written[name] = ReportedRun(tmp_path, name, f"resources.gpus={ranks}", launcher="local")
        events = run.paths.attempt(1).rank_events(0)
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        times = [begin_s, *(end_s for _ in lines[1:])]
        events.write_text(
            "".join(json.dumps({**e, "t": float(t), "host": "here"}) + "\n" for e, t in zip(lines, times, strict=True))
        )
    runs = reported(*written.values())
    assert [run.name for run in at_once(runs)] == ["long", "inside", "late"]
    figure = strong_figure(runs)
    assert isinstance(figure, Figure) and figure.warning is not None
    assert figure.warning.startswith("the times of 3 runs say nothing") and figure.warning.endswith(
        "long, inside, late"
    )
    assert figure.warning in html(runs)
    figure = strong_figure([run for run in runs if run.name not in ("inside", "late")])
    assert isinstance(figure, Figure) and figure.warning is None
    written["long"].change(launcher="slurm")
    assert at_once(reported(*written.values())) == []
