"""Comparing an uninterrupted run with one that was stopped, and where their time went: on runs as the record writers leave them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dptrain.report.rehearsal import compare, phases, save_seconds, was_warned
from tests.status.helpers import WrittenRun

STEPS = 4


def run(
    root: Path, name: str, *, device: str = "cpu", shift: float = 0.0, stopped_after: int | None = None
) -> WrittenRun:
    """A training of four steps, with another loss in the last one, stopped or not."""
    made = WrittenRun(root, name, world_size=1, steps=STEPS, launcher="local", job_id="1")
    made.event(0, "start", device=device, rank=0)
    made.event(0, "phase", phase="run")
    attempt = 1
    for step in range(1, STEPS + 1):
        loss = 1.0 / step + (shift if step == STEPS else 0.0)
        made.event(0, "step", attempt, step=step, lr=1e-3, loss=loss, psnr_db=None)
        if step == stopped_after:
            made.event(0, "signal", attempt, signal="SIGUSR2")
            made.event(0, "save", attempt, step=step, seconds=0.25)
            made.event(0, "requeue", attempt, step=step, reason="preempted")
            attempt = 2
            made.event(0, "start", attempt, device=device, rank=0)
            made.event(0, "phase", attempt, phase="run")
    made.event(0, "final", attempt, step=STEPS, steps=STEPS)
    made.paths.save(STEPS).mkdir()
    save_file({"w": np.full(3, 2.0 + shift, np.float32)}, made.paths.save(STEPS) / "model.safetensors")
    made.paths.result.write_text(json.dumps({"loss": [1.0, 0.5 + shift], "psnr_db": None, "sigma": [0.1]}))
    return made


def test_stopped_and_not_are_the_same_to_the_bit(tmp_path: Path) -> None:
    whole, stopped = run(tmp_path, "whole").paths, run(tmp_path, "stopped", stopped_after=2).paths
    found = compare(whole, stopped, "float32")
    assert found.equal and found.same_bits and found.tolerance == 0
    assert [item.what.split(" of ")[0] for item in found.items] == [
        "4 steps with their learning rate, loss and PSNR",
        "loss",
        "sigma",
        "saves/step-4/model.safetensors",
    ]
    assert save_seconds(stopped) == 0.25 and was_warned(stopped) and not was_warned(whole)
    assert save_seconds(whole) is None


@pytest.mark.parametrize(
    ("device", "shift", "equal"), [("cpu", 1e-6, False), ("cuda", 1e-6, True), ("cuda", 0.1, False)]
)
def test_other_numbers_are_equal_on_a_gpu_alone_and_only_if_close(
    tmp_path: Path, device: str, shift: float, equal: bool
) -> None:
    whole = run(tmp_path, "whole", device=device).paths
    found = compare(whole, run(tmp_path, "stopped", device=device, shift=shift, stopped_after=1).paths, "float32")
    assert found.equal is equal and not found.same_bits
    apart = [item.apart for item in found.items if item.apart is not None]
    assert len(apart) == 3 and all(shift / 3 < value < 5 * shift for value in apart)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["equal"] is equal


def test_a_step_made_twice_or_never_is_no_continuation(tmp_path: Path) -> None:
    whole, stopped = run(tmp_path, "whole"), run(tmp_path, "stopped", stopped_after=2)
    stopped.event(0, "step", 2, step=3, lr=1e-3, loss=1 / 3, psnr_db=None)
    found = compare(whole.paths, stopped.paths, "float32")
    assert not found.equal and "[1, 2, 3, 4, 3]" in found.items[0].line()


def test_what_only_one_has_is_named(tmp_path: Path) -> None:
    whole, stopped = run(tmp_path, "whole").paths, run(tmp_path, "stopped", stopped_after=2).paths
    np.save(whole.output / "reconstruction.npy", np.zeros(3))
    assert "the other run does not have it" in compare(whole, stopped, "float32").items[-2].line()
    np.save(stopped.output / "reconstruction.npy", np.zeros(4))
    found = compare(whole, stopped, "float32")
    assert not found.equal and "of another shape" in found.items[-2].line()


def test_phases_follow_each_other(tmp_path: Path) -> None:
    made = run(tmp_path, "stopped", stopped_after=2)
    spent = phases(made.paths, "preempted", made.intent.created_s, made.intent.created_s)
    assert [phase.phase for phase in spent] == [
        "until the ranks start",
        "set-up",
        "until warned",
        "from the warning until step and save are done",
        "until the ranks start of attempt 2",
        "set-up of attempt 2",
        "2 steps of attempt 2",
    ]
    assert all(phase.seconds >= 0 and phase.run == "preempted" for phase in spent)
