"""SSIM from boxes, on real gloo ranks: that of the whole image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchmetrics.functional.image import structural_similarity_index_measure

from dptrain.engine.context import RankEnvironment
from dptrain.engine.metrics import SSIM_WINDOW, ssim
from dptrain.engine.similarity import SLAB_PIXELS, BoxSimilarity
from dptrain.geometry.boxes import slices, split_boxes, whole
from tests.ranks import RankPool


def images(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """An iterate and its truth, (B, C, ...), less similar from left to right."""
    generator = torch.Generator().manual_seed(sum(shape))
    truth, noise = (torch.rand(shape, dtype=dtype, generator=generator) for _ in range(2))
    ramp = torch.linspace(0, 1, shape[-1], dtype=dtype)
    return truth + ramp * (noise - truth), truth


def on_a_box(env: RankEnvironment, shape: tuple[int, ...], stride: int, dtype: torch.dtype, slab_pixels: int) -> float:
    """This rank's share of the sum."""
    size = shape[2:]
    owned = split_boxes(size, env.world_size, (stride,) * len(size))
    here = slices(owned[env.rank], whole(size), lead=2)
    x, truth = (image[here].clone() for image in images(shape, dtype))
    return float(BoxSimilarity(size, owned, env.rank, slab_pixels=slab_pixels).sum(x, truth))


def check(
    ranks: RankPool,
    world_size: int,
    shape: tuple[int, ...],
    stride: int = 1,
    dtype: torch.dtype = torch.float64,
    slab_pixels: int = SLAB_PIXELS,
) -> None:
    x, truth = images(shape, dtype)
    got = sum(ranks.run(world_size, on_a_box, shape, stride, dtype, slab_pixels)) / x.numel()
    exact = dtype == torch.float64
    # deepinv takes its SSIM from there too.
    expected = structural_similarity_index_measure(x, truth, data_range=1.0)
    assert isinstance(expected, torch.Tensor)
    assert got == pytest.approx(float(expected), abs=1e-12 if exact else 1e-6)
    assert got == pytest.approx(ssim(x, truth), abs=1e-12 if exact else 1e-6)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    size = draw(
        st.one_of(
            st.lists(st.integers(SSIM_WINDOW, 40), min_size=2, max_size=2),
            st.lists(st.integers(SSIM_WINDOW, 16), min_size=3, max_size=3),
        )
    )
    return draw(st.integers(1, 2)), draw(st.sampled_from([1, 3])), *size


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=shapes(),
    stride=st.sampled_from([1, 2, 6]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    slab_pixels=st.sampled_from([1, 100, SLAB_PIXELS]),
    world_size=st.integers(1, 6),
)
def test_equals_that_of_the_whole_image(ranks: RankPool, world_size: int, **case: Any) -> None:
    check(ranks, world_size, **case)


@pytest.mark.parametrize(
    ("size", "stride"), [((11, 11), 6), ((11, 11), 1), ((60, 11), 1), ((11, 12, 11), 6)],
    ids=["ranks without pixels", "boxes thinner than half a window", "slabs", "volume"],
)  # fmt: skip
def test_awkward_boxes(ranks: RankPool, size: tuple[int, ...], stride: int) -> None:
    check(ranks, 6, (2, 3, *size), stride)
