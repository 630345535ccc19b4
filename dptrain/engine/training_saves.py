"""What a save of training holds: weights, gamma_k and sigma_k once; the optimiser's state by the names of what it changes; what was
seen so far; the RNG of every rank.

Nothing in it depends on how an image lies on ranks, so that any number of ranks, in either layout, goes on from it: the order of the
data is a function of the step alone. Only random layers notice: ranks keep their streams by number, and further ones begin new
ones, see `restore_rng`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dptrain.engine.saves import load_model, load_state, restore_rng, rng_states, write_save
from dptrain.engine.unrolled import Unrolled
from dptrain.records.paths import RunPaths


@dataclass(kw_only=True)
class Progress:
    """What was seen so far; part of every save."""

    step: int = 0
    loss: list[float] = field(default_factory=list)
    psnr_db: list[float] = field(default_factory=list)
    psnr_steps: list[int] = field(default_factory=list)


def save_training(
    paths: RunPaths, algorithm: Unrolled, optimizer: torch.optim.Optimizer, progress: Progress, *, keep: int
) -> None:
    """Write the save of `progress.step`; a collective, of which rank 0 writes the files.

    :param optimizer: made of `algorithm.trained`, in its order.
    :param keep: newest saves that stay.
    """
    streams = rng_states()
    if algorithm.ctx.rank != 0:
        return
    blind = algorithm.algorithm.sigma == "noise"
    scalars = {n: torch.stack(v) for n, v in algorithm.parameters_k.items() if not (n == "sigma" and blind)}
    weights = {f"denoiser.{name}": tensor for name, tensor in algorithm.network.state_dict().items()}
    moments = optimizer_state(optimizer, list(algorithm.trained))
    state = {"optimizer": moments, "progress": vars(progress), "rng": streams}
    write_save(paths, progress.step, state, keep, model={**weights, **scalars})


def load_training(save: Path, algorithm: Unrolled, optimizer: torch.optim.Optimizer, seed: int) -> Progress:
    """Put a save into an algorithm and its optimiser; what was seen until then.

    :param seed: of the run.
    :raises ValueError: where the save is of something else that was trained.
    """
    tensors, state = load_model(save), load_state(save)
    weights = {name.removeprefix("denoiser."): t for name, t in tensors.items() if name.startswith("denoiser.")}
    algorithm.network.load_state_dict(weights)
    algorithm.load_parameters_k({name: t for name, t in tensors.items() if name in ("step_size", "sigma")})
    load_optimizer_state(optimizer, list(algorithm.trained), state["optimizer"])
    progress = Progress(**state["progress"])
    restore_rng(state["rng"], algorithm.ctx.rank, seed, progress.step)
    return progress


def optimizer_state(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> dict[str, Any]:
    """State by name: torch keeps it by the position of a parameter.

    :param names: of the optimiser's parameters, in order; one that never had a gradient has no state.
    """
    by_position = optimizer.state_dict()["state"]
    return {name: by_position[i] for i, name in enumerate(names) if i in by_position}


def load_optimizer_state(optimizer: torch.optim.Optimizer, names: Sequence[str], saved: dict[str, Any]) -> None:
    """The reverse of `optimizer_state`, also for other parameters in another order.

    :raises ValueError: for the state of a parameter that the optimiser does not have.
    """
    if unknown := sorted(saved.keys() - set(names)):
        raise ValueError(f"the save holds the optimiser's state of what is not trained here: {', '.join(unknown[:3])}")
    whole = optimizer.state_dict()
    whole["state"] = {i: saved[name] for i, name in enumerate(names) if name in saved}
    optimizer.load_state_dict(whole)
