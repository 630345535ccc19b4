"""What a figure of the report is: pictures, the table of what they show, and how that was computed."""

from __future__ import annotations

from dataclasses import dataclass

Cell = str | float | int | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers under names."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Key:
    """One entry of a picture's legend: a colour by its number, and what it stands for."""

    slot: int
    label: str
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One chart."""

    svg: str
    """Markup made by `svg.py`, which escapes every text that it is given."""
    caption: str = ""
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One question, its pictures, its table."""

    ident: str
    """Anchor in the page."""
    title: str
    how: str
    """How the numbers were computed."""
    pictures: tuple[Picture, ...]
    table: Table
    warning: str | None = None
    """Why some of the numbers do not compare."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A figure that cannot be shown."""

    title: str
    why: str
    """What the runs would have to hold."""
