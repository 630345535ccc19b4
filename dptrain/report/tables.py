"""Rows as CSV and Parquet files. A value that a run does not have is empty."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dptrain.errors import UsageError
from dptrain.records.places import writing
from dptrain.report.runs import Row

FOLDER = "a file in a folder that can be written"


def to_csv(rows: Sequence[Row]) -> str:
    """CSV with the columns of all rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def columns(rows: Sequence[Row]) -> list[str]:
    """The columns of all rows, in the order in which they appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write the CSV. Raises UsageError where the file cannot be written."""
    write_whole(path, to_csv(rows).encode("utf-8", errors="backslashreplace"), "the table")


def write_whole(path: Path, content: bytes, what: str) -> None:
    """Write beside and rename, so that a reader sees the old file or the new one.

    :raises UsageError: where the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    with writing(what, path, FOLDER):
        beside.write_bytes(content)
        beside.replace(path)


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    """Write a Parquet file: numbers stay numbers; a column of several kinds of values, or of lists, holds JSON texts.

    :raises UsageError: where pyarrow is not installed, or the file cannot be written.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "--parquet needs pyarrow, which is not installed\n    write: pip install 'dptrain[parquet]'"
        ) from None
    table = pyarrow.table({key: pyarrow.array(_column([row.get(key) for row in rows])) for key in columns(rows)})
    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content)
    write_whole(path, content.getvalue(), "the table")


def _column(values: Sequence[Any]) -> list[Any]:
    """Values of one kind; a column of whole and other numbers is one of numbers."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in values]
    if len(kinds) <= 1 and not kinds & {list, tuple, dict, str}:
        return list(values)
    return [None if value is None else _text(value) for value in values]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (list, tuple, dict, bool)) else value
