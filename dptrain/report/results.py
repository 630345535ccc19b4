"""Runs as flat rows: one row per run, one column per number and per key of the spec."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dptrain.records.paths import RunPaths
from dptrain.records.reading import open_file, real_number
from dptrain.records.places import writing
from dptrain.status.model import RunStatus
from dptrain.status.show import number, read_result, size

Row = dict[str, Any]
TABLE_HEADER = ("RUN", "TASK", "STATE", "RANKS", "LAYOUT", "STEPS", "PSNR dB", "SSIM", "LOSS", "S/STEP", "PEAK")
"""PSNR before and after; SSIM and loss at the end; the median time of a step; the largest peak of a rank."""


def result_rows(runs: Sequence[RunPaths], statuses: Sequence[RunStatus]) -> list[Row]:
    """One row per run, in the order given."""
    return [_row(paths, status) for paths, status in zip(runs, statuses, strict=True)]


def table_row(row: Row) -> tuple[str, ...]:
    """The numbers of a row that answer how it went, under TABLE_HEADER."""
    return (
        row["run"],
        row["task"] or "-",
        row["state"],
        str(row["world_size"]),
        str(row.get("spec.resources.layout", "-")),
        f"{row['step']}/{row['steps']}",
        f"{number(row['psnr_db_first'], '.2f')} -> {number(row['psnr_db_last'], '.2f')}",
        number(row["ssim_last"], ".3f"),
        number(row["loss_last"], ".4g"),
        number(row["step_time_s"], ".3g"),
        size(row["peak_memory_bytes_max"]),
    )


def to_csv(rows: Sequence[Row]) -> str:
    """CSV with the columns of all rows; a value that a run does not have is empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write the CSV beside and rename it, so that a reader sees the old or the new one.

    :raises UsageError: where the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    with writing("the table", path, "a file in a folder that can be written"):
        beside.write_text(to_csv(rows), encoding="utf-8", errors="backslashreplace")
        beside.replace(path)


def _row(paths: RunPaths, status: RunStatus) -> Row:
    result = read_result(paths)
    psnr, loss, ssim = (_list(result.get(key)) for key in ("psnr_db", "loss", "ssim"))
    peaks, sent = _list(result.get("peak_memory_bytes")), _list(result.get("bytes_sent"))
    sections = result.get("sections")
    return {
        "run": status.run,
        "state": status.state,
        "task": status.task,
        "step": status.step,
        "steps": status.steps,
        "world_size": status.world_size,
        "psnr_db_first": psnr[0] if psnr else None,
        "psnr_db_last": psnr[-1] if psnr else status.psnr_db,
        "ssim_first": ssim[0] if ssim else None,
        "ssim_last": ssim[-1] if ssim else None,
        "loss_first": loss[0] if loss else None,
        "loss_last": loss[-1] if loss else status.loss,
        "step_time_s": status.step_time_s,
        **{f"section_{key}_s": value for key, value in (sections if isinstance(sections, dict) else {}).items()},
        "peak_memory_bytes_max": max(peaks, default=status.peak_memory_bytes),
        "bytes_sent_max": max(sent, default=None),
        "attempt": status.attempt,
        "failure": status.failure.message.strip().splitlines()[0]
        if status.failure and status.failure.message.strip()
        else None,
        "run_dir": status.run_dir,
        **{f"spec.{key}": value for key, value in _spec(paths).items()},
    }


def flatten(value: Any, prefix: str = "") -> Row:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`; lists stay whole."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        k: v
        for key, inner in value.items()
        for k, v in flatten(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def _spec(paths: RunPaths) -> Row:
    """The keys of the frozen spec; none where it cannot be read."""
    import yaml

    try:
        with open_file(paths.spec) as file:
            value = yaml.safe_load(file)
        spec = value if isinstance(value, dict) else {}
        return flatten({key: _plain(inner) for key, inner in spec.items() if key != "sweep"})
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}


def _plain(value: Any) -> Any:
    """What JSON has a word for; anything else, as a date or an infinite number, as text."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    known = value is None or isinstance(value, (bool, str)) or real_number(value) is not None
    return value if known else str(value)


def _list(value: Any) -> list[float]:
    return [v for v in value if real_number(v) is not None] if isinstance(value, list) else []


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (list, tuple, dict, bool)) else value
