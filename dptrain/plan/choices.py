"""Every value plan decides, with its reason: both are printed and recorded, and the ranks read the value from plan.json."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One decision."""

    key: str
    """Spec key."""
    value: int | str
    reason: str
