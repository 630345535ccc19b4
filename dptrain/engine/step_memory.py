"""The memory of a step of training or reconstruction, by phase and term, measured on whatever rank this is: real or fake.

The engine's own objects do the engine's own steps under the engine's own tracker; only truth and measurements are empty tensors of
the shapes that this rank holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from unittest.mock import patch

import torch

from dptrain.engine.build import Built, build
from dptrain.engine.context import RankContext
from dptrain.engine.exchange import Exchange
from dptrain.engine.memory_terms import DATA, EXCHANGE, OPTIMIZER, WEIGHTS, TermMeter, Terms
from dptrain.engine.sharded import ShardedPlugAndPlay
from dptrain.engine.thin_network import ThinForward
from dptrain.engine.trainer import Batch, make_optimizer, optimizer_step
from dptrain.engine.unrolled import Unrolled
from dptrain.spec.schema import Denoiser, Spec, Task


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Of one rank."""

    peaks: dict[str, int]
    """Bytes by phase: forward, and in training backward and optimizer."""
    terms: dict[str, Terms]
    """What they consist of."""
    bytes_sent: int
    """By this rank in one optimiser step, or in all iterations on one image; gradients included."""

    def towards(self, other: StepMemory, share: Fraction) -> StepMemory:
        """The point on a straight line: this at 0, the other at 1, beyond it above 1."""

        def at(a: int, b: int) -> int:
            return round(a + (b - a) * share)

        def terms(phase: str) -> Terms:
            mine, its = self.terms[phase], other.terms[phase]
            return {name: at(mine.get(name, 0), its.get(name, 0)) for name in sorted({*mine, *its})}

        return StepMemory(
            peaks={phase: at(peak, other.peaks[phase]) for phase, peak in self.peaks.items()},
            terms={phase: terms(phase) for phase in self.peaks},
            bytes_sent=at(self.bytes_sent, other.bytes_sent),
        )

    @property
    def peak_bytes(self) -> int:
        """Over all phases."""
        return max(self.peaks.values())


def measure_steps(
    spec: Spec,
    task: Task,
    ctx: RankContext,
    network: torch.nn.Module,
    *,
    max_batch_size: int,
    checkpoint: str,
    thin: bool,
    most_calls: int | None = None,
) -> StepMemory:
    """An optimiser step that is not the first, or the iterations on one image.

    :param network: the denoiser.
    :param thin: whether calls of the network are left out, as `ThinForward` does.
    :param most_calls: batches of tiles to which a pass is cut, in layout sharded and where none keeps its activations.
    """
    built = build(
        _bare(spec),
        ctx,
        max_batch_size=max_batch_size,
        checkpoint=checkpoint,
        trainable=_trainable(spec) if task == "train" else (),
        norm_sq=1.0,
        network=network,
    )
    batch = _empty_batch(spec, task, built)
    calls = ThinForward(network, thin=thin)
    with calls.installed():
        with torch.no_grad():
            built.algorithm.iterate(built.algorithm.initial(batch.measured), 0, batch.measured, batch.sigma)
        if most_calls is not None:
            calls.calls_per_pass = _cut(built.algorithm, most_calls)
        meter = TermMeter([p for p in built.algorithm.parameters() if p.requires_grad])
        calls.tracker = meter.terms
        sent = _tracked(spec, task, built, batch, meter)
    peaks = {phase: peak for phase, (peak, _) in meter.terms.peaks.items()}
    return StepMemory(peaks=peaks, terms={phase: meter.terms.terms(phase) for phase in peaks}, bytes_sent=sent)


def _cut(algorithm: Unrolled, calls: int) -> int:
    """Leave the denoiser so many batches of tiles, from all over the image, the last one not among them; how many it has now."""
    assert isinstance(algorithm, ShardedPlugAndPlay)
    denoiser = algorithm.denoiser
    if len(denoiser.batches) > calls:
        denoiser.batches = denoiser.batches[: -1 : -(-(len(denoiser.batches) - 1) // calls)]
    return len(denoiser.batches)


def _bare(spec: Spec) -> Spec:
    """The network is there already, and no step size is checked against a norm that is not measured."""
    bare = replace(spec, algorithm=replace(spec.algorithm, step_size="auto"))
    return (
        replace(bare, denoiser=replace(spec.denoiser, weights="random"))
        if isinstance(spec.denoiser, Denoiser)
        else bare
    )


def _tracked(spec: Spec, task: Task, built: Built, batch: Batch, meter: TermMeter) -> int:
    """The steps, with everything that exists before them in the account."""
    algorithm = built.algorithm
    algorithm.sync_gradients = meter.tagged(EXCHANGE, algorithm.sync_gradients)  # type: ignore[method-assign]
    with meter.terms.tagged(WEIGHTS):
        meter.watch(algorithm.network)
    with meter.terms.tagged(DATA):
        # A reconstruction holds the measurements of its image until its end.
        held = _measurements(built, batch.truth) if task == "infer" and not algorithm.holds_whole else []
        meter.watch(algorithm, batch.truth, batch.measured, held)
    with patch.object(Exchange, "_send", meter.tagged(EXCHANGE, Exchange._send)), meter.tracking():
        return _train(spec, built, batch, meter) if task == "train" else _infer(built, batch, meter)


def _train(spec: Spec, built: Built, batch: Batch, meter: TermMeter) -> int:
    assert spec.train is not None
    optimizer = make_optimizer(built.algorithm, spec.train.learning_rate)
    _make_state(optimizer, meter)
    before = built.algorithm.ctx.bytes_sent
    optimizer_step(meter, built, optimizer, batch, spec.train.loss)
    return built.algorithm.ctx.bytes_sent - before


def _make_state(optimizer: torch.optim.Optimizer, meter: TermMeter) -> None:
    """The optimiser's state as every step but the first finds it."""
    with meter.section(OPTIMIZER):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    meter.terms.peaks.clear()


def _infer(built: Built, batch: Batch, meter: TermMeter) -> int:
    algorithm = built.algorithm
    before = algorithm.ctx.bytes_sent
    with torch.no_grad():
        state = algorithm.initial(batch.measured)
        for k in range(algorithm.iterations):
            state = algorithm.iterate(state, k, batch.measured, batch.sigma)
        sent = algorithm.ctx.bytes_sent - before
        # Reconstruction makes the first iterate again for its picture.
        algorithm.initial(batch.measured)
    return sent


def _trainable(spec: Spec) -> tuple[str, ...]:
    assert spec.train is not None
    return tuple(name for name in spec.train.trainable if not (name == "sigma" and spec.algorithm.sigma == "noise"))


def _measurements(built: Built, truth: torch.Tensor) -> list[torch.Tensor]:
    """Of storages of their own, as noise makes them: an operator may return its input."""
    return [y.clone() for y in built.physics.measure(truth)]


def _empty_batch(spec: Spec, task: Task, built: Built) -> Batch:
    """What this rank holds of a batch: of whole images, or A^T y of its box."""
    images = spec.train.batch_size if task == "train" and spec.train is not None else 1
    part = built.physics.empty()
    truth = part.new_zeros((images, *part.shape[1:]))
    return Batch(
        truth=truth,
        measured=built.algorithm.measured(_measurements(built, truth)),
        sigma=truth.new_zeros(images) if spec.algorithm.sigma == "noise" else None,
    )
