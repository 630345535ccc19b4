"""The local operator of docs/layouts.md, taken from the page, is the operator it says it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from deepinv.physics import stack

from dptrain.engine.context import RankEnvironment
from dptrain.engine.fidelity import DataFidelity
from dptrain.geometry.boxes import slices, split_boxes, whole
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
