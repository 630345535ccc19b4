"""Which runs a sweep's name stands for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from dptrain.errors import NoSuchRun
from dptrain.records.paths import RunPaths
from dptrain.records.sweeps import SweepMember, SweepRecord, is_sweep, not_started, write_sweep
from dptrain.scheduler.query import QueueAnswer
from dptrain.status.state import run_status
from dptrain.status.sweeps import each_once, resolve_all, resolve_runs, runs_of, strangers
from tests.status.helpers import Said, WrittenRun, job

RECORD = SweepRecord(sweep="sw", members=tuple(SweepMember(name=f"sw-{n}", fingerprint=f"f{n}") for n in range(3)))
FAULT = "slow@rank=0,step=1,attempt=1,seconds=1"
KINDS = ("completed", "starting", "failed", "never-submitted", "faulted")
"""As they stand for a member, the best first."""
RUNNING = Said(job("RUNNING"))


def make(
    root: Path, name: str, created_s: float, fingerprint: str, kind: str = "starting", sweep: str | None = None
) -> str:
    run = WrittenRun(root, name, world_size=1, created_s=created_s, fingerprint=fingerprint, sweep=sweep)
    if kind in ("completed", "faulted"):
        run.finish()
        run.change(launcher="local", faults=FAULT if kind == "faulted" else None)
    elif kind == "failed":
        # A result does not say that the run did what it was asked for.
        run.paths.result.write_text("{}")
        run.start(0)
        run.fail(0)
        run.launcher("ended", exitcode=1)
        run.change(launcher="local")
    elif kind == "never-submitted":
        run.change(job_id=None, submission="refused", refusal="QOSMaxSubmitJobPerUserLimit")
    return name


def ids(runs: list[RunPaths]) -> list[str]:
    return [paths.run_id for paths in runs]


def test_a_sweep_is_its_members_in_order_whoever_started_them(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    second = make(tmp_path, "other-1", 2.0, "f1")
    first = make(tmp_path, "sw-0", 3.0, "f0")
    make(tmp_path, "sw-9", 4.0, "f9")
    assert ids(resolve_runs("sw", tmp_path)) == [first, second]
    assert ids(each_once(resolve_all(["sw", second, "sw-9"], tmp_path))) == [first, second, "sw-9"]


def test_completed_wins_then_what_has_not_ended_then_the_newest_that_ended(tmp_path: Path) -> None:
    for order in itertools.permutations(KINDS, 3):
        root = tmp_path / "-".join(order)
        for number, kind in enumerate(order):
            make(root, kind, float(number), "f0", kind)
        (best,) = runs_of(["f0"], root, RUNNING).values()
        assert best.run_id == min(order, key=KINDS.index), order
        assert run_status([best], RUNNING)[0].state.startswith(best.run_id.replace("faulted", "completed"))


def test_the_sweeps_own_run_wins_unless_only_the_other_has_or_may_get_a_result(tmp_path: Path) -> None:
    hopeful = KINDS[:2]
    wanted = {}
    for own, other in itertools.product(KINDS, KINDS):
        for created_s, sweep in ((0.0, None), (2.0, "another")):
            pair = f"{own}-{other}-{created_s}"
            make(tmp_path, f"own-{pair}", 1.0, pair, own, "sw")
            make(tmp_path, f"other-{pair}", created_s, pair, other, sweep)
            wanted[pair] = "other" if own not in hopeful and other in hopeful else "own"
    found = runs_of(list(wanted), tmp_path, RUNNING, "sw")
    assert {pair: paths.run_id.partition("-")[0] for pair, paths in found.items()} == wanted


def test_runs_that_a_sweep_did_not_start_are_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    make(tmp_path, "sw-0", 1.0, "f0", "completed", "sw")
    make(tmp_path, "nvtx", 2.0, "f0", "completed")
    make(tmp_path, "infer", 3.0, "f1", "completed")
    make(tmp_path, "of-another", 3.0, "f2", "completed", "another")
    runs = resolve_runs("sw", tmp_path)
    said = strangers("sw", runs)
    assert ids(runs) == ["sw-0", "infer", "of-another"]
    assert said is not None and "2 of its 3 runs" in said and said.endswith("infer, of-another") and "\n" not in said
    assert strangers("sw", runs[:1]) is None


def test_of_one_kind_the_newest_counts_and_what_was_tried_dry_never(tmp_path: Path) -> None:
    for kind in KINDS:
        make(tmp_path / kind, "b", 1.0, "f0", kind)
        make(tmp_path / kind, "a", 2.0, "f0", kind)
        WrittenRun(tmp_path / kind, "dry", created_s=3.0, fingerprint="f0", submission="dry-run", job_id=None)
        assert ids(list(runs_of(["f0"], tmp_path / kind, RUNNING).values())) == ["a"]


def test_a_run_with_faults_keeps_its_place_until_it_has_ended(tmp_path: Path) -> None:
    make(tmp_path, "refused", 2.0, "f0", "never-submitted")
    going = WrittenRun(tmp_path, "going", created_s=1.0, fingerprint="f0", faults=FAULT)
    assert runs_of(["f0"], tmp_path, Said("unanswered"))["f0"] == going.paths


def test_the_scheduler_is_asked_only_where_there_is_a_choice(tmp_path: Path) -> None:
    asked: list[str] = []

    class Heard(Said):
        def jobs(self, job_ids: Sequence[str], within_s: float = math.inf) -> QueueAnswer:
            asked.extend(job_ids)
            return super().jobs(job_ids, within_s)

    for name, mark, job_id in (("a", "f0", "11"), ("b", "f1", "12"), ("c", "f1", "13")):
        WrittenRun(tmp_path, name, fingerprint=mark, job_id=job_id)
    assert {m: p.run_id for m, p in runs_of(["f0", "f1"], tmp_path, Heard(job("RUNNING"))).items()} == {
        "f0": "a",
        "f1": "b",
    }
    assert asked == ["12", "13"]


def test_a_run_of_the_same_name_wins_and_a_prefix_does_not(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    make(tmp_path, "sw-1-x", 1.0, "f1")
    make(tmp_path, "sw-2-x", 1.0, "f7")
    assert ids(resolve_runs("sw", tmp_path)) == ["sw-1-x"]
    make(tmp_path, "sw", 2.0, "f8")
    assert ids(resolve_runs("sw", tmp_path)) == ["sw"]


def test_a_sweep_in_another_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "there"
    root.mkdir()
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "here"))
    monkeypatch.chdir(tmp_path)
    write_sweep(root, RECORD)
    first = make(root, "sw-0", 3.0, "f0")
    for text in ("there/sw", str(root / "sw")):
        assert is_sweep(text) and ids(resolve_runs(text)) == [first] and not_started(text) == ["sw-1", "sw-2"]
    assert not is_sweep("sw")


def test_a_sweep_that_was_never_started_says_so(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    with pytest.raises(NoSuchRun, match="none of the 3 runs of sweep sw was started"):
        resolve_runs("sw", tmp_path)
    (tmp_path / "sweep-sw.json").write_text("[]")
    with pytest.raises(NoSuchRun):
        resolve_runs("sw", tmp_path)
