"""Operators: adjoints, norms, precision, and what user functions may return."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from deepinv.physics import Blur, Downsampling, compose
from deepinv.physics.functional import gaussian_blur
from deepinv.utils import TensorList

from dptrain.engine.problems import build_physics, operator_norm_sq
from dptrain.engine.problems.random_fields import normal_like
from dptrain.errors import UsageError
from dptrain.spec.schema import Deblur, Denoise, Factory, Inpaint, MultiframeSuperres, Physics
from tests.engine.problems.specs import CPU, spec_of, whole_physics

CASES: list[tuple[Physics, tuple[int, ...], int]] = [
    (MultiframeSuperres(), (16, 24), 3),
    (MultiframeSuperres(frames=3, factor=3, blur_sigma=(1.0, 2.0)), (12, 15), 1),
    (MultiframeSuperres(frames=1, factor=1), (10, 11), 5),
    (Deblur(blur_sigma=(1.5,)), (21, 30), 2),
    (Deblur(blur_sigma=(0.5, 1.0)), (16, 17), 1),
    (Deblur(blur_sigma=(1.0,)), (10, 12, 13), 2),
    (Denoise(), (9, 10), 3),
    (Denoise(), (4, 5, 6), 1),
    (Inpaint(keep=0.3), (33, 70), 3),
    (Inpaint(), (7, 8, 20), 2),
]


@pytest.mark.parametrize(("physics", "size", "channels"), CASES, ids=lambda v: getattr(v, "name", str(v)))
def test_adjoint(physics: Physics, size: tuple[int, ...], channels: int) -> None:
    spec = spec_of(physics=physics, image_size=size, channels=channels)
    stack = build_physics(spec, CPU, torch.float64)
    x = normal_like(("x",), torch.zeros(1, channels, *size, dtype=torch.float64))
    ax = stack.A(x)
    y = TensorList([normal_like(("y", i), part) for i, part in enumerate(ax)])
    left = sum(float((a * b).sum()) for a, b in zip(ax, y, strict=True))
    right = float((x * stack.A_adjoint(y)).sum())
    assert abs(left - right) <= 1e-10 * max(1.0, abs(left))
    parts = sum(op.A_adjoint(part) for op, part in zip(stack.physics_list, y, strict=True))
    torch.testing.assert_close(stack.A_adjoint(y), parts, rtol=0, atol=1e-12)  # a sum, never a mean


@pytest.mark.parametrize(
    ("frames", "factor", "expected"), [(4, 2, 1.0), (8, 2, 2.0), (4, 1, 4.0)], ids=["4x2", "8x2", "4x1"]
)
def test_norm_of_the_sum(frames: int, factor: int, expected: float) -> None:
    spec = spec_of(physics=MultiframeSuperres(frames=frames, factor=factor), image_size=(64, 64), channels=3)
    for dtype in (torch.float64, torch.float32):
        whole = whole_physics(spec, dtype)
        norm_sq = operator_norm_sq(whole, seed=0)
        assert norm_sq == pytest.approx(expected, rel=0.005)
        assert norm_sq == operator_norm_sq(whole, seed=0)
        assert norm_sq == pytest.approx(operator_norm_sq(whole, seed=9), rel=2e-4)


def test_norm_against_the_dense_operator() -> None:
    spec = spec_of(physics=MultiframeSuperres(frames=3, blur_sigma=(0.6, 1.4)), image_size=(8, 10), channels=2)
    stack = build_physics(spec, CPU, torch.float64)
    basis = torch.eye(160, dtype=torch.float64).reshape(160, 1, 2, 8, 10)
    dense = torch.stack([stack.A_adjoint(stack.A(e)).flatten() for e in basis])
    expected = float(torch.linalg.eigvalsh(dense)[-1])
    assert operator_norm_sq(whole_physics(spec), seed=0) == pytest.approx(expected, rel=1e-4)


def test_superresolution_is_the_published_operator() -> None:
    """Kernels at angles 180 i / N, blur before decimation."""
    spec = spec_of(physics=MultiframeSuperres(blur_sigma=(1.0, 2.0)), image_size=(20, 28), channels=3)
    stack = build_physics(spec, CPU, torch.float64)
    x = torch.rand(1, 3, 20, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for angle, y in zip(torch.linspace(0, 180, 5)[:-1].tolist(), stack.A(x), strict=True):
        kernel = gaussian_blur(psf_size=(5, 5), sigma=(1.0, 2.0), angle=angle).double()
        down = Downsampling(img_size=(3, 20, 28), filter=None, factor=2)
        expected = compose(Blur(filter=kernel, padding="circular"), down).A(x)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)


def test_blur_keeps_constants_and_its_axes() -> None:
    spec = spec_of(physics=Deblur(blur_sigma=(0.5, 2.0)), image_size=(32, 32))
    blur = build_physics(spec, CPU, torch.float64)
    one = torch.ones(1, 1, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(blur.A(one)[0], one)
    point = torch.zeros_like(one)
    point[..., 16, 16] = 1
    spread = blur.A(point)[0][0, 0]
    assert spread[16, 20] > 10 * spread[20, 16], "the first number is the vertical axis"


def test_mask_is_keyed_by_seed_and_shared_by_channels() -> None:
    def mask(seed: int, size: tuple[int, int] = (40, 50)) -> torch.Tensor:
        spec = spec_of(physics=Inpaint(keep=0.3), image_size=size, channels=3, seed=seed)
        masked: torch.Tensor = build_physics(spec, CPU, torch.float64).A(torch.ones(1, 3, *size, dtype=torch.float64))[
            0
        ]
        return masked

    assert 0.25 < float(mask(0).mean()) < 0.35
    assert torch.equal(mask(0)[:, :1].expand(1, 3, 40, 50), mask(0)) and not torch.equal(mask(0), mask(1))
    assert torch.equal(mask(0, (80, 90))[..., :40, :50], mask(0)), "a function of position, not of the image size"


def test_float32_operators_are_float32() -> None:
    for physics, size, channels in CASES:
        stack = build_physics(spec_of(physics=physics, image_size=size, channels=channels), CPU, torch.float32)
        assert all(y.dtype is torch.float32 for y in stack.A(torch.zeros(1, channels, *size)))


USER_MODULE = """
import torch
from deepinv.physics import BlurFFT, Denoising, stack
from deepinv.physics.functional import gaussian_blur

def one(image_size, sigma=1.0):
    return Denoising()

def listed(**kwargs):
    assert set(kwargs) == {"image_size", "channels", "device", "dtype", "seed", "n"}, kwargs
    return [Denoising() for _ in range(kwargs["n"])]

def stacked():
    return stack(Denoising(), Denoising())

def fourier(image_size, channels):
    return BlurFFT(img_size=(channels, *image_size), filter=gaussian_blur(sigma=(1.0, 1.0)))

def wrong():
    return lambda x: x

def empty():
    return []

def needs(image_size, kernel):
    return Denoising()
"""


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "user_physics_module.py").write_text(USER_MODULE)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.delitem(sys.modules, "user_physics_module", raising=False)
    return str(tmp_path)


def user(function: str, folder: str, **arguments: object) -> Factory:
    return Factory(factory=f"user_physics_module:{function}", arguments=arguments, search_path=folder)


def test_user_physics(user_folder: str) -> None:
    for function, arguments, operators in (("one", {"sigma": 2.0}, 1), ("listed", {"n": 3}, 3), ("stacked", {}, 2)):
        stack = build_physics(spec_of(physics=user(function, user_folder, **arguments)), CPU, torch.float64)
        assert len(stack.physics_list) == operators
        assert all(y.dtype is torch.float64 for y in stack.A(torch.zeros(1, 1, 24, 32, dtype=torch.float64)))


def test_complex_buffers_stay_complex(user_folder: str) -> None:
    for dtype in (torch.float64, torch.float32):
        stack = build_physics(spec_of(physics=user("fourier", user_folder)), CPU, dtype)
        x = torch.rand(1, 1, 24, 32, dtype=dtype, generator=torch.Generator().manual_seed(0))
        y = TensorList([torch.rand(1, 1, 24, 32, dtype=dtype, generator=torch.Generator().manual_seed(1))])
        left, right = float((stack.A(x)[0] * y[0]).sum()), float((x * stack.A_adjoint(y)).sum())
        assert stack.A(x)[0].dtype is dtype and left == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("wrong", {}, "returned function"),
        ("empty", {}, "an empty list"),
        ("one", {"sigmaa": 2}, "takes no argument 'sigmaa'; it takes: image_size, sigma"),
        ("needs", {}, "needs the argument 'kernel'"),
        ("absent", {}, "has no function 'absent'; it has: empty, fourier, listed, needs, one, stacked, wrong"),
        ("one", {"image_size": 3}, "dptrain itself passes 'image_size'"),
    ],
)
def test_user_physics_refused_by_name(
    user_folder: str, function: str, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build_physics(spec_of(physics=user(function, user_folder, **arguments)), CPU, torch.float64)
    assert words in str(caught.value) and "problem.physics" in str(caught.value)


def test_missing_user_module_is_named(tmp_path: Path) -> None:
    factory = Factory(factory="no_such_module_here:f", search_path=str(tmp_path))
    with pytest.raises(UsageError, match="no module 'no_such_module_here'"):
        build_physics(spec_of(physics=factory), CPU, torch.float64)


def test_impossible_sizes_are_refused() -> None:
    for physics, size, words in (
        (MultiframeSuperres(), (15, 16), "does not divide"),
        (MultiframeSuperres(), (8, 8, 8), "is 2-D"),
        (Deblur(blur_sigma=(2.0,)), (8, 64), "larger than the image"),
        (Deblur(blur_sigma=(1.0, 2.0)), (32, 32, 32), "isotropic"),
    ):
        with pytest.raises(UsageError, match=words):
            build_physics(spec_of(physics=physics, image_size=size), CPU, torch.float64)
