"""Stages of a denoiser's network, recomputed one by one in the backward pass: `tiling.checkpoint: stages`.

A network is a chain of stages and what joins them. In the forward pass each stage keeps its input alone; in the backward pass it
runs again, draws what it drew, and gives its activations back before the next one runs. So the activations of a batch of tiles
are those of its largest stage plus the inputs of all; cost: one more forward pass.

Scales are the stages of drunet and unet. Measured on drunet, 576 x 576 tiles, 8192 x 8192 x 3 on 64 ranks, peak of a training step:
3.44 GiB without stages, 1.79 with scales, 2.37 with residual blocks (more inputs to keep), 1.55 with blocks inside scales, which
costs another forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from deepinv.models import DRUNet, UNet
from torch.utils.checkpoint import checkpoint

from dptrain.errors import UsageError

JOINTS: dict[type[torch.nn.Module], tuple[str, ...]] = {
    DRUNet: ("m_head", "m_tail"),
    UNet: ("Maxpool", "Conv_1x1"),
}
"""deepinv's networks whose submodules are stages, one per scale and direction, but for these."""


def network_stages(network: torch.nn.Module) -> list[torch.nn.Module]:
    """The stages a network declares by `checkpoint_stages()`, or those known of deepinv's networks.

    :raises UsageError: where there are none, or where one of them is not a module that the network calls.
    """
    name = type(network).__name__
    declared: Any = getattr(network, "checkpoint_stages", None)
    if declared is not None:
        stages = list(declared())
    else:
        joints = next((names for known, names in JOINTS.items() if isinstance(network, known)), None)
        stages = [] if joints is None else [part for key, part in network.named_children() if key not in joints]
    if not stages:
        raise UsageError(
            f"tiling.checkpoint: stages needs a network that says what its stages are; {name} does not\n"
            f"    write: a method checkpoint_stages(self) -> list[torch.nn.Module] in {name}, or checkpoint: always"
        )
    inside = set(network.modules())
    for stage in stages:
        if not isinstance(stage, torch.nn.Module) or stage not in inside:
            raise UsageError(
                f"tiling.checkpoint: stages: checkpoint_stages() of {name} names a {type(stage).__name__}, which is no submodule of it\n"
                "    write: the submodules themselves, such as [self.down, self.up]"
            )
        if type(stage).forward is torch.nn.Module.forward:
            raise UsageError(
                f"tiling.checkpoint: stages: checkpoint_stages() of {name} names a {type(stage).__name__}, which is never called\n"
                "    write: the modules inside it, such as [*self.blocks]"
            )
    return stages


def recompute_stages(network: torch.nn.Module) -> None:
    """From now on every stage of the network recomputes itself in the backward pass; weights and their names stay as they are.

    :raises UsageError: as `network_stages`.
    """
    for stage in network_stages(network):
        if not isinstance(stage.forward, _Recomputed):
            # On the object, not around it: a wrapping module would change the names of the weights.
            stage.forward = _Recomputed(stage.forward)


class _Recomputed:
    """The forward of a stage that keeps its arguments and nothing else."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*inputs, **named)
        return checkpoint(self.forward, *inputs, use_reentrant=False, **named)
