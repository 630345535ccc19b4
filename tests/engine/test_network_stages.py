"""`tiling.checkpoint: stages`: which stages a network has, and that recomputing them changes memory and nothing else."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from deepinv.models import DnCNN, DRUNet, UNet

from dptrain.engine.measure import StorageTracker
from dptrain.engine.network_stages import network_stages
from dptrain.engine.sharded_denoiser import ShardedDenoiser
from dptrain.engine.tiled import InnerDenoiser
from dptrain.errors import UsageError
from dptrain.geometry.boxes import whole
from dptrain.geometry.tiles import TileGrid
from dptrain.spec.schema import Resources
from tests.engine.helpers import SMALL, first_gradient, single
from tests.engine.test_sharded_layout import gradient_on_boxes
from tests.ranks import RankPool

BF16 = replace(SMALL, resources=Resources(precision="bf16"))


def drunet(nb: int = 2, width: int = 8) -> DRUNet:
    """A small one, the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DRUNet(nc=(width, 2 * width, 4 * width, 8 * width), nb=nb, pretrained=None)


def names(network: torch.nn.Module) -> list[str]:
    """Of the stages."""
    stages = network_stages(network)
    return [name for name, module in network.named_modules() if module in stages]


@pytest.mark.parametrize("nb", [1, 2])
def test_the_scales_of_drunet_are_its_stages(nb: int) -> None:
    assert names(drunet(nb)) == ["m_down1", "m_down2", "m_down3", "m_body", "m_up3", "m_up2", "m_up1"]


def test_the_scales_of_unet_are_its_stages() -> None:
    assert names(UNet(3, 3, scales=3)) == ["Conv1", "Conv2", "Conv3", "Up3", "Up_conv3", "Up2", "Up_conv2"]


class Own(torch.nn.Module):
    """A user's network that says what its stages are."""

    def __init__(self, stages: str) -> None:
        super().__init__()
        self.stages = stages
        self.blocks = torch.nn.ModuleList([torch.nn.Conv2d(1, 1, 1), torch.nn.Conv2d(1, 1, 1)])

    def checkpoint_stages(self) -> list[Any]:
        answers: dict[str, list[Any]] = {
            "all": [*self.blocks],
            "none": [],
            "a list": [self.blocks],
            "another's": [torch.nn.ReLU()],
            "a name": ["blocks.0"],
        }
        return answers[self.stages]


def test_a_network_may_say_what_its_stages_are() -> None:
    assert names(Own("all")) == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize(("network", "says"), [
    (DnCNN(1, 1, depth=3, pretrained=None), "DnCNN does not\n    write: a method checkpoint_stages"),
    (Own("none"), "Own does not"),
    (Own("a list"), r"names a ModuleList, which is never called\n    write: .*\[\*self.blocks\]"),
    (Own("another's"), "names a ReLU, which is no submodule"),
    (Own("a name"), "names a str, which is no submodule"),
], ids=["no stages", "empty", "a list", "not inside", "a name"])  # fmt: skip
def test_other_networks_are_refused(network: torch.nn.Module, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        InnerDenoiser(network, stages=True)


def test_weights_keep_their_names() -> None:
    plain, staged = drunet(), drunet()
    inner = InnerDenoiser(staged, stages=True)
    assert staged.state_dict().keys() == plain.state_dict().keys()
    staged.load_state_dict({name: value + 1 for name, value in plain.state_dict().items()})
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        for weight in plain.parameters():
            weight += 1
        assert torch.equal(inner(x, 0.1), plain(x, torch.tensor([0.1])))


def with_dropout(network: DRUNet) -> DRUNet:
    """Random layers inside stages, and between them."""
    network.m_down1.append(torch.nn.Dropout(0.3))
    network.m_up2.insert(1, torch.nn.Dropout(0.3))
    network.m_tail = torch.nn.Sequential(torch.nn.Dropout(0.3), network.m_tail)
    return network


def step(network: torch.nn.Module, checkpoint: str, batch: int = 1) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """(output, gradients of image, level and weights, peak bytes of activations) of a step on two tiles of 80 x 80, float64."""
    network.double()
    denoiser = ShardedDenoiser(
        InnerDenoiser(network, stages=checkpoint == "stages"),
        TileGrid((64, 128), 64, 8),
        [whole((64, 128))],
        0,
        max_batch_size=batch,
        checkpoint=checkpoint,
    )
    x = torch.rand(1, 3, 64, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    sigma = torch.tensor([0.05], dtype=torch.float64).requires_grad_()
    tracker = StorageTracker()
    tracker.watch(network, x)
    torch.manual_seed(2)
    with tracker:
        out = denoiser(x, sigma)
        out.square().sum().backward()
    # A network that does not read the level has no gradient of it.
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in (x, sigma, *network.parameters())]
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    return out.detach(), gradients, tracker.peak_bytes - 2 * weights


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("network", [
    drunet(), with_dropout(drunet()), drunet().eval(), UNet(3, 3, channels_per_scale=(4, 8), batch_norm=False),
], ids=["drunet", "dropout", "evaluation", "unet"])  # fmt: skip
def test_every_mode_gives_one_answer(network: torch.nn.Module, batch: int) -> None:
    out, gradients, _ = step(copy.deepcopy(network), "never", batch)
    for mode in ("auto", "always", "stages"):
        same, others, _ = step(copy.deepcopy(network), mode, batch)
        torch.testing.assert_close(same, out, rtol=0, atol=1e-13)
        for gradient, other in zip(gradients, others, strict=True):
            assert (gradient - other).norm() <= 1e-11 * gradient.norm(), mode


def test_activations_are_those_of_one_stage() -> None:
    never, always, stages = (step(drunet(nb=4, width=16), mode)[2] for mode in ("never", "always", "stages"))
    assert always < never
    assert stages < 0.6 * always, (stages, always)


def test_gradients_of_the_layout_replicated() -> None:
    expected_loss, expected = first_gradient(single(), SMALL, "never")
    loss, gradients = first_gradient(single(), SMALL, "stages", batch=2)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).norm() <= 1e-10 * expected[name].norm(), name


def test_bf16_on_boxes(ranks: RankPool) -> None:
    everything = ("denoiser", "step_size", "sigma")
    exact = ranks.run(2, gradient_on_boxes, replace(BF16, resources=Resources()), "never", everything, 2)[0][0]
    loss, expected = ranks.run(2, gradient_on_boxes, BF16, "never", everything, 2)[0]
    assert loss != exact and loss == pytest.approx(exact, rel=0.02)
    for mode in ("auto", "always", "stages"):
        same, gradients = ranks.run(2, gradient_on_boxes, BF16, mode, everything, 2)[0]
        assert same == pytest.approx(loss, rel=1e-6), mode
        for name, gradient in gradients.items():
            assert gradient.dtype == torch.float32
            assert (gradient - expected[name]).norm() <= 1e-5 * expected[name].norm(), (mode, name)
