"""A random pixel mask, the same for every channel, keyed by seed and position; 2-D or 3-D."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from deepinv.physics import LinearPhysics

from dptrain.engine.problems.random_fields import uniform_box
from dptrain.engine.stages import LocalStage, Mask
from dptrain.geometry.boxes import Box, whole
from dptrain.geometry.footprints import Footprint


def mask_box(seed: int, keep: float, box: Box) -> torch.Tensor:
    """The mask on a box, booleans of shape (1, *box)."""
    return uniform_box((seed, "mask"), 1, box) < keep


class RandomMask(LinearPhysics):  # type: ignore[misc]
    """Multiplication by the mask, made when it is first needed: whole, or on one rank's box."""

    def __init__(self, image_size: Sequence[int], seed: int, keep: float) -> None:
        """
        :param image_size: pixels per axis.
        :param keep: fraction of pixels measured.
        """
        super().__init__()
        self.stage = _MaskStage(image_size, seed, keep)
        self._whole: LocalStage | None = None

    def A(self, x: torch.Tensor, **kwargs: object) -> torch.Tensor:
        """The image where it is measured, zero elsewhere, (B, C, ...)."""
        if self._whole is None:
            box = whole(x.shape[2:])
            self._whole = self.stage.at(box, box)
        return self._whole.A(x)

    def A_adjoint(self, y: torch.Tensor, **kwargs: object) -> torch.Tensor:
        """The same."""
        return self.A(y)

    def local_stages(self, shape: Sequence[int]) -> list[LocalStage]:
        """The mask alone."""
        return [self.stage]


class _MaskStage(LocalStage):
    def __init__(self, image_size: Sequence[int], seed: int, keep: float) -> None:
        axes = len(image_size)
        super().__init__(Footprint(halo=((0, 0),) * axes, stride=(1,) * axes, boundary="none"))
        self._image_size, self._seed, self._keep = tuple(image_size), seed, keep

    def at(self, window: Box, out: Box) -> LocalStage:
        return _PlacedMask(mask_box(self._seed, self._keep, out), self._image_size)


class _PlacedMask(Mask):
    """On the device of what it is applied to."""

    def A(self, window: torch.Tensor) -> torch.Tensor:
        self.mask = self.mask.to(window.device)
        return super().A(window)

    def A_adjoint(self, out: torch.Tensor) -> torch.Tensor:
        return self.A(out)


def build(*, image_size: tuple[int, ...], seed: int, keep: float) -> list[LinearPhysics]:
    """One mask."""
    return [RandomMask(image_size, seed, keep)]
