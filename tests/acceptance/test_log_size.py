"""Ten thousand steps without a terminal: what people read stays small and plain; what programs read is a line per step.

The limit of 100 kB is that of the logs: of every rank, of the launcher, and of the command that follows the run. The event files hold
one line per step and rank, from which `status` reads the two ends; they are measured here too, see docs/run-directory.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptrain.records.paths import RunPaths
from tests.cli.cli import Cli

STEPS = 10_000
LOG_BYTES = 100_000
EVENT_BYTES_PER_STEP = 300
SMALL = """\
name: long
problem: {image_size: [32, 32], channels: 1, physics: {name: denoise, noise_std: 0.1}, data: {source: synthetic}}
denoiser: {name: identity}
algorithm: {iterations: 10000}
tiling: {patch: 32, halo: 0}
"""
TRAIN = SMALL.replace("iterations: 10000", "iterations: 1") + (
    "train: {steps: 10000, images: 1, held_out: 1, trainable: [step_size], save_every_steps: 2}\n"
)
CONTROL = {*range(32), 127} - {ord("\n")}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("task", "spec"), [("infer", SMALL), ("train", TRAIN)])
def test_ten_thousand_steps_leave_small_plain_logs(tool: Cli, task: str, spec: str) -> None:
    done = tool(task, tool.write("long.yaml", spec), "--json", timeout_s=1700)
    assert done.code == 0, done.err
    status = json.loads(done.out)
    assert (status["state"], status["step"], status["steps"]) == ("completed", STEPS, STEPS)
    attempt = RunPaths(Path(status["run_dir"])).attempt(1)
    logs = {
        "rank-0.log": attempt.rank_log(0).read_bytes(),
        "launcher.log": attempt.launcher_log.read_bytes(),
        "the command's stderr": done.err.encode(),
    }
    events = attempt.rank_events(0).read_bytes()
    sizes = {name: len(content) for name, content in logs.items()}
    print(f"{task}, {STEPS} steps: {sizes} bytes; rank-0.jsonl {len(events)} bytes, {len(events) / STEPS:.0f} per step")
    for name, content in logs.items():
        assert not CONTROL & set(content), f"{name} has control characters"
        assert len(content) < LOG_BYTES, name
    assert logs["rank-0.log"].count(b"\n") > 100, "and it says something on the way"
    assert not CONTROL & set(events) and len(events) < EVENT_BYTES_PER_STEP * STEPS
