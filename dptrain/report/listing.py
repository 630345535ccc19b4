"""The table of runs in the page: what differs between them is a column, what is the same in all of them is said once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dptrain.report.rows import row_of
from dptrain.report.runs import Row, Run
from dptrain.report.tables import columns
from dptrain.status.show import size

MAIN = {
    "run": "run",
    "state": "state",
    "task": "task",
    "world_size": "ranks",
    "spec.problem.image_size": "image",
    "spec.resources.layout": "layout",
    "psnr_db_last": "PSNR (dB)",
    "ssim_last": "SSIM",
    "loss_last": "loss",
    "step_time_s": "s/step",
    "peak_memory_bytes_max": "peak",
}
"""Columns that are always shown where any run has a value."""
SAID = ("spec.name", "spec.resources.gpus", "spec.cluster", "run_dir", "failure", "failure_class")
"""Keys that another column says already, or that have a section of their own."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    key: str
    """As in the CSV."""
    title: str
    shown: bool
    """From the start; others with the button."""
    numeric: bool

    @property
    def style(self) -> str:
        """Its classes in the page: `swept` is left out on paper, `extra` shown with the button."""
        kind = "" if self.key in MAIN else " swept" if self.shown else " extra"
        return ("number" if self.numeric else "text") + kind


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One value: as it is read, and as it is sorted by."""

    text: str
    sort: str


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The table, and what is equal in all rows."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    same: tuple[tuple[str, str], ...]
    """(key, value) of what all runs share."""


def listing(runs: Sequence[Run]) -> Listing:
    """The table of these runs."""
    rows = [row_of(run) for run in runs]
    keys = [*MAIN, *(key for key in columns(rows) if key not in MAIN)]
    varying = {key for key in keys if len({_mark(row.get(key)) for row in rows}) > 1}
    chosen = [_column(key, rows) for key in keys if key not in SAID and _is_column(key, rows, varying)]
    same = [(key, shown(key, rows[0].get(key))) for key in keys if rows and key not in varying and key not in SAID]
    return Listing(
        columns=tuple(chosen),
        rows=tuple(tuple(_cell(column, row.get(column.key)) for column in chosen) for row in rows),
        same=tuple((key, text) for key, text in same if text and key not in {column.key for column in chosen}),
    )


def _is_column(key: str, rows: Sequence[Row], varying: set[str]) -> bool:
    return key in varying or (key in MAIN and any(row.get(key) is not None for row in rows))


def _column(key: str, rows: Sequence[Row]) -> Column:
    values = [value for row in rows if (value := row.get(key)) is not None]
    numeric = bool(values) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    swept = key.startswith("spec.") and not key.startswith("spec.run.")
    title = MAIN.get(key) or key.removeprefix("spec.")
    return Column(key=key, title=title, shown=key in MAIN or swept, numeric=numeric)


def _cell(column: Column, value: Any) -> Cell:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Cell(text=shown(column.key, value), sort=repr(value) if number else "")


def shown(key: str, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("bytes_max") and isinstance(value, (int, float)):
        return size(int(value))
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 100 else f"{value:.5g}"
    if isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value):
        return " x ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _mark(value: Any) -> str:
    return json.dumps(value, default=str)
