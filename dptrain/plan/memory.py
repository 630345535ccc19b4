"""What plan says of the memory of a step: whether it fits a card, what it consists of, and which of that more ranks make smaller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dptrain.plan.cards import Card
from dptrain.plan.forecast import GIB, Forecast, Request
from dptrain.spec.schema import Layout

LABELS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "the optimiser's state",
    "data": "truth, measurements and masks",
    "retained": "kept for the backward pass",
    "tile_batch": "one batch of tiles inside the network",
    "images": "parts of the image at work",
    "full_size": "whole images at work",
    "exchange": "messages",
}
"""Terms in words; `full_size` is what `images` is called in the layout replicated."""
SHRINKING = ("data", "retained", "images", "exchange")
"""Terms of the layout sharded that fall as a rank's box does. In replicated none does, but what tiles keep (`checkpoint: never`)."""


def gib(size: float) -> str:
    """A size in GiB in words; a small one in MiB, since 0.00 says nothing."""
    return f"{size:.2f} GiB" if size >= 0.1 else f"{1024 * size:.3g} MiB"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A forecast beside the card that it is for."""

    request: Request
    forecast: Forecast
    card: Card

    @property
    def layout(self) -> Layout:
        """Of the spec."""
        return self.request.spec.resources.layout

    @property
    def fits(self) -> bool | None:
        """None: the forecast failed, or the card is not known."""
        return self.card.fits(self.forecast)

    @property
    def terms_gib(self) -> dict[str, float]:
        """What the highest peak consists of, largest first."""
        if self.forecast.error is not None:
            return {}
        terms = self.forecast.terms[self.forecast.phase]
        named = {self._name(term): size / GIB for term, size in terms.items() if size}
        return dict(sorted(named.items(), key=lambda item: -item[1]))

    @property
    def shrinking(self) -> list[str]:
        """Terms that more ranks make smaller."""
        if self.layout == "replicated":
            return ["retained"] if self.request.checkpoint == "never" and "retained" in self.terms_gib else []
        return [term for term in self.terms_gib if term in SHRINKING]

    @property
    def refusal(self) -> str | None:
        """Why it does not fit, with both sides and the largest term."""
        if self.fits is not False:
            return None
        peak = self.forecast.peak_bytes / GIB
        term, size = next(iter(self.terms_gib.items()))
        also = "falls with more ranks" if term in self.shrinking else "does not fall with more ranks"
        return (
            f"memory: {gib(peak)} + {gib(peak * self.card.allowance)} allowance > {self.card.capacity_gib:g} GiB of the card "
            f"(gpu_memory_gib); the largest term is {term}, {LABELS[term]}: {gib(size)}, which {also}"
        )

    @property
    def note(self) -> str | None:
        """Why there is no forecast."""
        return None if self.forecast.error is None else f"memory is not forecast: {self.forecast.error}"

    def to_json(self) -> dict[str, Any]:
        """`memory` of the contract."""
        made = empty_json(self.card.capacity_gib)
        if self.forecast.error is not None:
            return made
        peaks = {phase: size / GIB for phase, size in self.forecast.peaks.items()}
        per_step = self.forecast.per_step_bytes
        return {
            **made,
            "forward_gib": peaks["forward"],
            "backward_gib": peaks.get("backward"),
            "peak_gib": max(peaks.values()),
            "allowance_gib": max(peaks.values()) * self.card.allowance,
            "allowance_factor": self.card.factor,
            "terms": self.terms_gib,
            "shrinking_terms": self.shrinking,
            "phase": self.forecast.phase,
            "per_unrolled_step_gib": None if per_step is None else per_step / GIB,
            "peak_bytes": self.forecast.peak_bytes,
            "rank": self.forecast.rank,
            "bytes_sent": self.forecast.bytes_sent,
        }

    def lines(self) -> list[str]:
        """For people."""
        if self.forecast.error is not None:
            return []
        value = self.to_json()
        peak, factor, capacity_gib = value["peak_gib"], f"{self.card.allowance:.0%}", self.card.capacity_gib
        verdict = {True: "fits", False: "does not fit", None: "a card's memory is not known"}[self.fits]
        card = f"of {capacity_gib:g} GiB: " if capacity_gib is not None else ""
        parts = [f"{phase} {gib(size / GIB)}" for phase, size in self.forecast.peaks.items()]
        page = [
            f"memory of a rank: {gib(peak)} at its peak + {gib(value['allowance_gib'])} allowance ({factor}), "
            f"{card}{verdict}",
            f"  by phase: {', '.join(parts)}; the rank with the most is {self.forecast.rank}",
        ]
        for term, size in self.terms_gib.items():
            less = ", less with more ranks" if term in self.shrinking else ""
            page.append(f"  {gib(size):>10} {LABELS[term]}{less}")
        if value["per_unrolled_step_gib"] is not None:
            page.append(f"  one more unrolled step adds {gib(value['per_unrolled_step_gib'])}")
        return page

    def _name(self, term: str) -> str:
        return "full_size" if term == "images" and self.layout == "replicated" else term


def empty_json(capacity_gib: float | None) -> dict[str, Any]:
    """`memory` without a forecast."""
    names = ("forward_gib", "backward_gib", "peak_gib", "allowance_gib")
    return {**dict.fromkeys(names), "capacity_gib": capacity_gib, "terms": {}}
