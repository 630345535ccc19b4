"""Two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dptrain.errors import UsageError
from dptrain.records.intent import write_json
from dptrain.report.compare import Comparison, compare, of_arrays, of_lists
from tests.report.records import ReportedRun, reported

LIMIT = 1e-4


def compared(*runs: ReportedRun) -> Comparison:
    return compare(*reported(*runs))


def infer(
    root: Path, name: str, image: np.ndarray[tuple[int, ...], np.dtype[np.float32]], *overrides: str
) -> ReportedRun:
    run = ReportedRun(root, name, *overrides, steps_s=(9.0, *(0.5 + 0.001 * k for k in range(10))))
    run.result(psnr_db=[20.0, 21.0])
    np.save(run.paths.output / "reconstruction.npy", image)
    return run


def test_equal_runs(tmp_path: Path) -> None:
    image = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(1, 64, 64)
    a, b = infer(tmp_path, "a", image), infer(tmp_path, "b", image, "resources.gpus=2")
    found = compared(a, b)
    assert found.result == "identical" and {d.what for d in found.differences} == {
        "PSNR path",
        "output/reconstruction.npy",
    }
    assert found.spec == (("resources.gpus", 1, 2),)
    assert found.speed is not None and found.speed.ratio.value == 1 and "no difference" in found.speed.verdict
    json.dumps(found.to_json(), allow_nan=False)


def test_rounding_and_more_than_that(tmp_path: Path) -> None:
    image = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(1, 64, 64)
    near, far = image.copy(), image.copy()
    near[0, 5, 5] += 5e-6
    far[0, 5, 5] += 0.01
    runs = [infer(tmp_path, name, x) for name, x in (("a", image), ("near", near), ("far", far))]
    assert compared(runs[0], runs[1]).result == "equal up to rounding"
    found = compared(runs[0], runs[2])
    assert found.result == "different"
    (output,) = [d for d in found.differences if d.what.startswith("output")]
    assert output.largest == pytest.approx(0.01, rel=1e-3) and output.rms == pytest.approx(0.01 / 64, rel=1e-3)


def test_slower(tmp_path: Path) -> None:
    image = np.zeros((1, 8, 8), np.float32)
    a = infer(tmp_path, "a", image)
    b = ReportedRun(tmp_path, "b", steps_s=(9.0, *(1.0 + 0.001 * k for k in range(10))))
    found = compared(a, b)
    assert found.speed is not None and found.speed.verdict == "B is slower"
    assert found.speed.ratio.low < 2 < found.speed.ratio.high
    assert "output: only one of the two has reconstruction.npy" in found.absent


def test_weights_and_losses_of_training(tmp_path: Path) -> None:
    runs = []
    for name, shift in (("a", 0.0), ("b", 0.5)):
        run = ReportedRun(tmp_path, name, task="train")
        run.result(loss=[0.3, 0.2 + shift])
        run.paths.save(3).mkdir()
        save_file({"w": np.full(4, 1 + shift, np.float32)}, run.paths.save(3) / "model.safetensors")
        runs.append(run)
    found = compared(*runs)
    weights = next(d for d in found.differences if d.what == "weights after step 3")
    losses = next(d for d in found.differences if d.what == "losses")
    assert (weights.verdict, weights.largest) == ("different", 0.5)
    assert (losses.verdict, losses.first) == ("different", 1)


@pytest.mark.parametrize(("steps", "verdict"), [((0, 60, 100), "identical"), ((30, 60, 90), None)])
def test_psnr_of_training_is_compared_after_the_same_steps(
    tmp_path: Path, steps: tuple[int, ...], verdict: str | None
) -> None:
    runs = [ReportedRun(tmp_path, name, task="train") for name in ("a", "b")]
    for run, at in zip(runs, ((0, 50, 100), steps), strict=True):
        run.result(psnr_db=[20.0 + step / 10 for step in at], psnr_steps=at)
    found = compared(*runs)
    what = "PSNR after 2 steps that both measured"
    assert [(d.what, d.verdict) for d in found.differences] == ([] if verdict is None else [(what, verdict)])
    assert ("PSNR path: it was never measured after the same step" in found.absent) == (verdict is None)


def test_empty_weights_are_said(tmp_path: Path) -> None:
    runs = [ReportedRun(tmp_path, name, task="train") for name in ("a", "b")]
    for run in runs:
        run.paths.save(3).mkdir()
        save_file({}, run.paths.save(3) / "model.safetensors")
    assert "weights: the saves of step 3 hold no tensor" in compared(*runs).absent
    (runs[0].paths.save(3) / "model.safetensors").write_bytes(b"")
    assert any(text.startswith("weights: those of step 3 cannot be read") for text in compared(*runs).absent)


def test_entries_are_compared_in_their_places(tmp_path: Path) -> None:
    found = of_lists("x", [None, 1.0, 2.0], [None, 1.0, 2.5], LIMIT)
    assert (found.first, found.largest, found.note) == (2, 0.5, "")
    found = of_lists("x", [1.0, None, 2.0], [1.0, 2.0, None], LIMIT)
    assert (found.verdict, found.first, found.largest) == ("different", 1, 0.0) and "2 entries" in found.note
    assert of_lists("x", [None, 1.0], [1.0, None], LIMIT).largest is None
    runs = [ReportedRun(tmp_path, name) for name in ("a", "b")]
    for run, last in zip(runs, (None, 3.0), strict=True):
        run.result(psnr_db=[None, last])
    assert "PSNR path: only b has it" in compared(*runs).absent


def test_environment(tmp_path: Path) -> None:
    a, b = ReportedRun(tmp_path, "a"), ReportedRun(tmp_path, "b")
    write_json(a.paths.environment, {"host": "n1", "versions": {"torch": "1"}})
    write_json(b.paths.environment, {"host": "n1", "versions": {"torch": "2"}})
    found = compared(a, b)
    assert found.environment == (("versions.torch", "1", "2"),) and found.result == "not comparable"


def test_tasks_that_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compared(ReportedRun(tmp_path, "a"), ReportedRun(tmp_path, "b", task="train"))


def test_lists_and_arrays_of_other_sizes() -> None:
    assert of_lists("x", [1.0], [1.0, 2.0], LIMIT).verdict == "different"
    assert of_arrays("x", np.zeros((1, 2, 2)), np.zeros((1, 3, 2)), LIMIT).verdict == "not comparable"
    assert of_arrays("x", np.full((1, 2, 2), np.nan), np.zeros((1, 2, 2)), LIMIT).verdict == "not comparable"
