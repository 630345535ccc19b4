"""How long a step takes: what earlier runs measured, a pilot on this machine, and what follows for the walltime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dptrain.plan.forecast import Request
from dptrain.plan.pilot import NotTimed, threads, time_step
from dptrain.plan.plan import Plan, make_plan
from dptrain.plan.timing import StepTime, recorded, step_key, walltime_note
from dptrain.records.calibration import Measured, store_measured
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Spec, Task
from tests.local_runs import TINY

LOCAL = ClusterProfile(name="local", launcher="local")
SLURM = ClusterProfile(name="site", gpus_per_node=4, partition="p")


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    monkeypatch.setattr("dptrain.plan.cards.GPU_DEVICES", ())
    return tmp_path


def spec_of(*overrides: str) -> Spec:
    return parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides).spec


def key_of(*overrides: str, task: Task = "train", batch: int = 1, mode: str = "always") -> str:
    return step_key(spec_of(*overrides), task, batch, mode)


def plan_of(*overrides: str, profile: ClusterProfile = LOCAL, task: Task = "train", pilot: bool = False) -> Plan:
    return make_plan(parse_spec(TINY, "tiny.yaml", Path.cwd(), overrides), task, profile, pilot=pilot)


def write(root: Path, key: str, *seconds: float, cluster: str = "local", card: str = "cpu") -> None:
    store_measured(
        root,
        [
            Measured(
                run=f"r-{cluster}-{card}-{i}",
                cluster=cluster,
                card=card,
                task="train",
                forecast_bytes=None,
                measured_bytes=None,
                step_key=key,
                step_time_s=s,
            )
            for i, s in enumerate(seconds)
        ],
    )


def test_which_keys_make_another_step() -> None:
    same = ("name=b", "run.seed=3", "train.steps=9", "resources.time_min=7", "algorithm.sigma=0.1", "train.held_out=0")
    assert key_of() == key_of(*same)
    others = ("tiling.halo=2", "resources.gpus=1", "train.batch_size=2", "algorithm.iterations=4", "run.measure=torch")
    data = ("problem.data.source=photo", "train.images=2")  # a step of training makes its batch
    keys = {key_of(), key_of(task="infer"), key_of(batch=2), key_of(mode="never"), *map(key_of, (*others, *data))}
    assert len(keys) == 11
    assert key_of("problem.data.source=photo", "train.images=2", task="infer") == key_of(task="infer")
    # A step of a reconstruction is one iteration.
    assert (
        key_of("algorithm.iterations=4", task="infer")
        == key_of("train.batch_size=2", task="infer")
        == key_of(task="infer")
    )


def test_the_median_of_matching_runs_on_the_newest_card(runs: Path) -> None:
    key = key_of()
    assert recorded(key, LOCAL) is None
    write(runs, key, 0.5, 2.0, 1.0)
    write(runs, "another", 9.0, card="other")
    write(runs, key, 7.0, cluster="site", card="V100")
    found = recorded(key, LOCAL)
    assert found is not None and found.seconds == 1.0
    assert "the median of 3 runs on cpu" in found.source and "r-local-cpu-2" in found.source
    assert (recorded(key, SLURM) or found).seconds == 7.0
    write(runs, key, 0.25, card="GPU")
    assert (recorded(key, LOCAL) or found).seconds == 0.25


def test_plan_counts_hours_and_advises_the_walltime(runs: Path) -> None:
    plan = plan_of()
    assert plan.to_json()["step_time_s"] is None and plan.to_json()["gpu_hours"] is None
    assert any("--pilot" in line for line in plan.lines())
    write(runs, key_of(), 900.0)
    value = plan_of().to_json()
    assert value["step_time_s"] == 900 and value["gpu_hours"] == 6 * 900 * 2 / 3600
    assert not any("time_min" in reason for reason in value["reasons"]), "a local run has no limit"
    write(runs, key_of(), 900.0, cluster="site", card="V100")
    write(runs, key_of(), 9000.0, cluster="site", card="cpu")  # its ranks found no GPU
    (note,) = [r for r in plan_of(profile=SLURM).reasons if "time_min" in r]
    assert note.startswith("6 steps of 900 s take 90 min, longer than resources.time_min 30") and note.endswith(
        "time_min=108"
    )


@pytest.mark.parametrize(("seconds", "said"), [(300.0, False), (300.1, True)])
def test_a_walltime_that_is_enough_is_not_mentioned(seconds: float, said: bool) -> None:
    assert (walltime_note(StepTime(seconds=seconds, source="s"), 6, spec_of()) is not None) == said


def test_a_pilot_times_calls_of_the_busiest_rank(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("tiling.max_batch_size=1", pilot=True)
    assert plan.step_time is not None and plan.step_time.seconds > 0
    assert "pilot on this machine (cpu, " in plan.step_time.source
    assert "2 calls in each of 3 iterations" in plan.step_time.source and "for 1 tiles" in plan.step_time.source
    # Not where a run has measured it.
    monkeypatch.setattr("dptrain.plan.pilot.PROGRAM", "no.such.module")
    write(runs, key_of(), 0.125)
    assert plan_of("tiling.max_batch_size=1", pilot=True).to_json()["step_time_s"] == 0.125
    (note,) = [n for n in plan_of("tiling.max_batch_size=2", pilot=True).notes if "pilot" in n]
    assert note.startswith("the pilot has no answer: ") and "no.such.module" in note


def test_a_processors_time_says_nothing_of_a_clusters_gpus(runs: Path) -> None:
    plan = plan_of("train.steps=100000000", profile=SLURM, pilot=True)
    assert plan.step_time is not None and plan.step_time.seconds > 0 and plan.to_json()["gpu_hours"] is None
    assert not any("time_min" in text for text in plan.notes)
    assert "run the pilot in an allocation of cluster site" in "\n".join(plan.lines())


def test_weights_that_are_missing_are_said() -> None:
    spec = replace(spec_of(), denoiser=spec_of("denoiser.weights=/nowhere/w.safetensors").denoiser)
    with pytest.raises(NotTimed, match="nowhere"):
        time_step(Request(spec=spec, task="infer", max_batch_size=1, checkpoint="never"), LOCAL, 1)


def test_threads_are_those_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads(LOCAL, n) for n in (1, 3, 16)] == [8, 2, 1]
    assert [threads(replace(SLURM, cpus_per_task=n), 4) for n in (1, 4, 64)] == [1, 4, 8]
