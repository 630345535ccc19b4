"""The denoiser of a spec as a module with `forward(x, sigma)`: deepinv's networks, the identity, or user code.

x has shape (B, C, *spatial), values in [0, 1] up to noise. Random weights are drawn from `run.seed` on the CPU and leave the global
generators alone, so that all ranks hold the same ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from deepinv.models import DnCNN, DRUNet, UNet
from torch import Tensor, nn

from dptrain.engine.problems.factory import call_factory
from dptrain.engine.weights import Architecture, architecture_of, check, load_into, locate, read_state_dict
from dptrain.errors import UsageError
from dptrain.spec.schema import Denoiser, Factory, Spec


class Identity(nn.Module):
    """Returns its input: the algorithm without a prior."""

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        return x


def build_denoiser(spec: Spec, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The denoiser with its weights, wholly in `dtype`."""
    denoiser = spec.denoiser
    if isinstance(denoiser, Factory):
        return _user_denoiser(spec, denoiser, device, dtype)
    if denoiser.name == "identity":
        return Identity()
    if denoiser.weights == "random":
        model = _random(spec, denoiser)
    else:
        path = locate(spec)
        tensors = read_state_dict(path)
        found = architecture_of(denoiser.name, tensors, path)
        check(found, spec, path)
        with _seeded(0):
            model = _network(found).to(dtype)
        load_into(model, tensors, path)
    return model.to(device, dtype)


def _random(spec: Spec, denoiser: Denoiser) -> nn.Module:
    """A network initialised from `run.seed`."""
    architecture = Architecture(
        name=denoiser.name,
        dim=len(spec.problem.image_size),
        channels=spec.problem.channels,
        nc=denoiser.nc or (64, 128, 256, 512),
        nb=denoiser.nb or 4,
        depth=denoiser.depth or 20,
        width=denoiser.width or 64,
        scales=denoiser.scales or 4,
    )
    with _seeded(spec.run.seed):
        model = _network(architecture)
    if denoiser.init == "passthrough":
        passthrough(model, spec.problem.channels)
    return model


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` on the CPU inside, and leave the CPU's and the GPUs' generators as they were."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would reseed the GPUs too, which fork_rng restores only where it is told their number.
        torch.default_generator.manual_seed(seed)
        yield


def _network(a: Architecture) -> nn.Module:
    channels = {"in_channels": a.channels, "out_channels": a.channels}
    match a.name:
        case "drunet":
            model: nn.Module = DRUNet(**channels, nc=a.nc, nb=a.nb, pretrained=None, device="cpu", dim=a.dim)
        case "dncnn":
            model = DnCNN(**channels, depth=a.depth, nf=a.width, bias=a.bias, pretrained=None, device="cpu", dim=a.dim)
        case _:
            # Without batch normalisation unless the weights have it: in training its statistics would depend on the tiles.
            model = UNet(**channels, scales=a.scales, bias=a.bias, batch_norm=a.batch_norm, device="cpu", dim=a.dim)
    return model


def passthrough(model: nn.Module, channels: int) -> None:
    """Change fresh weights so that the network starts as the identity and every layer still learns.

    drunet: its first features carry the image to the tail over the outermost skip connection; residual branches end in zeros, and
    the way up ends in zeros before that connection. dncnn: the last layer is zero.
    """
    with torch.no_grad():
        if isinstance(model, DnCNN):
            model.out_conv.weight.zero_()
            if model.out_conv.bias is not None:
                model.out_conv.bias.zero_()
            return
        if not isinstance(model, DRUNet):
            raise UsageError(f"denoiser.init: passthrough exists for drunet and dncnn, not for {type(model).__name__}")
        if model.m_head.weight.shape[0] < channels:
            raise UsageError(
                f"denoiser.init: passthrough needs at least {channels} channels in the first scale (denoiser.nc)"
            )
        centre = (1,) * model.dim
        for module in model.modules():
            if hasattr(module, "res"):
                module.res[-1].weight.zero_()
        next(iter(model.m_up1.children())).weight.zero_()
        model.m_tail.weight.zero_()
        for c in range(channels):
            model.m_head.weight[c].zero_()
            model.m_head.weight[(c, c, *centre)] = 1
            model.m_tail.weight[(c, c, *centre)] = 1


def _user_denoiser(spec: Spec, factory: Factory, device: torch.device, dtype: torch.dtype) -> nn.Module:
    standard = {
        "channels": spec.problem.channels,
        "dim": len(spec.problem.image_size),
        "device": device,
        "dtype": dtype,
        "seed": spec.run.seed,
    }
    with _seeded(spec.run.seed):
        model = call_factory(factory, "denoiser", standard)
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"denoiser: {factory.factory} returned a {type(model).__name__}; it must return a torch.nn.Module"
        )
    forward: Callable[..., Tensor] = model.forward
    try:
        inspect.signature(forward).bind(torch.empty(0), 0.0)
    except TypeError:
        raise UsageError(
            f"denoiser: forward of {factory.factory} takes {inspect.signature(forward)}; it must take (x, sigma)"
        ) from None
    return model.to(device, dtype)
