"""What earlier runs have measured comes back in the next plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.plan.history import save_notes
from dptrain.records.saves import long_save
from dptrain.spec.schema import Run, Spec
from tests.status.helpers import WrittenRun

SPEC = Spec(name="demo", run=Run(signal_lead_s=90))


def saved(root: Path, name: str, *seconds: float) -> None:
    run = WrittenRun(root, name)
    for attempt, each in enumerate(seconds, 1):
        run.event(0, "save", attempt, step=attempt, seconds=each)


@pytest.mark.parametrize(("save_s", "says"), [(45.0, None), (45.1, "run.signal_lead_s=91"), (200.0, "=400")])
def test_a_save_may_take_half_of_the_lead(save_s: float, says: str | None) -> None:
    text = long_save(save_s, 90)
    assert text is None if says is None else text is not None and text.endswith(says)


def test_plan_warns_by_the_newest_run_of_the_name_that_saved(tmp_path: Path) -> None:
    assert list(save_notes(SPEC, tmp_path / "absent")) == []
    saved(tmp_path, "demo-20250101-000000-aaaaaa", 1.0)
    saved(tmp_path, "demo-20250102-000000-aaaaaa", 60.0, 50.0)
    saved(tmp_path, "demo-20250103-000000-aaaaaa")
    saved(tmp_path, "demo-large-20250104-000000-aaaaaa", 900.0)
    (note,) = save_notes(SPEC, tmp_path)
    assert note.startswith("run demo-20250102-000000-aaaaaa: a save took 60 s") and "run.signal_lead_s=120" in note
    saved(tmp_path, "demo-20250105-000000-aaaaaa", 2.0)
    assert list(save_notes(SPEC, tmp_path)) == []


def test_a_damaged_run_says_nothing(tmp_path: Path) -> None:
    saved(tmp_path, "demo-20250102-000000-aaaaaa", 60.0)
    WrittenRun(tmp_path, "demo-20250103-000000-aaaaaa").paths.attempt(1).rank_events(0).write_text("no events\n")
    assert len(list(save_notes(SPEC, tmp_path))) == 1
