"""How commands print: plain text without control characters unless a person sits at a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dptrain.errors import DptrainError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console(stderr: bool = False) -> Console:
    """A console that colours only in a terminal, never guesses markup in our text, and does not wrap piped lines."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty()
    return Console(
        stderr=stderr,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not terminal,
        width=None if terminal else 1000,
    )


def say(text: str = "") -> None:
    """One or more lines on stdout."""
    print(text, flush=True)


def note(text: str) -> None:
    """A line for people on stderr, so that stdout stays the answer."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """JSON on stdout; other programs read it."""
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    print(json.dumps(value, indent=2, ensure_ascii=ascii_only, allow_nan=False), flush=True)


def print_error(error: DptrainError) -> None:
    """The message of an error on stderr, red in a terminal."""
    if sys.stderr.isatty():
        # Not wrapped: a command in the advice must survive copying.
        console(stderr=True).print(f"dptrain: {error}", style="red", soft_wrap=True)
    else:
        note(f"dptrain: {error}")


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None] = (),
    expendable: Sequence[str] = (),
    *,
    fold: bool = True,
) -> None:
    """Aligned columns.

    :param styles: colours of whole rows, in a terminal.
    :param expendable: columns left out, first one first, where a terminal is too narrow.
    :param fold: whether the others are then broken or cut; if not, lines are longer than the terminal.
    """
    if sys.stdout.isatty():
        out = console()
        shown = _shown(header, rows, expendable, out.width)
        if fold or _total(header, rows, shown) <= out.width:
            out.print(rich_table(header, rows, styles, expendable, out.width))
            return
        at = [header.index(name) for name in shown]
        header, rows = shown, [[row[i] for i in at] for row in rows]
    for line in _aligned(header, rows):
        say(line)


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = _widths(header, rows)
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in [header, *rows]]


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]


def rich_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None],
    expendable: Sequence[str],
    width: int,
) -> Table:
    """A table that fits the width, as far as leaving out columns can do that."""
    from rich.table import Table

    shown = _shown(header, rows, expendable, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(shown):
        table.add_column(name, overflow="fold", no_wrap=i > 0)
    for i, row in enumerate(rows):
        cells = dict(zip(header, row, strict=True))
        table.add_row(*(cells[name] for name in shown), style=styles[i] if i < len(styles) else None)
    return table


def _shown(header: Sequence[str], rows: Sequence[Sequence[str]], expendable: Sequence[str], width: int) -> list[str]:
    """Columns that are left."""
    shown = list(header)
    for name in expendable:
        if _total(header, rows, shown) <= width:
            break
        shown.remove(name)
    return shown


def _total(header: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[str]) -> int:
    """Width of these columns, unbroken."""
    widths = dict(zip(header, _widths(header, rows), strict=True))
    return sum(widths[name] + 2 for name in shown)
