"""Every rank's part of truth, measurements and files is the part that one process with the whole image has."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from deepinv.physics import Blur, Denoising, GaussianNoise, LinearPhysics, PoissonNoise, stack
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dptrain.engine.context import RankEnvironment
from dptrain.engine.measure import StorageTracker
from dptrain.engine.problems import build_data, build_physics, operator_norm_sq
from dptrain.engine.problems.files import TruthFile
from dptrain.engine.problems.tiff import open_tiff
from dptrain.engine.sharded_physics import ShardedPhysics
from dptrain.errors import UsageError
from dptrain.geometry.boxes import Box, cells, slices, whole
from dptrain.spec.schema import (
    Deblur,
    Denoise,
    Factory,
    FileData,
    Inpaint,
    MultiframeSuperres,
    SourceData,
    Spec,
)
from tests.engine.helpers import context, whole_of
from tests.engine.problems.specs import CPU, spec_of, whole_physics
from tests.ranks import RankPool

Part = tuple[Box, torch.Tensor | None, list[tuple[Box | None, torch.Tensor]], float, torch.Tensor | None]


def part_of(env: RankEnvironment, spec: Spec, put_together: bool = True) -> Part:
    """(box, truth, (place, measurements) per operator, ||A||^2, whole truth on rank 0) of one rank."""
    ctx = context(env)
    shape = (spec.problem.channels, *spec.problem.image_size)
    physics = ShardedPhysics(build_physics(spec, CPU, torch.float64), shape, ctx, CPU, torch.float64)
    norm_sq = operator_norm_sq(physics, 0)
    sample = build_data(spec, physics, role="infer")[0]
    measured = [(physics.place(i), y) for i, y in enumerate(sample.measurements)]
    assert ctx.bytes_sent == 0, "making data is not part of a step"
    again = whole_of(physics, sample.truth) if sample.truth is not None and put_together else None
    return physics.box, sample.truth, measured, norm_sq, again


def check(ranks: RankPool, spec: Spec, world_size: int) -> None:
    physics = whole_physics(spec)
    expected = build_data(spec, physics, role="infer")[0]
    norm_sq = operator_norm_sq(physics, 0)
    image = whole(spec.problem.image_size)
    parts = ranks.run(world_size, part_of, spec)
    assert sum(cells(box) for box, *_ in parts) == cells(image)
    for box, truth, measured, its_norm_sq, again in parts:
        assert its_norm_sq == pytest.approx(norm_sq, rel=1e-9)
        if expected.truth is not None and truth is not None and cells(box):
            torch.testing.assert_close(truth, expected.truth[slices(box, image, lead=2)], rtol=0, atol=0)
        if again is not None:
            torch.testing.assert_close(again, expected.truth, rtol=0, atol=0)
        for (place, y), every in zip(measured, expected.measurements, strict=True):
            if y.numel():
                want = every if place is None else every[slices(place, whole(every.shape[2:]), lead=2)]
                torch.testing.assert_close(y, want, rtol=0, atol=1e-12)
    held = sum(y.numel() for _, _, measured, _, _ in parts for _, y in measured)
    assert held == sum(y.numel() for y in expected.measurements), "every measurement on exactly one rank"


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
@pytest.mark.parametrize(
    ("physics", "size", "channels"),
    [
        (MultiframeSuperres(noise_std=(0.1,)), (90, 70), 3),
        (Deblur(blur_sigma=(1.0,)), (14, 17, 20), 2),
        (Inpaint(), (65, 40), 1),
        (Denoise(noise_std=(0.1, 0.2)), (5, 131), 1),
    ],
    ids=["superres", "volume", "inpaint", "thin"],
)
def test_simulated_data(ranks: RankPool, physics: Any, size: tuple[int, ...], channels: int, world_size: int) -> None:
    check(ranks, spec_of(physics=physics, image_size=size, channels=channels), world_size)


def blurs_and_counts(image_size: tuple[int, ...]) -> Any:
    """Two local operators, one with a noise that is not Gaussian, and a global one."""
    kernel = torch.rand(1, 1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return stack(
        Blur(kernel, padding="reflect", noise_model=GaussianNoise(0.1)),
        Denoising(PoissonNoise(gain=0.1)),
        Transposed(noise_model=GaussianNoise(0.2)),
    )


class Transposed(LinearPhysics):  # type: ignore[misc]
    """An operator that says nothing of boxes."""

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return x.transpose(-1, -2)

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return y.transpose(-1, -2)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_users_physics_and_its_noise(ranks: RankPool, world_size: int) -> None:
    physics = Factory(factory="tests.engine.problems.test_boxes_of_data:blurs_and_counts")
    check(ranks, spec_of(physics=physics, image_size=(20, 26)), world_size)


def arrays(image_size: tuple[int, ...], folder: str) -> list[Any]:
    """A memory map, a tensor with a batch axis, and measurements."""
    array = np.load(Path(folder) / "volume.npy", mmap_mode="r")
    return [array, torch.from_numpy(np.array(array))[None], (None, array)]


@pytest.mark.parametrize("name", ["gray.png", "colour.jpg", "gray.npy", "striped.tif", "tiled.tif", "photo"])
def test_files(ranks: RankPool, tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (50, 44), np.uint8)
    if name == "gray.png":
        Image.fromarray(pixels).save(tmp_path / name)
    elif name == "colour.jpg":
        Image.fromarray(rng.integers(0, 255, (50, 44, 3), np.uint8)).save(tmp_path / name)
    elif name == "gray.npy":
        np.save(tmp_path / name, pixels.astype(np.uint16) * 200)
    elif name.endswith(".tif"):
        layout: dict[str, Any] = {"tile": (16, 32)} if name == "tiled.tif" else {"rowsperstrip": 7}
        tifffile.imwrite(tmp_path / name, pixels, compression="zlib", **layout)
    data = SourceData() if name == "photo" else FileData(truth=(str(tmp_path / name),), crop="center")
    check(ranks, spec_of(data=data, image_size=(40, 43)), 4)


@pytest.mark.parametrize("frames", [1, 3])
def test_measurement_files(ranks: RankPool, tmp_path: Path, frames: int) -> None:
    y = np.random.default_rng(0).normal(size=(frames, 2, 12, 15))
    np.save(tmp_path / "y.npy", y if frames > 1 else y[0])
    data = FileData(measurements=(str(tmp_path / "y.npy"),))
    physics = MultiframeSuperres(frames=frames)
    check(ranks, spec_of(data=data, physics=physics, image_size=(24, 30), channels=2), 4)


def test_a_users_arrays(ranks: RankPool, tmp_path: Path) -> None:
    np.save(tmp_path / "volume.npy", np.random.default_rng(0).random((2, 9, 12, 10)))
    data = Factory(factory="tests.engine.problems.test_boxes_of_data:arrays", arguments={"folder": str(tmp_path)})
    spec = spec_of(data=data, image_size=(9, 12, 10), channels=2)
    check(ranks, spec, 4)
    images = build_data(spec, whole_physics(spec), role="infer")
    assert torch.equal(images[0].truth, images[1].truth)  # type: ignore[arg-type]
    assert torch.equal(images[2].measurements[0], images[1].truth)  # type: ignore[arg-type]


class Sums(LinearPhysics):  # type: ignore[misc]
    """Sums of rows: measurements that are no image."""

    def A(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return x.sum(-1).flatten(1)

    def A_adjoint(self, y: torch.Tensor, **_: Any) -> torch.Tensor:
        return y.reshape(len(y), 1, -1, 1).expand(-1, -1, -1, 26)


def sums() -> list[LinearPhysics]:
    return [Sums(), Denoising(GaussianNoise(0.1))]


def given_sums(image_size: tuple[int, ...]) -> list[Any]:
    x = torch.rand(1, 1, *image_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return [(x[0], [x.sum(-1).flatten(1)[0], x[0]])]


def test_measurements_that_are_no_image(ranks: RankPool) -> None:
    where = "tests.engine.problems.test_boxes_of_data"
    data = Factory(factory=f"{where}:given_sums")
    check(ranks, spec_of(physics=Factory(factory=f"{where}:sums"), data=data, image_size=(20, 26)), 4)


def test_a_rank_that_reads_a_part_speaks_of_the_whole_file(tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.arange(64, dtype=np.uint32).reshape(8, 8) * 1000)
    file = TruthFile(
        path=tmp_path / "wide.npy",
        image_size=(8, 8),
        channels=1,
        value_range=None,
        crop="none",
        key=(0,),
        dtype=torch.float64,
    )
    for box in (((0, 2), (0, 2)), ((0, 0), (0, 0))):
        with pytest.raises(UsageError, match=r"range: \[0, 63000\]"):
            file.read(box)


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"tile": (32, 16)},
    {"rowsperstrip": 16},
    {"rowsperstrip": 20, "compression": "zlib"},
    {"tile": (32, 32), "compression": "zlib"},
    {"byteorder": ">"},
    {"byteorder": ">", "tile": (16, 16)},
]
SHAPES: list[tuple[tuple[int, ...], int, dict[str, Any]]] = [
    ((70, 90), 2, {}),
    ((70, 90, 3), 2, {"photometric": "rgb"}),
    ((3, 70, 90), 2, {"photometric": "rgb", "planarconfig": "separate"}),
    ((5, 70, 90), 3, {"photometric": "minisblack"}),
    ((5, 70, 90, 3), 3, {"photometric": "rgb"}),
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(LAYOUTS), st.sampled_from("BHf"), st.data())
def test_any_box_of_any_tiff(case: Any, layout: dict[str, Any], kind: str, data: st.DataObject) -> None:
    shape, axes, options = case
    array = (np.random.default_rng(0).random(shape) * 200).astype(kind)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.tif"
        tifffile.imwrite(path, array, **options, **layout)
        opened, interleaved = open_tiff(path, axes)
        channel = shape.index(3) if 3 in shape else None
        expected = array[None] if channel is None else np.moveaxis(array, channel, 0)
        assert (
            opened.shape == expected.shape
            and opened.dtype.newbyteorder("=") == array.dtype
            and interleaved == (channel is not None)
        )
        box = []
        for n in expected.shape[1:]:
            low = data.draw(st.integers(0, n))
            box.append(slice(low, data.draw(st.integers(low, n))))
        assert np.array_equal(opened[(slice(None), *box)], expected[(slice(None), *box)])


def test_no_rank_has_the_whole_image_as_a_tensor(ranks: RankPool, tmp_path: Path) -> None:
    """Also not of a PNG, which the first rank decodes whole as bytes."""
    Image.fromarray(np.zeros((256, 512), np.uint8)).save(tmp_path / "gray.png")
    data = FileData(truth=(str(tmp_path / "gray.png"),))
    spec = spec_of(data=data, image_size=(256, 512), physics=MultiframeSuperres())
    for largest in ranks.run(4, _largest, spec):
        assert largest <= (256 // 2 + 8) * (512 // 2 + 8) * 8, largest


def _largest(env: RankEnvironment, spec: Spec) -> int:
    with StorageTracker() as tracker:
        part_of(env, spec, put_together=False)
    return int(tracker.largest_bytes)
