"""Raw text -> number, truth value, minutes, text. The only place that decides what a YAML scalar means.

Each reader gives the value or raises Unreadable: what the text is, and the value to write instead where that can be told.
"""

from __future__ import annotations

import math
import re
from typing import Any

from dptrain.spec.constraints import LARGEST_INT
from dptrain.spec.tree import UNPRINTABLE, Scalar, printable

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NULLS = ("null", "~")
_BOOLS = {"true": True, "false": False}
_YAML_TRUE, _YAML_FALSE = ("yes", "on", "true", "y"), ("no", "off", "false", "n")
_AMBIGUOUS = (*_YAML_TRUE, *_YAML_FALSE, *_NULLS)


class Unreadable(Exception):
    """A text does not have the type that its key asks for."""

    def __init__(self, found: str, write: str = "") -> None:
        """
        :param found: continues "<key> is ...".
        :param write: the value to write instead; empty where it cannot be told.
        """
        super().__init__(found)
        self.found, self.write = found, write


def quote(text: str) -> str:
    """A text for a message: quoted and cut."""
    clean = printable(text)
    return "'" + (clean if len(clean) <= 60 else clean[:57] + "...") + "'"


def is_null(node: object) -> bool:
    """A plain `null` or `~`."""
    return isinstance(node, Scalar) and node.plain and node.text in _NULLS


def is_empty(node: object) -> bool:
    """Nothing at all after the colon."""
    return isinstance(node, Scalar) and node.plain and node.text == ""


def read_int(node: Scalar) -> int:
    """A whole number in decimal digits."""
    text = node.text
    if _INT.fullmatch(text):
        if len(text) > 17 or abs(int(text)) > LARGEST_INT:
            raise Unreadable(f"{quote(text)}, a number too large to mean anything here", "a smaller number")
        return int(text)
    if _FLOAT.fullmatch(text):
        value = float(text)
        whole = str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) <= LARGEST_INT else ""
        raise Unreadable(f"{quote(text)}, not a whole number in plain digits", whole)
    raise _not_a_number(text, "not a whole number")


def read_float(node: Scalar) -> float:
    """A finite number; `1e-4` is one, unlike in YAML 1.1."""
    text = node.text
    if not _FLOAT.fullmatch(text):
        raise _not_a_number(text, "not a number")
    value = float(text)
    if not math.isfinite(value) or len(text) > 40:
        raise Unreadable(f"{quote(text)}, a number too large or too long", "a finite number")
    if value == 0 and re.search(r"[1-9]", re.split("[eE]", text)[0]):
        raise Unreadable(f"{quote(text)}, too small to tell from 0", "0, or a larger number")
    return value


def read_bool(node: Scalar) -> bool:
    """`true` or `false`, without quotes."""
    if node.plain and node.text in _BOOLS:
        return _BOOLS[node.text]
    low = node.text.lower()
    write = "true" if low in (*_YAML_TRUE, "1") else "false" if low in (*_YAML_FALSE, "0") else "true or false"
    raise Unreadable(f"{quote(node.text)}, not true or false", write)


def read_text(node: Scalar) -> str:
    """A text as it is written; plain words that YAML reads as a truth value or as nothing are refused, since either may be meant."""
    text = node.text
    if node.plain and text.lower() in _AMBIGUOUS:
        raise Unreadable(f"{quote(text)} without quotes, which YAML does not read as a text", f'"{text}" for the text')
    if text == "":
        raise Unreadable("empty", "a text")
    bad = UNPRINTABLE.search(text) or re.search(r"[\t\n\r]", text)
    if bad is not None:
        raise Unreadable(
            f"{quote(text)}, which holds the control character U+{ord(bad[0]):04X}",
            "one line without control characters",
        )
    return text


def read_minutes(node: Scalar) -> int:
    """Minutes: a whole number, `[D-]HH:MM:SS` or `D-HH:MM`; seconds are rounded up to a minute, as SLURM does."""
    text = node.text
    match = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,5}):([0-9]{1,2}):([0-9]{1,2})", text)
    if match is None:
        match = re.fullmatch(r"([0-9]{1,4})-([0-9]{1,2}):([0-9]{1,2})()", text)
    if match is None:
        return _minutes_or_why(node)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    if minutes > 59 or seconds > 59 or (match[1] is not None and hours > 23):
        raise Unreadable(
            f"{quote(text)}, whose fields run over (hours to 23 after days, minutes and seconds to 59)", "[D-]HH:MM:SS"
        )
    return days * 1440 + hours * 60 + minutes + (1 if seconds else 0)


def _minutes_or_why(node: Scalar) -> int:
    text = node.text
    if re.fullmatch(r"[0-9]+:[0-9]+", text):
        first, second = text.split(":")
        as_hours, as_minutes = f"{first}:{second:0>2}:00", f"00:{first:0>2}:{second:0>2}"
        raise Unreadable(f"{quote(text)}: hours:minutes or minutes:seconds?", f"{as_hours} or {as_minutes}")
    if re.fullmatch(r"[0-9]+-[0-9]+", text):
        days, hours = text.split("-")
        raise Unreadable(f"{quote(text)}, a form with two fields", f"{days}-{hours:0>2}:00:00")
    unit = re.fullmatch(r"([0-9]{1,6})\s*(s|m|min|minutes|h|hours|d|days)", text)
    if unit is not None:
        minutes = int(unit[1]) * {"m": 1, "h": 60, "d": 1440}.get(unit[2][0], 1)
        raise Unreadable(
            f"{quote(text)}; minutes are written without a unit", "minutes" if unit[2] == "s" else str(minutes)
        )
    try:
        return read_int(node)
    except Unreadable as error:
        raise Unreadable(error.found, error.write or "minutes, or [D-]HH:MM:SS") from None


def read_free(node: Scalar) -> Any:
    """A value of no declared type (an argument of a user's function): what it plainly is, or a refusal where YAML would surprise."""
    text = node.text
    if not node.plain:
        return "" if text == "" else read_text(node)
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return read_int(node)
    if _FLOAT.fullmatch(text):
        return read_float(node)
    trap = _trap(text)
    if trap is not None:
        raise Unreadable(
            f"{quote(text)}, {trap[0]}", f'{trap[1]}, or "{text}" for the text' if trap[1] else f'"{text}" for the text'
        )
    return read_text(node)


def _not_a_number(text: str, otherwise: str) -> Unreadable:
    trap = _trap(text)
    return Unreadable(f"{quote(text)}, {trap[0]}", trap[1]) if trap else Unreadable(f"{quote(text)}, {otherwise}")


def _trap(text: str) -> tuple[str, str] | None:
    """(why it is refused, what to write) for texts that YAML versions and people read differently."""
    if re.fullmatch(r"[-+]?0[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?", text):
        return "a number with leading zeros (octal in YAML)", re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text)
    if re.fullmatch(r"[-+]?0[xXoObB][0-9a-fA-F_]+", text):
        try:
            return "not in decimal digits", str(int(text.replace("_", ""), 0)) if len(text) < 16 else ""
        except ValueError:
            return "not in decimal digits", ""
    if re.fullmatch(r"[-+]?[0-9.][0-9._]*_[0-9._eE+-]*", text):
        return "a number with underscores", text.replace("_", "")
    if re.fullmatch(r"[-+]?[0-9]+(:[0-9]+)+(\.[0-9]*)?", text):
        return "a number with colons (base 60 in YAML)", ""
    if re.fullmatch(r"[-+]?\.?(inf|infinity|nan)", text.lower()):
        return "not a finite number", ""
    if re.fullmatch(r"[-+]?[0-9]+,[0-9]+", text):
        return "a number with a comma", text.replace(",", ".")
    return None
