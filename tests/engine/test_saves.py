"""A save is complete or absent; the newest good one is found; nothing in it is code."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrain.engine.saves import MODEL, STATE, load_model, load_state, write_save
from dptrain.records.paths import RunPaths
from dptrain.records.saves import MANIFEST, newest_save, save_steps
from tests.disks import small_disk


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.create()
    return paths


def save(run: RunPaths, step: int, keep: int = 9) -> None:
    model = {"denoiser.w": torch.full((3,), float(step)), "step_size": torch.tensor([0.5])}
    state = {"step": step, "rng": [{"cpu": torch.get_rng_state()}], "loss": [0.5, 0.25]}
    write_save(run, step, state, keep, model=model)


def test_what_is_saved_comes_back(run: RunPaths) -> None:
    save(run, 7)
    found = newest_save(run)
    assert found is not None and found[0] == 7
    assert torch.equal(load_model(found[1])["denoiser.w"], torch.full((3,), 7.0))
    state = load_state(found[1])
    assert state["step"] == 7 and state["loss"] == [0.5, 0.25]
    assert torch.equal(state["rng"][0]["cpu"], torch.get_rng_state())


def test_only_the_newest_are_kept(run: RunPaths) -> None:
    for step in (2, 9, 10, 11):
        save(run, step, keep=2)
    assert save_steps(run) == [10, 11]


@settings(max_examples=12, deadline=None)
@given(
    good=st.sets(st.integers(1, 9), max_size=4), broken=st.sets(st.integers(1, 9), max_size=4), keep=st.integers(1, 3)
)
def test_broken_saves_take_no_place_of_good_ones(
    tmp_path_factory: pytest.TempPathFactory, good: set[int], broken: set[int], keep: int
) -> None:
    run = RunPaths(tmp_path_factory.mktemp("saves") / "run")
    run.create()
    for step in good:
        save(run, step)
    for step in broken:
        run.save(step).mkdir(exist_ok=True)
        (run.save(step) / MANIFEST).write_text("{")
    found = newest_save(run)
    begun = found[0] if found is not None else 0
    save(run, begun + 1, keep)
    after = newest_save(run)
    assert after is not None and after[0] == begun + 1
    assert len(save_steps(run)) <= keep and max(save_steps(run)) == begun + 1


def test_a_save_of_the_same_step_replaces_it(run: RunPaths) -> None:
    save(run, 3)
    save(run, 3)
    assert save_steps(run) == [3]


@pytest.mark.parametrize(
    "broken", ["truncated model", "truncated state", "changed byte", "no manifest", "torn manifest", "no state"]
)
def test_a_broken_newest_save_is_named_and_skipped(
    run: RunPaths, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(run, 1)
    save(run, 2)
    folder = run.save(2)
    if broken.startswith("truncated"):
        file = folder / (MODEL if "model" in broken else STATE)
        file.write_bytes(file.read_bytes()[:-1])
    elif broken == "changed byte":
        content = bytearray((folder / MODEL).read_bytes())
        content[-1] ^= 1
        (folder / MODEL).write_bytes(content)
    elif broken == "no manifest":
        (folder / MANIFEST).unlink()
    elif broken == "torn manifest":
        (folder / MANIFEST).write_text('{"step": 2, "fi')
    else:
        (folder / STATE).unlink()
    found = newest_save(run)
    assert found is not None and found[0] == 1
    assert "save of step 2 is skipped: " in capsys.readouterr().out


def test_without_saves_there_is_none(run: RunPaths) -> None:
    assert newest_save(run) is None


def test_what_a_killed_save_left_beside_is_no_save(run: RunPaths) -> None:
    save(run, 1)
    (run.saves / ".step-2.123").mkdir()
    assert save_steps(run) == [1]


@pytest.mark.parametrize("large", ["model", "state", "shard"])
def test_a_full_disk_is_called_so_and_keeps_the_old_save(run: RunPaths, large: str) -> None:
    with small_disk(run.saves, 64):
        save(run, 1)
        tensors = {name: torch.zeros(1, 1, 30_000 if name == large else 1) for name in ("model", "state", "shard")}
        shard = (((0, tensors["shard"].numel()),), {"x": tensors["shard"]})
        with pytest.raises(OSError) as error:
            write_save(run, 2, {"s": tensors["state"]}, 9, model={"m": tensors["model"]}, shard=shard)
        assert error.value.errno == errno.ENOSPC
        assert [p.name for p in run.saves.iterdir()] == ["step-1"] and newest_save(run) == (1, run.save(1))
        # What the failed one took is free again.
        save(run, 3)


def test_an_error_that_is_not_of_the_disk_keeps_its_name(run: RunPaths) -> None:
    with pytest.raises(RuntimeError, match="share memory"):
        w = torch.zeros(3)
        write_save(run, 1, {}, 9, model={"a": w, "b": w})
    assert list(run.saves.iterdir()) == []


def test_code_in_a_save_is_not_run(run: RunPaths, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (str(tmp_path / "ran"),))

    save(run, 1)
    torch.save(Evil(), run.save(1) / STATE)
    with pytest.raises(Exception, match="weights_only"):
        load_state(run.save(1))
    assert not (tmp_path / "ran").exists()
