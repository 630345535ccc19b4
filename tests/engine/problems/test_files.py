"""Image files: every format, range, channel and size rule."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torch import Tensor

from dptrain.engine.problems.files import TruthFile, expand
from dptrain.errors import UsageError

RNG = np.random.default_rng(0)
GRAY_8 = RNG.integers(0, 256, (12, 10), dtype=np.uint8)
GRAY_16 = RNG.integers(0, 65536, (12, 10), dtype=np.uint16)
COLOUR_8 = RNG.integers(0, 256, (12, 10, 3), dtype=np.uint8)
COLOUR_16 = RNG.integers(0, 65536, (12, 10, 3), dtype=np.uint16)
VOLUME = RNG.random((5, 12, 10)).astype(np.float32)


def read(path: Path, size: tuple[int, ...] = (12, 10), channels: int = 1, **options: Any) -> tuple[Tensor, int]:
    settings: dict[str, Any] = {"value_range": None, "crop": "none", "key": (0,), "dtype": torch.float64, **options}
    file = TruthFile(path=path, image_size=size, channels=channels, **settings)
    return file.read(None), file.bits


def first(array: Any) -> Any:
    return np.moveaxis(array, -1, 0)


def test_png(tmp_path: Path) -> None:
    Image.fromarray(GRAY_8).save(tmp_path / "g8.png")
    Image.fromarray(GRAY_16).save(tmp_path / "g16.png")
    Image.fromarray(COLOUR_8).save(tmp_path / "c8.png")
    image, bits = read(tmp_path / "g8.png")
    assert bits == 8 and np.allclose(image[0], GRAY_8 / 255, rtol=0, atol=1e-15)
    image, bits = read(tmp_path / "g16.png")
    assert bits == 16 and np.allclose(image[0], GRAY_16 / 65535, rtol=0, atol=1e-15)
    image, bits = read(tmp_path / "c8.png", channels=3)
    assert bits == 8 and np.allclose(image, first(COLOUR_8) / 255, rtol=0, atol=1e-15)


def test_jpeg_and_its_orientation(tmp_path: Path) -> None:
    smooth = np.outer(np.linspace(0, 255, 16), np.ones(24)).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    Image.fromarray(smooth).save(tmp_path / "p.jpg", quality=95)
    Image.fromarray(smooth).save(tmp_path / "turned.jpeg", quality=95, exif=exif)
    image, _ = read(tmp_path / "p.jpg", (16, 24))
    assert np.allclose(image[0], smooth / 255, atol=0.02)
    turned, _ = read(tmp_path / "turned.jpeg", (24, 16))
    assert np.allclose(turned[0], np.rot90(smooth, -1) / 255, atol=0.02)


def test_tiff(tmp_path: Path) -> None:
    for name, array in {"g8": GRAY_8, "g16": GRAY_16, "volume": VOLUME, "float": VOLUME[0]}.items():
        tifffile.imwrite(tmp_path / f"{name}.tif", array, photometric="minisblack")
    for name, array in {"c8": COLOUR_8, "c16": COLOUR_16}.items():
        tifffile.imwrite(tmp_path / f"{name}.tiff", array, photometric="rgb")
    assert np.allclose(read(tmp_path / "g16.tif")[0][0], GRAY_16 / 65535, rtol=0, atol=1e-15)
    assert read(tmp_path / "g8.tif")[1] == 8 and read(tmp_path / "g16.tif")[1] == 16
    image, bits = read(tmp_path / "c16.tiff", channels=3)
    assert bits == 16 and np.allclose(image, first(COLOUR_16) / 65535, rtol=0, atol=1e-15)
    image, bits = read(tmp_path / "volume.tif", (5, 12, 10))
    assert bits == 32 and np.array_equal(image[0], VOLUME)
    assert np.array_equal(read(tmp_path / "volume.tif", channels=5)[0], VOLUME)  # pages as channels
    assert np.array_equal(read(tmp_path / "float.tif")[0][0], VOLUME[0])


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "volume.npy", VOLUME)
    np.save(tmp_path / "half.npy", VOLUME[0].astype(np.float16))
    np.save(tmp_path / "bool.npy", VOLUME[0] > 0.5)
    assert np.array_equal(read(tmp_path / "volume.npy", (5, 12, 10))[0][0], VOLUME)
    assert np.array_equal(read(tmp_path / "volume.npy", channels=5)[0], VOLUME)
    assert read(tmp_path / "half.npy")[1] == 32
    assert np.array_equal(read(tmp_path / "bool.npy")[0][0], (VOLUME[0] > 0.5).astype(float))


def test_range(tmp_path: Path) -> None:
    twelve_bits = GRAY_16 // 16
    tifffile.imwrite(tmp_path / "d.tif", twelve_bits)
    image, bits = read(tmp_path / "d.tif", value_range=(100.0, 4095.0))
    assert bits == 16 and np.allclose(image[0], (twelve_bits - 100.0) / 3995)
    np.save(tmp_path / "f.npy", VOLUME[0])
    assert np.allclose(read(tmp_path / "f.npy", value_range=(-1.0, 3.0))[0][0], (VOLUME[0] + 1) / 4)
    np.save(tmp_path / "i.npy", np.arange(120).reshape(12, 10))
    with pytest.raises(UsageError, match=r"int64 values have no usual range; they lie in \[0, 119\]"):
        read(tmp_path / "i.npy")
    assert float(read(tmp_path / "i.npy", value_range=(0.0, 119.0))[0].max()) == 1


def test_luminance_and_alpha(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Image.fromarray(COLOUR_8).save(tmp_path / "c.png")
    expected = (COLOUR_8 / 255) @ [0.299, 0.587, 0.114]
    assert np.allclose(read(tmp_path / "c.png")[0][0], expected)
    alpha = np.dstack([COLOUR_8, np.full((12, 10), 9, np.uint8)])
    Image.fromarray(alpha).save(tmp_path / "a.png")
    Image.fromarray(np.dstack([GRAY_8, GRAY_8])).save(tmp_path / "ga.png")
    with caplog.at_level(logging.WARNING, "dptrain"):
        assert np.allclose(read(tmp_path / "a.png", channels=3)[0], first(COLOUR_8) / 255)
        assert np.allclose(read(tmp_path / "ga.png")[0][0], GRAY_8 / 255)
    assert caplog.text.count("alpha channel dropped") == 2
    assert read(tmp_path / "a.png", channels=4)[0].shape == (4, 12, 10)


def test_palette_and_bilevel(tmp_path: Path) -> None:
    Image.fromarray(COLOUR_8).quantize(16).save(tmp_path / "p.png")
    Image.fromarray(GRAY_8).convert("1").save(tmp_path / "b.png")
    assert read(tmp_path / "p.png", channels=3)[0].shape == (3, 12, 10)
    assert set(read(tmp_path / "b.png")[0].flatten().tolist()) <= {0.0, 1.0}


def test_crop(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", VOLUME)
    image, _ = read(tmp_path / "v.npy", (3, 6, 4), crop="center")
    assert np.array_equal(image[0], VOLUME[1:4, 3:9, 3:7])
    windows = [read(tmp_path / "v.npy", (3, 6, 4), crop="random", key=(0, i))[0] for i in range(4)]
    again = read(tmp_path / "v.npy", (3, 6, 4), crop="random", key=(0, 2))[0]
    assert torch.equal(windows[2], again) and len({float(w.sum()) for w in windows}) > 1
    assert torch.equal(read(tmp_path / "v.npy", (5, 12, 10), crop="random")[0][0], torch.from_numpy(VOLUME).double())


def refusals(folder: Path) -> list[tuple[str, dict[str, Any], str]]:
    np.save(folder / "big.npy", np.zeros((20, 20)))
    np.save(folder / "nan.npy", np.full((12, 10), np.nan))
    np.save(folder / "complex.npy", np.zeros((12, 10), complex))
    np.save(folder / "last.npy", np.zeros((12, 10, 3)))
    np.save(folder / "five.npy", np.zeros((1, 1, 1, 12, 10)))
    np.save(folder / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    (folder / "broken.png").write_bytes(b"not a picture")
    (folder / "broken.tif").write_bytes(b"not a picture")
    (folder / "broken.npy").write_bytes(b"not an array")
    (folder / "empty.npy").write_bytes(b"")
    (folder / "photo.bmp").write_bytes(b"")
    head = struct.pack(">8sI4sIIBBBBB", b"\x89PNG\r\n\x1a\n", 13, b"IHDR", 10, 12, 16, 2, 0, 0, 0)
    (folder / "colour16.png").write_bytes(head + b"...")
    Image.fromarray(GRAY_8).save(folder / "gray.png")
    Image.fromarray(COLOUR_8).convert("CMYK").save(folder / "cmyk.jpg")
    return [
        (
            "big.npy",
            {},
            "20 x 20 pixels, image_size is 12 x 10\n    write: image_size: [20, 20], or data: {crop: center}",
        ),
        ("big.npy", {"size": (30, 10), "crop": "center"}, "smaller than image_size 30 x 10"),
        ("nan.npy", {}, "120 of 120 values are NaN or infinite"),
        ("complex.npy", {}, "values of type complex128"),
        ("last.npy", {"channels": 3}, "12 channels, problem.channels is 3\n    save it with channels first"),
        ("five.npy", {}, "expected 2 axes (one channel) or 3 with channels first"),
        ("object.npy", {}, "not a readable NPY file"),
        ("broken.png", {}, "not a readable image"),
        ("broken.tif", {}, "not a readable TIFF"),
        ("broken.npy", {}, "not a readable NPY file"),
        ("empty.npy", {}, "not a readable NPY file"),
        ("photo.bmp", {}, "cannot read .bmp; formats: .png .jpg .jpeg .tif .tiff .npy"),
        ("gray.png", {"channels": 3}, "1 channel, problem.channels is 3\n    write: problem: {channels: 1}"),
        ("gray.png", {"size": (5, 12, 10)}, "a PNG is 2-D, image_size has 3 axes"),
        ("colour16.png", {"channels": 3}, "a colour PNG of 16 bits cannot be read with all its bits"),
        ("cmyk.jpg", {"channels": 3}, "colour model CMYK"),
    ]


def test_refusals_name_the_file_and_what_to_write(tmp_path: Path) -> None:
    for name, options, words in refusals(tmp_path):
        with pytest.raises(UsageError) as caught:
            read(tmp_path / name, **options)
        assert words in str(caught.value) and str(tmp_path / name) in str(caught.value), name


def test_expand(tmp_path: Path) -> None:
    for name in ("b2.png", "b1.png", "a.png"):
        (tmp_path / name).touch()
    found = expand((str(tmp_path / "b*.png"), str(tmp_path / "*.png")), "problem.data.truth")
    assert [p.name for p in found] == ["b1.png", "b2.png", "a.png"]
    for pattern, words in ((tmp_path / "*.tif", "no file"), (tmp_path / "x.png", "no file"), (tmp_path, "/*.png")):
        with pytest.raises(UsageError, match=r"problem\.data\.truth") as caught:
            expand((str(pattern),), "problem.data.truth")
        assert words in str(caught.value)
