"""`report` passes on what completed runs have needed."""

from __future__ import annotations

from pathlib import Path

from dptrain.plan.timing import step_key
from dptrain.records.calibration import read_measured
from dptrain.records.intent import write_json
from dptrain.report.measured import measured_of, remember
from dptrain.spec.load import load_spec
from dptrain.status.state import run_status
from tests.status.helpers import WrittenRun

RESULT = {"card": "V100", "peak_memory_bytes": [5000, 7000], "largest_storage_bytes": [None, None]}
PLAN = {"memory": {"peak_bytes": 6000}, "max_batch_size": 2, "checkpoint": "always"}


def finished(root: Path, name: str = "good-1", result: object = RESULT, plan: object = PLAN) -> WrittenRun:
    run = WrittenRun(root, name)
    run.finish()
    write_json(run.paths.result, result)
    write_json(run.paths.plan, plan)
    return run


def test_forecast_peak_and_step_time_of_a_completed_run(tmp_path: Path) -> None:
    run, bad = finished(tmp_path), WrittenRun(tmp_path, "bad-1")
    bad.start(0)
    bad.fail(0)
    runs = [run.paths, bad.paths]
    assert list(remember(runs, run_status(runs))) == [f"stored for plan: 1 run in {tmp_path / 'calibration.jsonl'}"]
    (made,) = read_measured(tmp_path)
    assert (made.run, made.cluster, made.card, made.task) == ("good-1", "site", "V100", "infer")
    assert (made.forecast_bytes, made.measured_bytes, made.step_time_s) == (6000, 7000, 0.5)
    assert made.step_key == step_key(load_spec(run.paths.spec).spec, "infer", 2, "always")
    assert list(remember(runs, run_status(runs))) == [], "it is known"


def test_a_restart_with_nothing_left_to_do_hides_no_peak(tmp_path: Path) -> None:
    run = finished(tmp_path, result={**RESULT, "peak_memory_bytes": [500, 700]})
    made = measured_of(run.paths, run_status([run.paths])[0])
    assert made is not None and made.measured_bytes == 2000


def test_what_is_not_known_is_left_open(tmp_path: Path) -> None:
    def of(name: str, result: object, plan: object = PLAN) -> tuple[int | None, int | None, bool] | None:
        run = finished(tmp_path, name, result, plan)
        made = measured_of(run.paths, run_status([run.paths])[0])
        return None if made is None else (made.forecast_bytes, made.measured_bytes, made.step_key is not None)

    assert of("a-1", {**RESULT, "card": "cpu", "largest_storage_bytes": [1, 2]}) == (6000, 7000, True)
    assert of("b-1", {**RESULT, "card": "cpu"}) == (6000, None, True), "a compiled network is not followed"
    assert of("c-1", RESULT, {"memory": {"peak_gib": None}}) == (None, 7000, False)
    assert of("d-1", {"peak_memory_bytes": [1]}) is None, "an older result names no card"
    assert of("e-1", {**RESULT, "peak_memory_bytes": "x"}, []) == (None, None, False)


def test_runs_made_to_fail_say_nothing(tmp_path: Path) -> None:
    run = finished(tmp_path)
    run.change(faults="slow@rank=0,step=1,attempt=1,seconds=1")
    assert measured_of(run.paths, run_status([run.paths])[0]) is None


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    run = finished(tmp_path)
    (tmp_path / "calibration.jsonl").mkdir()
    (text,) = remember([run.paths], run_status([run.paths]))
    assert text.startswith("not stored for plan: calibration.jsonl")
