"""Marks that the schema's annotations carry, e.g. `Annotated[int, Limits(at_least=1)]`; `build.py` enforces them.

A mark says what one value may be. What two values may be together is in `checks.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LARGEST_INT = 2**53
"""Whole numbers beyond this are refused: no field needs them, and JSON readers cannot hold them."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Range of a number."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def complaint(self, value: float) -> str | None:
        """What the value should be, or None where it is in range."""
        held = (
            self.at_least is None or value >= self.at_least,
            self.above is None or value > self.above,
            self.at_most is None or value <= self.at_most,
            self.below is None or value < self.below,
        )
        return None if all(held) else self.says

    @property
    def says(self) -> str:
        named = (("at least", self.at_least), ("above", self.above), ("at most", self.at_most), ("below", self.below))
        return " and ".join(f"{word} {limit:.12g}" for word, limit in named if limit is not None)


@dataclass(frozen=True, kw_only=True)
class Length:
    """Number of items of a list."""

    at_least: int = 1
    at_most: int | None = None
    bare: bool = False
    """A single item may be written without brackets."""
    says: str = "a list"
    unique: bool = False


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A text must match the whole of a regular expression."""

    regex: str
    says: str

    def complaint(self, text: str) -> str | None:
        return None if re.fullmatch(self.regex, text) else self.says


@dataclass(frozen=True)
class Minutes:
    """An integer of minutes, or SLURM's `[D-]HH:MM:SS` and `D-HH:MM`."""


@dataclass(frozen=True, kw_only=True)
class FilePath:
    """A path: `~` is expanded, relative ones become absolute from the folder of the file (from the current one for `--set`)."""

    glob: bool = False
    """The text may be a pattern: a folder put in front of it is escaped."""
    if_like_path: bool = False
    """Only a text that looks like a path (holds `/`, ends in a weights suffix, or exists there); others stay as written."""


NAME = Pattern(
    regex=r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    says="letters, digits, '.', '_' and '-' only, at most 64, starting with a letter or digit",
)
FACTORY = Pattern(
    regex=r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
    says="'module:function', e.g. mypackage.physics:build",
)
HEADER_WORD = Pattern(
    regex=r"[A-Za-z0-9_.,:@/+=()\[\]*&|!%<>~^-]+",
    says="one word that an #SBATCH line can hold: no space, quote, backslash, '#', '$' or ';'",
)
INTERFACE = Pattern(
    regex=r"[A-Za-z0-9_.:-]{1,15}",
    says="the name of one network interface, e.g. eth0; exclusions (^eth0), exact-match marks (=eth0) and lists are not read by gloo",
)
ENV_NAME = Pattern(regex=r"[A-Za-z_][A-Za-z0-9_]*", says="letters, digits and '_', not starting with a digit")
