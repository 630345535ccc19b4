"""Whether an iteration diverges: its iterate is no longer finite, or it grows without bound.

Images lie in [0, 1] or in units of their own; either way A^T y / ||A||^2 is of their size, and so are healthy iterates: even where
only every thousandth pixel is measured, they are not 32 times as large. An iterate that is a thousand times as large, three times in
a row, comes back in no iteration that is worth waiting for. The numbers are sums that the loops form anyway.
"""

from __future__ import annotations

import math

import torch

GROWTH = 1000.0
"""Times the size of the measurements, or of a white image where that is larger, from which on an iterate is called too large."""
PATIENCE = 3
"""Iterations in a row: an extrapolation that overshoots comes back."""


def squared_norm(x: torch.Tensor) -> torch.Tensor:
    """||x||^2 of a rank's part as a float64 scalar, without a copy of it; not finite where an element is not."""
    norm: torch.Tensor = torch.linalg.vector_norm(x)
    return norm.double().square()


class Growth:
    """The iterates of one image."""

    def __init__(self, measured: float, elements: int, x: torch.Tensor, done: int = 0) -> None:
        """
        :param measured: ||A^T y|| / ||A||^2 of the whole image.
        :param elements: numbers in it.
        :param x: this rank's part of the iterate to begin with.
        :param done: iterations it took.
        """
        self.limit = GROWTH * max(measured, math.sqrt(elements))
        self.good, self.good_after = x, done
        """This rank's part of the last iterate that was not too large, and the iterations it took."""
        self._over = 0

    def judge(self, norm: float, done: int, x: torch.Tensor) -> str | None:
        """Look at the next iterate: why the run diverges, or None.

        :param norm: of the whole iterate.
        """
        if norm <= self.limit:
            self.good, self.good_after, self._over = x, done, 0
            return None
        self._over += 1
        if not math.isfinite(norm):
            return f"the iterate is not finite after iteration {done}"
        if self._over < PATIENCE:
            return None
        return (
            f"the iterate grows without bound: its norm is {norm:.3g} after iteration {done}, and was above {self.limit:.3g}, "
            f"{GROWTH:g} times that of the measurements or of a white image, for {PATIENCE} iterations in a row"
        )

    def count_bad(self, x: torch.Tensor) -> int:
        """How much of this rank's part is not finite: of the iterate that was good when it was judged, before that of a later one."""
        before, now = (int(torch.isfinite(part).logical_not_().sum()) for part in (self.good, x))
        return before * (x.numel() + 1) + now
