"""`rehearse` on this machine: a training that is stopped and continued, one whose data is not the same twice, and Ctrl-C."""

from __future__ import annotations

import json
import signal

import pytest

from dptrain.launch.local import rank_pids, supervisor_alive
from dptrain.records.index import find_runs
from dptrain.records.paths import RunPaths
from tests.cli.cli import TINY, Cli
from tests.cli.test_local_runs import TRAIN
from tests.local_runs import events, wait_for

RESTLESS = """\
import os

import torch


def images(image_size, channels, count, **others):
    generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
    return [torch.rand(channels, *image_size, generator=generator) for _ in range(count or 1)]
"""
"""A data factory whose images are others in every process: as with an unseeded augmentation, nothing can be continued."""


@pytest.mark.acceptance
def test_a_training_that_is_stopped_ends_as_one_that_is_not(cli: Cli) -> None:
    done = cli("rehearse", cli.write("learn.yaml", TRAIN), "--json", "--set", "resources.gpus=1")
    assert done.code == 0, done.err
    assert "\x1b" not in done.err and "warned, as the scheduler warns" in done.err
    found = json.loads(done.out)
    assert found["equal"] and found["to_the_bit"] and found["problem"] is None
    whole, stopped = (RunPaths(cli.folder / "runs" / found["runs"][kind]) for kind in ("uninterrupted", "preempted"))
    assert [p.run_id for p in find_runs(cli.folder / "runs")] == [whole.run_id, stopped.run_id]
    assert whole.run_id.startswith("learn-rehearsal-whole-") and stopped.run_id.startswith("learn-rehearsal-stopped-")
    assert (whole.attempts(), stopped.attempts()) == ([1], [1, 2])
    (asked,) = {e["step"] for e in events(stopped, 0, "requeue")}
    assert 3 <= asked < 8 and [e["step"] for e in events(stopped, 0, "step")] == list(range(1, 9))
    assert found["save"]["seconds"] > 0 and found["save"]["signal_lead_s"] == 90
    changed = {change["key"]: change["value"] for change in found["changes"]}
    assert changed["train.steps"] == "8"
    plan = json.loads(stopped.plan.read_text())
    assert {"train.steps": "rehearse"}.items() <= {o["key"]: o["origin"] for o in plan["overrides"]}.items()


@pytest.mark.acceptance
def test_a_reconstruction_is_rehearsed_too(cli: Cli) -> None:
    done = cli("rehearse", cli.write("tiny.yaml", TINY), "--set", "algorithm.iterations=6")
    assert done.code == 0, done.err
    assert "equal to the bit: stopped and continued" in done.out and "reconstruction.npy: equal to the bit" in done.out
    assert "rehearsed with algorithm.iterations" not in done.err
    for phase in ("uninterrupted", "preempted", "set-up of attempt 2", "save: "):
        assert phase in done.out


@pytest.mark.acceptance
def test_data_that_is_not_the_same_twice_is_found_out(cli: Cli) -> None:
    cli.write("restless.py", RESTLESS)
    text = TRAIN.replace("{source: synthetic}", '{factory: "restless:images"}').replace("gpus: 2", "gpus: 1")
    done = cli("rehearse", cli.write("restless.yaml", text))
    assert done.code == 1 and "ends with other numbers" in done.err, done.err
    assert "apart, relative" in done.out and "equal to the bit: stopped" not in done.out


@pytest.mark.acceptance
def test_interrupted_it_leaves_nothing_running(cli: Cli) -> None:
    with cli.start("rehearse", cli.write("learn.yaml", TRAIN), "--set", "train.steps=100000") as process:
        wait_for(lambda: [p for p in find_runs(cli.folder / "runs") if events(p, 0, "step")], "a step", 120)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted; " in err and "cancelled" in err
    for paths in find_runs(cli.folder / "runs"):
        assert rank_pids(paths) == [] and supervisor_alive(paths) == "gone"


def test_what_cannot_be_rehearsed_is_said(cli: Cli) -> None:
    one = cli("rehearse", cli.write("tiny.yaml", TINY), "--set", "algorithm.iterations=2")
    assert one.code == 2 and "no middle to stop in" in one.err
    faulty = Cli(cli.folder, DPTRAIN_FAULT="kill@step=1", DPTRAIN_FAULT_ALLOW="1")
    own = faulty("rehearse", "tiny.yaml")
    assert own.code == 2 and "unset DPTRAIN_FAULT" in own.err
    assert find_runs(cli.folder / "runs") == []
