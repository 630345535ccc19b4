"""Denoisers: every network with weights from every place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinv.models import DnCNN, DRUNet, UNet
from safetensors.torch import save_file

from dptrain.engine import weights
from dptrain.engine.denoisers import build_denoiser
from dptrain.engine.export import export
from dptrain.errors import NoSuchRun, PlanRefused, UsageError
from dptrain.records.intent import Intent, write_intent
from dptrain.records.paths import RunPaths
from dptrain.spec.dump import dump_spec
from dptrain.spec.networks import stride
from dptrain.spec.pretrained import pretrained_file, require_pretrained
from dptrain.spec.schema import Denoiser, Factory, Problem, Run, Spec, Train

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"nc": (4, 4, 8, 8), "nb": 1}


def spec_of(size: tuple[int, ...] = (32, 40), channels: int = 1, seed: int = 0, **denoiser: Any) -> Spec:
    denoiser = {"weights": "random", **denoiser}
    return Spec(
        name="test",
        problem=Problem(image_size=size, channels=channels),
        denoiser=Denoiser(**denoiser),
        run=Run(seed=seed),
    )


def image(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


NETWORKS: list[dict[str, Any]] = [
    {"name": "drunet", **SMALL},
    {"name": "dncnn", "depth": 3, "width": 4},
    {"name": "unet", "scales": 2},
    {"name": "identity"},
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n["name"])
@pytest.mark.parametrize("size", [(32, 40), (8, 16, 24)], ids=["2d", "3d"])
def test_random_networks(network: dict[str, Any], size: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64):
        denoiser = build_denoiser(spec_of(size, 2, **network), CPU, dtype)
        x = image(2, 2, *size, dtype=dtype)
        for sigma in (0.1, torch.tensor([0.1, 0.2], dtype=dtype)):
            y = denoiser(x, sigma)
            assert y.shape == x.shape and y.dtype is dtype
        assert all(p.dtype is dtype for p in denoiser.parameters())
        assert torch.equal(y, x) is (network["name"] == "identity")


def test_random_weights_come_from_the_seed_and_leave_the_generators_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    states = [build_denoiser(spec_of(seed=seed, **SMALL), CPU, torch.float32).state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


@pytest.mark.parametrize("size", [(32, 40), (8, 16, 24)], ids=["2d", "3d"])
@pytest.mark.parametrize("network", NETWORKS[:2], ids=lambda n: n["name"])
def test_passthrough_starts_as_the_identity_and_learns(network: dict[str, Any], size: tuple[int, ...]) -> None:
    denoiser = build_denoiser(spec_of(size, 3, init="passthrough", **network), CPU, torch.float64)
    x = image(2, 3, *size, dtype=torch.float64)
    assert torch.equal(denoiser(x, 0.1), x)
    optimizer = torch.optim.Adam(denoiser.parameters(), 1e-3)
    for _ in range(4):  # zeros wake up one after the other, from the output backwards
        optimizer.zero_grad()
        denoiser(x + 0.1 * image(*x.shape, dtype=torch.float64), 0.1).sub(x).square().sum().backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in denoiser.parameters())


def test_passthrough_refused_where_it_does_not_exist() -> None:
    with pytest.raises(UsageError, match="passthrough exists for drunet and dncnn"):
        build_denoiser(spec_of(name="unet", scales=2, init="passthrough"), CPU, torch.float32)
    with pytest.raises(UsageError, match="at least 5 channels in the first scale"):
        build_denoiser(spec_of(channels=5, init="passthrough", **SMALL), CPU, torch.float32)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("dim", [2, 3])
def test_architecture_is_read_from_a_file(tmp_path: Path, suffix: str, dim: int) -> None:
    size = (32, 40) if dim == 2 else (8, 16, 24)
    common: dict[str, Any] = {"in_channels": 2, "out_channels": 2, "device": "cpu", "dim": dim}
    networks: list[tuple[str, torch.nn.Module]] = [
        ("drunet", DRUNet(nc=(4, 8, 4, 8), nb=1, pretrained=None, **common)),
        ("drunet", DRUNet(nc=(4, 4, 4, 4), nb=3, pretrained=None, **common)),
        ("dncnn", DnCNN(depth=4, nf=5, pretrained=None, **common)),
        ("dncnn", DnCNN(depth=3, nf=5, bias=False, pretrained=None, **common)),
        ("unet", UNet(scales=2, **common).eval()),
        ("unet", UNet(scales=3, batch_norm=False, **common)),
    ]
    for i, (name, network) in enumerate(networks):
        path = tmp_path / f"{i}.{suffix}"
        if suffix == "pth":
            torch.save({"state_dict": network.state_dict()} if i % 2 else network.state_dict(), path)
        else:
            save_file(network.state_dict(), path)
        built = build_denoiser(spec_of(size, 2, name=name, weights=str(path)), CPU, torch.float32).eval()
        x = image(1, 2, *size)
        torch.testing.assert_close(built(x, 0.1), network(x, 0.1))


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    good = DRUNet(1, 1, nc=(4, 4, 4, 4), nb=1, pretrained=None).state_dict()
    save_file(good, tmp_path / "good.safetensors")
    save_file({**good, "m_tail.weight": torch.zeros(1, 5, 3, 3)}, tmp_path / "tail.safetensors")
    save_file({n: t for n, t in good.items() if n != "m_tail.weight"}, tmp_path / "less.safetensors")
    save_file({**good, "more": torch.zeros(1)}, tmp_path / "more.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "text.pth").write_text("hello")
    torch.save(DRUNet(1, 1, nc=(4, 4, 4, 4), nb=1, pretrained=None), tmp_path / "module.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("good", {"channels": 3}, "drunet with channels 1; problem.channels asks for 3"),
        ("good", {"size": (8, 8, 8)}, "drunet with dim 2; problem.image_size asks for 3"),
        ("good", {"nb": 4}, "drunet with nb 1; denoiser.nb asks for 4"),
        ("good", {"nc": (4, 4, 4, 8)}, "nc [4, 4, 4, 4]; denoiser.nc asks for [4, 4, 4, 8]"),
        ("good", {"name": "dncnn"}, "does not hold a dncnn: no tensor 'in_conv.weight'; it has m_body.res.0.weight"),
        ("tail", {}, "m_tail.weight has shape [1, 5, 3, 3], the network [1, 4, 3, 3]"),
        ("less", {}, "m_tail.weight is missing"),
        ("more", {}, "more is unknown"),
        ("text", {}, "is not a readable file of tensors"),
        ("text.pth", {}, "is not a readable file of tensors"),
        ("module.pth", {}, "is not a readable file of tensors"),
        ("list.pth", {}, "holds no state dict"),
        ("none", {}, "no file"),
    ]
    for name, options, words in cases:
        path = tmp_path / (name if "." in name else f"{name}.safetensors")
        with pytest.raises(UsageError) as caught:
            build_denoiser(spec_of(weights=str(path), **options), CPU, torch.float32)
        assert words in str(caught.value) and str(path) in str(caught.value), (name, str(caught.value))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A training run with two saves and one that is not complete."""
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path))
    paths = RunPaths(tmp_path / "trained-1")
    paths.create()
    intent = Intent(
        run="trained-1", task="train", launcher="local", cluster="local", world_size=1, steps=2, created_s=1.0
    )
    write_intent(paths, intent)
    for step in (9, 10):
        network = DRUNet(1, 1, nc=(4, 4, 4, 4), nb=1, pretrained=None)
        tensors = {f"denoiser.{name}": tensor for name, tensor in network.state_dict().items()}
        paths.save(step).mkdir()
        save_file({**tensors, "step_size": torch.full((3,), step / 1.0)}, paths.save(step) / "model.safetensors")
    paths.save(11).mkdir()
    return paths


def test_weights_of_a_run_are_those_of_its_newest_save(run: RunPaths) -> None:
    for text in ("trained-1", "trained", "last", str(run.dir)):
        build_denoiser(spec_of(weights=text), CPU, torch.float32)
        parameters = weights.load_run_parameters(text)
        assert parameters is not None and parameters["step_size"].tolist() == [10.0] * 3 and "sigma" not in parameters
    assert weights.newest_model(run) == run.save(10) / "model.safetensors"
    build_denoiser(spec_of(weights=str(run.save(9) / "model.safetensors")), CPU, torch.float32)
    assert weights.load_run_parameters("builtin") is None


def test_export_of_a_run(run: RunPaths, tmp_path: Path) -> None:
    spec = spec_of(weights="random", nc=(4, 4, 4, 4), nb=1, seed=3)
    run.spec.write_text(dump_spec(replace(spec, train=Train(steps=10))))
    target = tmp_path / "exported.safetensors"
    metadata = export("trained-1", target)
    assert metadata["step"] == "10" and metadata["seed"] == "3" and metadata["nc"] == "(4, 4, 4, 4)"
    x = image(1, 1, 32, 40)
    exported, saved = (
        build_denoiser(spec_of(weights=text), CPU, torch.float32)(x, 0.1) for text in (str(target), "trained-1")
    )
    torch.testing.assert_close(exported, saved, rtol=0, atol=2e-3)  # half precision
    assert weights.load_run_parameters(str(target)) is None


def test_runs_without_saves_or_absent(run: RunPaths) -> None:
    with pytest.raises(NoSuchRun):
        build_denoiser(spec_of(weights="other"), CPU, torch.float32)
    for step in (9, 10):
        (run.save(step) / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="run trained-1 has no save"):
        build_denoiser(spec_of(weights="trained-1"), CPU, torch.float32)


def test_builtin() -> None:
    for channels in (1, 3):
        denoiser = build_denoiser(spec_of(channels=channels, weights="builtin"), CPU, torch.float32).eval()
        assert sum(p.numel() for p in denoiser.parameters()) < 700_000
        truth = torch.full((1, channels, 64, 64), 0.4)
        noisy = truth + 0.1 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            assert (denoiser(noisy, 0.1) - truth).square().mean() < 0.1 * (noisy - truth).square().mean()
    for options in ({"channels": 2}, {"size": (8, 8, 8)}, {"name": "dncnn"}):
        with pytest.raises(UsageError, match="builtin is a 2-D drunet with 1 or 3 channels"):
            build_denoiser(spec_of(**{"weights": "builtin", **options}), CPU, torch.float32)  # type: ignore[arg-type]


def test_builtin_files_are_small() -> None:
    sizes = [weights.builtin_file("drunet", 2, channels).stat().st_size for channels in (3, 1)]
    assert sizes[0] <= 3_000_000 and sum(sizes) <= 3_600_000


def test_pretrained_is_fetched_once_and_looked_for_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The download itself, from a file: address in place of the internet's."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DEEPINV_DOWNLOAD_VERBOSE", "0")
    spec = spec_of(channels=3, name="dncnn", weights="pretrained")
    path = pretrained_file(spec)
    assert path == tmp_path / "home" / "hub" / "checkpoints" / "dncnn_sigma2_color.pth"
    assert str(path.parent.parent) == torch.hub.get_dir(), "where torch itself looks"
    with pytest.raises(PlanRefused, match="dptrain prepare"):
        build_denoiser(spec, CPU, torch.float32)
    (tmp_path / "server").mkdir()
    network = DnCNN(3, 3, pretrained=None)
    torch.save(network.state_dict(), tmp_path / "server" / path.name)
    address = (tmp_path / "server").as_uri()
    monkeypatch.setattr("deepinv.models.utils.get_weights_url", lambda model_name, file_name: f"{address}/{file_name}")
    assert weights.fetch_pretrained(spec) == path and path.is_file()
    require_pretrained(spec)
    x = image(1, 3, 16, 16)
    torch.testing.assert_close(build_denoiser(spec, CPU, torch.float32)(x, 0.1), network(x, 0.1))
    (tmp_path / "server" / path.name).unlink()
    assert weights.fetch_pretrained(spec) == path, "present: not fetched again"
    path.unlink()
    with pytest.raises(PlanRefused, match="cannot fetch"):
        weights.fetch_pretrained(spec)


def test_what_deepinv_does_not_offer_is_refused() -> None:
    for options in ({"name": "unet"}, {"channels": 2}, {"size": (8, 8, 8)}):
        with pytest.raises(PlanRefused, match="deepinv has no weights for"):
            pretrained_file(spec_of(**{"weights": "pretrained", **options}))  # type: ignore[arg-type]
    assert pretrained_file(spec_of()) is None and weights.fetch_pretrained(spec_of()) is None


def test_strides() -> None:
    assert [stride(Denoiser(name=n)) for n in ("drunet", "unet", "dncnn", "identity")] == [8, 8, 1, 1]
    assert stride(Denoiser(name="unet", scales=3)) == 4 and stride(Factory(factory="a:b")) == 1


def test_user_denoisers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_denoiser_module.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, channels):\n"
        "        super().__init__()\n"
        "        self.conv = torch.nn.Conv2d(channels, channels, 3, padding=1)\n"
        "    def forward(self, x, sigma):\n"
        "        return self.conv(x) * sigma\n"
        "class One(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x\n"
        "def good(channels, dim, device, dtype, seed):\n"
        "    assert dim == 2\n"
        "    return Net(channels)\n"
        "def one():\n"
        "    return One()\n"
        "def wrong():\n"
        "    return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def built(function: str) -> torch.nn.Module:
        factory = Factory(factory=f"user_denoiser_module:{function}", search_path=str(tmp_path))
        return build_denoiser(replace(spec_of(channels=2), denoiser=factory), CPU, torch.float64)

    one, two = built("good"), built("good")
    x = image(1, 2, 9, 9, dtype=torch.float64)
    assert torch.equal(one(x, 0.1), two(x, 0.1)), "fresh weights come from run.seed"
    with pytest.raises(UsageError, match=r"forward of user_denoiser_module:one takes \(x\); it must take \(x, sigma\)"):
        built("one")
    with pytest.raises(UsageError, match="returned a int; it must return a torch"):
        built("wrong")
