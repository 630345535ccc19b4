"""Published figures that follow from geometry alone."""

from __future__ import annotations

import csv
from pathlib import Path

from dptrain.geometry.tiles import TileGrid

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "inference_v100.csv"
PATCH, HALO = 448, 32


def test_work_multipliers_are_those_published() -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert len(rows) == 20
    for row in rows:
        edge = int(row["image"])
        mine = TileGrid((edge, edge), PATCH, HALO).work_multiplier if row["mode"] == "distributed" else 1.0
        print(f"{edge}^2 on {row['gpus']} GPUs: {mine} ours, {row['work_multiplier']} published")
        assert round(mine, 6) == float(row["work_multiplier"])
