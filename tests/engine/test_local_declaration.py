"""The local operator of docs/layouts.md, taken from the page, is the operator it says it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinv.physics import stack

from dptrain.engine.context import RankEnvironment
from dptrain.engine.fidelity import DataFidelity
from dptrain.engine.local_physics import LocalOperator
from dptrain.engine.stages import LocalStage
from dptrain.errors import UsageError
from dptrain.geometry.boxes import slices, split_boxes, whole
from dptrain.geometry.footprints import Footprint
from tests.ranks import RankPool

PAGE = Path(__file__).parents[2] / "docs" / "layouts.md"


def gradient_of_the_page() -> Any:
    """The class `Gradient` of the example."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["Gradient"]


def on_boxes(env: RankEnvironment, x: torch.Tensor) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """(whether it is local, A x, A^T A x) of this rank's box."""
    owned = split_boxes(x.shape[2:], env.world_size, (1, 1))
    fidelity = DataFidelity(stack(gradient_of_the_page()()), tuple(x.shape[1:]), owned, env.rank)
    mine = x[slices(owned[env.rank], whole(x.shape[2:]), lead=2)].contiguous()
    return fidelity.is_local, fidelity.A(mine)[0], fidelity.A_adjoint_A(mine)


def test_the_example_of_the_page(ranks: RankPool) -> None:
    x = torch.rand(1, 2, 9, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    physics = gradient_of_the_page()()
    y = physics.A(x)
    for world_size in (1, 3, 4):
        owned = split_boxes(x.shape[2:], world_size, (1, 1))
        for box, (is_local, measured, normal) in zip(owned, ranks.run(world_size, on_boxes, x), strict=True):
            here = slices(box, whole(x.shape[2:]), lead=2)
            assert is_local
            torch.testing.assert_close(measured, y[here], rtol=0, atol=1e-14)
            torch.testing.assert_close(normal, physics.A_adjoint(y)[here], rtol=0, atol=1e-13)


class Shorter(LocalStage):
    """One of its methods gives a pixel less than the footprint says."""

    def __init__(self, wrong: str) -> None:
        super().__init__(Footprint(halo=((0, 0), (0, 1)), stride=(1, 1), boundary="circular"))
        self.wrong = wrong

    def A(self, window: torch.Tensor) -> torch.Tensor:
        return window[..., 2 if self.wrong == "A" else 1 :]

    def A_adjoint(self, out: torch.Tensor) -> torch.Tensor:
        return out if self.wrong == "A_adjoint" else torch.nn.functional.pad(out, (1, 0))


@pytest.mark.parametrize("wrong", ["A", "A_adjoint"])
def test_a_stage_of_another_shape_than_it_declares_is_named(wrong: str) -> None:
    operator = LocalOperator([Shorter(wrong)], (5, 8), ((0, 5), (0, 8)))
    with pytest.raises(
        UsageError, match=rf"Shorter\.{wrong} gives pixels .* and its footprint .*\n    write: a footprint"
    ):
        operator.normal(torch.rand(1, 1, 5, 9))
    right = LocalOperator([Shorter("")], (5, 8), ((0, 5), (0, 8)))
    assert right.normal(torch.rand(1, 1, 5, 9)).shape == (1, 1, 5, 9)
