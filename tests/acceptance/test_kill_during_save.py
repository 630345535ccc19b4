"""Twenty SIGKILLs at random moments of saves: every restart works, loses one interval at most, and the end is the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dptrain.launch.local import start_local
from dptrain.records.events import read_events
from dptrain.records.paths import RunPaths
from tests.fault_runs import faults_of, local_left, struck_run, until_over
from tests.local_runs import events, finish, wait_for

KILLS = 20
STEPS = 2 * KILLS + 2
CHANGE = (f"train.steps={STEPS}", "train.save_every_steps=1", "train.schedule=cosine", "algorithm.iterations=2")


def model(paths: RunPaths) -> bytes:
    return (paths.save(STEPS) / "model.safetensors").read_bytes()


def _kill(k: int, chance: random.Random, save_s: float) -> str:
    """The k-th: in the save of step 2k, so that every attempt makes progress; rank 0 is the one that writes.

    Every second one between the files of the save, wherever the machine's speed puts a random moment.
    """
    if k % 2:
        return f"kill-during-save@rank=0,step={2 * k},attempt={k}"
    rank, seconds = chance.choice([0, 0, 0, 1]), chance.uniform(0, save_s)
    return f"kill-during-save@rank={rank},step={2 * k},attempt={k},seconds={seconds:.4f}"


@pytest.mark.timeout(3600)
def test_twenty_kills_in_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    change = (*CHANGE, "resources.layout=sharded")
    with struck_run("train", None, *change) as whole:
        assert finish(whole, 300) == 0
    save_s = min(e["seconds"] for e in events(whole, 0, "save"))
    text = ";".join(_kill(k, random.Random(k), save_s) for k in range(1, KILLS + 1))
    left_by_kill: list[str] = []
    with struck_run("train", text, *change) as paths:
        for k in range(1, KILLS + 1):
            assert until_over(paths).state == "failed: killed"
            wait_for(lambda: not local_left(paths), "the end of the processes")
            left_by_kill.append("whole" if paths.save(2 * k).exists() else "part")
            start_local(paths)
        assert until_over(paths).state == "completed"
    assert len(faults_of(paths)) == KILLS and paths.attempts() == list(range(1, KILLS + 2))
    for k in range(1, KILLS + 1):
        after = [e["step"] for e in read_events(paths.attempt(k + 1).rank_events(0)) if e["kind"] == "step"]
        assert after[0] in (2 * k, 2 * k + 1), f"kill {k} in the save of step {2 * k}: went on with step {after[0]}"
    losses = {e["step"]: (e["lr"], e["loss"]) for e in events(paths, 0, "step")}
    assert losses == {e["step"]: (e["lr"], e["loss"]) for e in events(whole, 0, "step")}
    assert model(paths) == model(whole)
    assert left_by_kill.count("part") >= KILLS // 2
    print(
        f"saves killed part way: {left_by_kill.count('part')}, at their end: {left_by_kill.count('whole')} of {KILLS}"
    )
