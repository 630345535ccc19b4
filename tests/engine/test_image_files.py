"""Files written slab by slab are those of the whole image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from hypothesis import given
from hypothesis import strategies as st

from dptrain.engine import image_files
from dptrain.engine.image_files import NpyFile, Preview, TiffFile
from dptrain.engine.problems.parts import SLAB_BYTES, slab_rows

SHAPES = [(1, 12, 10), (3, 12, 10), (2, 12, 10), (1, 7, 12, 10), (3, 7, 12, 10)]


def in_slabs(image: Any, rows: int) -> list[tuple[int, Any]]:
    return [(start, image[:, start : start + rows]) for start in range(0, image.shape[1], rows)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 5, 12])
def test_npy_and_tiff(tmp_path: Path, shape: tuple[int, ...], rows: int) -> None:
    image = np.random.default_rng(0).random(shape).astype(np.float32) * 1.2 - 0.1
    npy, tiff = NpyFile(tmp_path / "a.npy", shape, torch.from_numpy(image)), TiffFile(tmp_path / "a.tif", shape)
    for start, slab in in_slabs(image, rows):
        npy.write(start, slab)
        tiff.write(start, slab)
    npy.close()
    assert np.array_equal(np.load(tmp_path / "a.npy"), image)
    scaled = np.round(np.clip(image, 0, 1) * 65535).astype(np.uint16)
    read = tifffile.imread(tmp_path / "a.tif")
    assert np.array_equal(read.squeeze(), (np.moveaxis(scaled, 0, -1) if shape[0] == 3 else scaled).squeeze())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("longest", [2048, 6, 5])
def test_previews(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], longest: int) -> None:
    monkeypatch.setattr(image_files, "PREVIEW_PIXELS", longest)
    image = np.random.default_rng(0).random(shape) * 1.2 - 0.1
    previews = []
    for slabs in (1, 2, 5):
        preview = Preview(shape)
        for start, slab in in_slabs(image, preview.factor * slabs):
            preview.add(start, slab)
        previews.append(preview.pixels)
    assert np.array_equal(previews[0], previews[1]) and np.array_equal(previews[0], previews[2])
    assert max(previews[0].shape[:2]) <= longest and (previews[0].ndim == 3) == (shape[0] == 3)
    plane = image if len(shape) == 3 else image[:, shape[1] // 2]
    block = -(-12 // longest) if longest < 12 else 1
    corner = np.clip(plane[0, :block, :block].mean(), 0, 1) * 255
    assert previews[0].reshape(-1)[0] == np.round(corner)
    if longest == 2048:
        expected = np.round(np.clip(plane[: 3 if shape[0] == 3 else 1], 0, 1) * 255).astype(np.uint8)
        assert np.array_equal(previews[0], np.moveaxis(expected, 0, -1).squeeze())


@pytest.mark.parametrize("shape", [(1, 8, 20000), (3, 5000, 1), (1, 4, 2, 9000)])
def test_a_thin_image_has_a_picture(shape: tuple[int, ...]) -> None:
    preview = Preview(shape)
    for start, slab in in_slabs(np.full(shape, 0.5), preview.factor):
        preview.add(start, slab)
    assert min(preview.pixels.shape[:2]) >= 1 and (preview.pixels == 128).all()


@given(st.integers(1, 10**5), st.integers(1, 10**7), st.integers(1, 64), st.integers(1, 9))
def test_slabs_cover_the_image_and_are_small(length: int, row_bytes: int, parts: int, multiple: int) -> None:
    slabs = slab_rows(length, length * row_bytes, parts, multiple)
    assert [start for start, _ in slabs] == [0, *(stop for _, stop in slabs[:-1])] and slabs[-1][1] == length
    for start, stop in slabs:
        assert start < stop and start % multiple == 0
        assert stop - start <= multiple or (stop - start) * row_bytes <= min(
            SLAB_BYTES, -(-length * row_bytes // parts)
        )
