"""The file of a sweep's members."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrain.records.sweeps import SweepMember, SweepRecord, is_sweep, not_started, read_sweep, sweep_names, write_sweep

RECORD = SweepRecord(sweep="sw", members=tuple(SweepMember(name=f"sw-{n}", fingerprint=f"f{n}") for n in range(3)))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_sweep(tmp_path, RECORD)
    assert read_sweep(tmp_path, "sw") == RECORD and sweep_names(tmp_path) == ["sw"]
    assert not_started("sw", tmp_path) == ["sw-0", "sw-1", "sw-2"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"members": 3}', '{"members": [{"name": 1}]}', "\x00"])
def test_a_damaged_file_is_no_sweep(tmp_path: Path, text: str) -> None:
    (tmp_path / "sweep-sw.json").write_text(text)
    assert read_sweep(tmp_path, "sw") is None and not is_sweep("sw", tmp_path)
