"""Whole runs on this machine: real supervisor, real ranks, real signals."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dptrain.launch.local import rank_pids, start_local
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.process import start_ticks
from dptrain.status.state import run_status
from tests.local_runs import events, finish, result, running, signal_rank, wait_for


@pytest.fixture(autouse=True)
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


STEPS = 80
"""Enough that a signal after the first step comes before the last, also on a fast machine."""


def losses(paths: RunPaths) -> list[tuple[int, float, float]]:
    return [(e["step"], e["lr"], e["loss"]) for e in events(paths, 0, "step")]


def newest_model(paths: RunPaths) -> bytes:
    return (paths.save(STEPS) / "model.safetensors").read_bytes()


@pytest.mark.acceptance
def test_training_preempted_and_resumed_equals_uninterrupted() -> None:
    change = ("train.schedule=cosine", f"train.steps={STEPS}", "train.save_every_steps=10")
    with running("train", *change) as whole:
        assert finish(whole) == 0
    with running("train", *change) as stopped:
        # A warning on any one rank makes all of them save the same step and start again.
        wait_for(lambda: events(stopped, 1, "step"), "the first step")
        signal_rank(stopped, 1, signal.SIGUSR2)
        assert finish(stopped) == 0
    assert stopped.attempts() == [1, 2]
    requeued = events(stopped, 0, "requeue")
    assert [e["reason"] for e in requeued] == ["preempted"]
    assert requeued[0]["step"] < STEPS, "the signal came too late to interrupt anything"
    assert losses(stopped) == losses(whole)
    assert newest_model(stopped) == newest_model(whole)
    assert result(stopped)["loss"] == result(whole)["loss"]
    assert result(stopped)["psnr_db"] == result(whole)["psnr_db"]
    assert run_status([stopped])[0].state == "completed"


@pytest.mark.acceptance
def test_reconstruction_preempted_and_resumed_equals_uninterrupted() -> None:
    change = ("algorithm.iterations=150", "algorithm.name=fista", "denoiser.init=passthrough")
    with running("infer", *change) as whole:
        assert finish(whole) == 0
    with running("infer", *change) as stopped:
        wait_for(lambda: events(stopped, 0, "step"), "the first step")
        signal_rank(stopped, 0, signal.SIGUSR2)
        assert finish(stopped) == 0
    assert result(stopped)["psnr_db"] == result(whole)["psnr_db"]
    first, second = (np.load(p.output / "reconstruction.npy") for p in (whole, stopped))
    assert np.array_equal(first, second)


def test_several_images_of_one_name_each_get_their_files(tmp_path: Path) -> None:
    for folder, level in (("a", 0.2), ("b", 0.7)):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "scan.npy", np.full((24, 24), level, dtype=np.float32))
    with running("infer", f'problem.data={{truth: "{tmp_path}/*/scan.npy"}}', "denoiser={name: identity}") as run:
        assert finish(run) == 0
    names = {p.name for p in run.output.iterdir()}
    assert {"reconstruction-0000-scan.npy", "reconstruction-0001-scan.npy", "side-by-side-0001-scan.png"} <= names
    truth = [np.asarray(Image.open(run.output / f"truth-000{index}-scan.png")) for index in (0, 1)]
    assert [picture.mean() for picture in truth] == [51, round(0.7 * 255)]
    for index, level in ((0, 0.2), (1, 0.7)):
        assert np.load(run.output / f"reconstruction-000{index}-scan.npy").mean() == pytest.approx(level, abs=0.02)
    assert result(run)["steps"] == 6 and len(result(run)["psnr_db"]) == 4
    assert [image["name"] for image in result(run)["images"]] == ["scan", "scan"]


def test_user_data_says_on_the_ranks_how_many_images_there_are_and_a_warning_between_them_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\ndef images(image_size, channels, **kwargs):\n"
        "    return [torch.full((channels, *image_size), 0.1 * i) for i in range(3)]\n"
    )
    monkeypatch.setenv("DPTRAIN_FAULT", "preempt@rank=1,step=2")
    monkeypatch.setenv("DPTRAIN_FAULT_ALLOW", "1")
    change = ('problem.data={factory: "mine:images"}', "denoiser={name: identity}", "algorithm.iterations=1")
    with running("infer", *change, folder=tmp_path) as run:
        assert finish(run) == 0
    status = run_status([run])[0]
    assert (status.state, status.step, status.steps) == ("completed", 3, 3)
    assert status.history == ("attempt 1: preempted at step 2",)
    assert [e["step"] for e in events(run, 1, "step")] == [1, 2, 3], "no image was left out or made again"
    assert len(list(run.output.glob("reconstruction-*.npy"))) == 3
    assert [len(image["psnr_db"]) for image in result(run)["images"]] == [2, 2, 2]


def test_the_budget_of_preemptions_ends_the_run() -> None:
    with running("train", "train.steps=400", "run.max_preempts=0") as run:
        wait_for(lambda: events(run, 0, "step"), "the first step")
        signal_rank(run, 0, signal.SIGUSR2)
        assert finish(run) == 1
    failure = events(run, 0, "failure")[0]
    assert failure["class"] == "preempted" and "run.max_preempts is 0" in failure["message"]


def test_a_frozen_rank_is_noticed() -> None:
    with running("train", "train.steps=100000", "run.stall_timeout_s=3") as run:
        wait_for(lambda: events(run, 0, "step"), "the first step")
        signal_rank(run, 1, signal.SIGSTOP)
        assert finish(run) == 1
    failure = events(run, 0, "failure")[0]
    assert failure["class"] == "stalled" and "no progress for 3 s" in failure["message"]
    log = run.attempt(1).rank_log(0).read_text()
    assert "stacks of all threads" in log and "trainer.py" in log
    status = run_status([run])[0]
    assert status.state == "failed: stalled" and status.failure is not None and status.failure.rank == 1
    assert "rank 1 on" in status.failure.message and "rank 0 waited for it" in status.failure.message


@pytest.mark.parametrize(
    "code,lacking", [(0, "a final record"), (75, "a request to be started again"), (3, "a failure record")]
)
def test_a_rank_that_leaves_without_a_word_is_named_first(tmp_path: Path, code: int, lacking: str) -> None:
    (tmp_path / "leaving.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "class Leaving(torch.nn.Module):\n"
        "    calls = 0\n"
        "    def forward(self, x, sigma):\n"
        "        self.calls += 1\n"
        "        if self.calls == 4 and dist.get_rank() == 1:\n"
        f"            os._exit({code})\n"
        "        return x\n"
        "def build(**kwargs):\n"
        "    return Leaving()\n"
    )
    change = ('denoiser={factory: "leaving:build"}', "algorithm.iterations=500")
    with running("infer", *change, folder=tmp_path) as run:
        assert finish(run) in (1, 3)
    assert run.attempts() == [1]
    status = run_status([run])[0]
    assert status.state == "failed: unknown" and status.failure is not None
    assert (status.failure.rank, status.failure.kind) == (1, "unknown")
    assert f"exit code {code} without {lacking}" in status.failure.message


def test_a_run_whose_folder_is_removed_ends_by_itself(tmp_path: Path) -> None:
    with running("train", "train.steps=100000") as run:
        wait_for(lambda: events(run, 1, "step"), "the first step")
        pid = int(str(read_intent(run).job_id))
        run.dir.rename(tmp_path / "elsewhere")
        wait_for(lambda: start_ticks(pid) is None and not rank_pids(run), "the end of its processes", 40)
        assert not run.dir.exists()
        (tmp_path / "elsewhere").rename(run.dir)
        assert finish(run) == 1


def test_divergence_keeps_the_last_finite_iterate(tmp_path: Path) -> None:
    (tmp_path / "wild.py").write_text(
        "import torch\n"
        "class Wild(torch.nn.Module):\n"
        "    def forward(self, x, sigma):\n"
        "        return x * 1e30\n"
        "def build(**kwargs):\n"
        "    return Wild()\n"
    )
    change = ('denoiser={factory: "wild:build"}', "algorithm.iterations=9")
    with running("infer", *change, folder=tmp_path) as run:
        assert finish(run) == 1
    failure = events(run, 0, "failure")[0]
    assert failure["class"] == "diverged" and not failure["secondary"]
    assert bool(np.isfinite(np.load(run.output / "last-good.npy")).all())


def test_an_exception_on_one_rank_ends_all_and_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import torch, torch.distributed as dist\n"
        "class Broken(torch.nn.Module):\n"
        "    calls = 0\n"
        "    def forward(self, x, sigma):\n"
        "        self.calls += 1\n"
        "        if self.calls == 4 and dist.get_rank() == 1:\n"
        "            raise ValueError('a tile I do not like')\n"
        "        return x\n"
        "def build(**kwargs):\n"
        "    return Broken()\n"
    )
    change = ('denoiser={factory: "broken:build"}', "algorithm.iterations=500")
    with running("infer", *change, folder=tmp_path) as run:
        assert finish(run) == 1
    status = run_status([run])[0]
    assert status.state == "failed: exception"
    assert status.failure is not None
    assert status.failure.rank == 1 and "a tile I do not like" in status.failure.message


def test_another_number_of_ranks_than_planned_is_refused() -> None:
    from dptrain.records.intent import read_intent, write_json

    with running("infer") as run:
        finish(run)
    # The launcher reads the intent, the ranks compare with it: take the identity of one rank away instead.
    import subprocess
    import sys

    intent = read_intent(run)
    assert intent.world_size == 2
    write_json(run.attempt(1).rendezvous, {})
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dptrain.engine.worker", str(run.dir)],
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    failure = events(run, 0, "failure")[-1]
    assert failure["class"] == "world-mismatch"
    assert "planned 2 ranks" in failure["message"] and "rank 0 of 1" in failure["message"]


def test_a_training_run_counts_its_data_and_is_completed_when_resumed_with_nothing_left_to_do(tmp_path: Path) -> None:
    slow_s = 0.1
    (tmp_path / "slow.py").write_text(
        "import time, torch\n"
        "class Images:\n"
        "    def __len__(self):\n"
        "        return 2\n"
        "    def __getitem__(self, index):\n"
        f"        time.sleep({slow_s})\n"
        "        return torch.full((1, 24, 24), 0.1 * (index + 1))\n"
        "def images(**kwargs):\n"
        "    return Images()\n"
    )
    change = ("train.steps=2", "train.save_every_steps=1", "train.held_out=0", 'problem.data={factory: "slow:images"}')
    with running("train", *change, "train.images=2", folder=tmp_path) as run:
        assert finish(run) == 0
        # Both steps wait for an image that is not there yet.
        assert all(e["seconds"] >= slow_s for e in events(run, 0, "step"))
        assert result(run)["sections"]["data"] >= slow_s
        # As after a kill between the last save and the last record.
        run.result.unlink()
        start_local(run)
        assert finish(run) == 0
    assert [e["step"] for e in events(run, 0, "final")] == [2, 2] and result(run)["steps"] == 2
    assert run_status([run])[0].state == "completed"
