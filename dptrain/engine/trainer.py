"""Training of the unrolled network: Adam on denoiser weights, gamma_k and sigma_k, one image batch spread over all ranks.

Every rank reads its part of the same batch in the same order. In the layout replicated that is all of it: every rank computes the
same loss, and deepinv sums tile gradients over ranks in the backward pass. In the layout sharded it is a box; the loss is the sum
over the box by the number of elements of the whole, and gradients are summed over ranks after the backward pass.

Replicas (layout sharded) split the batch: R replicas with B images each see, in the same places, the R B images that one process
with that batch size sees. Loss and gradients are means over replicas, hence those of that process. Random layers (dropout) are
the exception: every replica draws numbers of its own, so that replicas do not repeat each other, and one process draws others.
Saves hold all that a restart needs, so that stopped-and-resumed equals uninterrupted.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dptrain.engine.build import Built, build
from dptrain.engine.measure import Meter
from dptrain.engine.mesh import Mesh
from dptrain.engine.metrics import psnr_of_mse, squared_error
from dptrain.engine.outputs import write_curve, write_result
from dptrain.engine.problems import build_data
from dptrain.engine.problems.random_fields import seed_of
from dptrain.engine.requeue import leave_for_requeue
from dptrain.engine.saves import agreed_save
from dptrain.engine.session import Session, told
from dptrain.engine.training_saves import Progress, load_training, save_training
from dptrain.engine.unrolled import Unrolled
from dptrain.spec.schema import Train

SECTIONS = ("data", "forward", "backward", "optimizer")
LOSSES = {"mse": torch.square, "l1": torch.abs}
CACHE_BYTES = 64 * 2**20
"""Training images are kept between steps while all of them together are below this; larger sets are made anew each time."""
COSINE_FLOOR = 0.01
"""`schedule: cosine` ends at this share of the learning rate."""


@dataclass(kw_only=True)
class Batch:
    """This rank's part of B images: truth (B, C, *box), noise level (B,) where the denoiser is told it."""

    truth: torch.Tensor
    measured: Any
    """What the algorithm needs of the measurements."""
    sigma: torch.Tensor | None


def run(session: Session) -> set[int]:
    """Train; returns the ids of the tiles this rank executed."""
    train = session.spec.train
    assert train is not None, "the loader refuses `train` without a train section"
    blind = session.spec.algorithm.sigma == "noise"
    trainable = tuple(name for name in train.trainable if not (blind and name == "sigma"))
    built = build(session.spec, session.ctx, **session.decided, trainable=trainable)
    images = build_data(session.spec, built.physics, role="train")
    held_out = build_data(session.spec, built.physics, role="held_out") if train.held_out else []
    optimizer = make_optimizer(built.algorithm, train.learning_rate)
    seed_replica(session.spec.run.seed, session.ctx.mesh.replica)
    progress = _resume(session, built, optimizer)
    session.count_steps(train.steps)
    with session.meter.tracking(built.algorithm):
        # Before the first step; after a restart what the warning left no time for.
        if progress.step % train.save_every_steps == 0 and progress.step not in progress.psnr_steps:
            _evaluate(session, built, train, held_out, progress)
        session.enter("run")
        batches = _batches(session, built, images, train, blind, start=progress.step)
        for step in range(progress.step + 1, train.steps + 1):
            leaving = _step(session, built, optimizer, train, step, batches, progress) and step < train.steps
            if step % train.save_every_steps == 0 or step == train.steps or leaving:
                if not leaving:
                    _evaluate(session, built, train, held_out, progress)
                with session.faults.saving(step, session.paths.saves):
                    _save(session, built, optimizer, progress)
            if leaving:
                leave_for_requeue(session, step)
    if session.first:
        write_curve(session, progress.loss, "step", f"loss ({train.loss})", "loss")
    write_result(
        session,
        loss=progress.loss,
        psnr_db=progress.psnr_db or None,
        psnr_steps=progress.psnr_steps,
        step_size=[float(v) for v in built.algorithm.parameters_k["step_size"]],
        sigma=None if blind else [float(v) for v in built.algorithm.parameters_k["sigma"]],
        norm_sq=built.algorithm.norm_sq,
    )
    return built.algorithm.executed


def learning_rate(train: Train, step: int) -> float:
    """Rate of step `step` (from 1)."""
    if train.schedule == "constant":
        return train.learning_rate
    share = 0.5 * (1 + math.cos(math.pi * (step - 1) / max(1, train.steps - 1)))
    return train.learning_rate * (COSINE_FLOOR + (1 - COSINE_FLOOR) * share)


def data_order(images: int, seed: int, start: int) -> Iterator[int]:
    """Image numbers from position `start` on: every epoch a new permutation, a function of seed and epoch alone."""
    position = start
    while True:
        epoch, offset = divmod(position, images)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        for index in torch.randperm(images, generator=generator)[offset:].tolist():
            yield index
            position += 1


def own_share(order: Iterator[int], batch_size: int, mesh: Mesh) -> Iterator[list[int]]:
    """This replica's part of every joint batch: `batch_size` of its `replicas x batch_size` images."""
    while True:
        joint = list(itertools.islice(order, mesh.replicas * batch_size))
        yield joint[mesh.replica * batch_size : (mesh.replica + 1) * batch_size]


def seed_replica(seed: int, replica: int) -> None:
    """Give the random layers of a replica a stream of their own; the first keeps that of a run without replicas."""
    if replica:
        torch.manual_seed(seed_of(seed, "replica", replica))


def training_loss(built: Built, batch: Batch, loss: str) -> torch.Tensor:
    """Scalar loss of the unrolled network on one batch, with its graph: this rank's share of it, summed by `algorithm.sum`.

    That sum is over replicas too, each with a batch of its own.
    """
    algorithm = built.algorithm
    x = algorithm(batch.measured, batch.sigma)
    return LOSSES[loss](x - batch.truth).sum() / algorithm.elements(x)


def make_optimizer(algorithm: Unrolled, rate: float) -> torch.optim.Optimizer:
    """Adam on all that is trained."""
    return torch.optim.Adam(algorithm.trained.values(), lr=rate)


def optimizer_step(
    meter: Meter, built: Built, optimizer: torch.optim.Optimizer, batch: Batch, loss: str
) -> torch.Tensor:
    """Forward, backward, sum over ranks, step; returns this rank's share of the loss, without its graph."""
    optimizer.zero_grad(set_to_none=True)
    with meter.section("forward"):
        value = training_loss(built, batch, loss)
    with meter.section("backward"):
        value.backward()  # type: ignore[no-untyped-call]
        built.algorithm.sync_gradients()
    with meter.section("optimizer"):
        optimizer.step()
    return value.detach()


def make_batch(samples: list[Any], algorithm: Unrolled, blind: bool) -> Batch:
    """Put single-image samples together along the batch axis; a collective."""
    first = samples[0].truth
    y = [torch.cat(list(parts)) for parts in zip(*(s.measurements for s in samples), strict=True)]
    return Batch(
        truth=torch.cat([s.truth for s in samples]),
        measured=algorithm.measured(y),
        sigma=first.new_tensor([s.noise_std for s in samples]) if blind else None,
    )


def _step(
    session: Session,
    built: Built,
    optimizer: torch.optim.Optimizer,
    train: Train,
    step: int,
    batches: Iterator[Batch],
    progress: Progress,
) -> bool:
    """One optimiser step on the next batch, timed by section and recorded; whether the ranks were asked to save and leave."""
    meter = session.meter
    rate = learning_rate(train, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    with meter.step(step, train.steps, SECTIONS):
        with meter.section("data"):
            batch = next(batches)
        meter.watch(batch.truth, batch.measured)
        session.faults.at_step(step, batch.truth)
        loss = optimizer_step(meter, built, optimizer, batch, train.loss)
    value = float(built.algorithm.sum(loss)) / session.ctx.mesh.replicas
    agreed = session.requests.agree(session.ctx.device, diverged=not math.isfinite(value))
    if agreed.diverged:
        # In the layout replicated each rank has a loss of its own, which need not be wrong everywhere.
        here = not bool(torch.isfinite(loss.detach()))
        session.leave_diverged(f"the loss of step {step} is not finite", here=here)
    progress.step = step
    progress.loss.append(value)
    session.done(step, meter.step_s, loss=value, lr=rate, psnr_db=None)
    return agreed.stop


def _batches(session: Session, built: Built, images: Any, train: Train, blind: bool, start: int) -> Iterator[Batch]:
    """This replica's batches from step `start` + 1 on."""
    cache: dict[int, Any] = {}
    keep: bool | None = None
    mesh = session.ctx.mesh
    order = data_order(len(images), session.spec.run.seed, start * mesh.replicas * train.batch_size)

    def sample(index: int) -> Any:
        nonlocal keep
        if index in cache:
            return cache[index]
        with session.meter.paused():
            made = images[index]
        if keep is None:
            # The largest rank's: they must agree, since making an image takes all of them.
            size = sum(t.nbytes for t in [made.truth, *made.measurements])
            keep = built.algorithm.largest(size) * len(images) <= CACHE_BYTES
        if keep:
            cache[index] = made
        return made

    for indices in own_share(order, train.batch_size, mesh):
        yield make_batch([sample(index) for index in indices], built.algorithm, blind)


def _evaluate(session: Session, built: Built, train: Train, held_out: Any, progress: Progress) -> None:
    """Mean PSNR over the held-out images, dealt to the replicas; every rank takes part."""
    if not len(held_out):
        return
    blind = session.spec.algorithm.sigma == "noise"
    mesh = session.ctx.mesh
    # This rank's share of the mean squared error of every image.
    mse = torch.zeros(len(held_out), dtype=torch.float64, device=session.ctx.device)
    built.algorithm.eval()
    with torch.no_grad():
        for index in range(mesh.replica, len(held_out), mesh.replicas):
            with session.meter.paused():
                batch = make_batch([held_out[index]], built.algorithm, blind)
            x = built.algorithm(batch.measured, batch.sigma)
            with session.meter.paused():
                mse[index] = squared_error(x, batch.truth) / built.algorithm.elements(x)
            session.watch.progress()
    built.algorithm.train()
    with session.meter.paused():
        values = [psnr_of_mse(one) for one in built.algorithm.sum(mse).tolist()]
    progress.psnr_db.append(sum(values) / len(values))
    progress.psnr_steps.append(progress.step)
    if session.first and told(len(progress.psnr_steps), train.steps // train.save_every_steps):
        print(
            f"step {progress.step}: PSNR {progress.psnr_db[-1]:.2f} dB over {len(values)} held-out images", flush=True
        )


def _save(session: Session, built: Built, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Save, and record how long it took; a collective."""
    begin = time.perf_counter()
    save_training(session.paths, built.algorithm, optimizer, progress, keep=session.spec.run.keep_saves)
    if session.first:
        session.events.write("save", step=progress.step, seconds=round(time.perf_counter() - begin, 3))


def _resume(session: Session, built: Built, optimizer: torch.optim.Optimizer) -> Progress:
    """Continue from the newest complete save, or start."""
    found = agreed_save(session.paths)
    if found is None:
        return Progress()
    progress = load_training(found[1], built.algorithm, optimizer, session.spec.run.seed)
    # Where nothing is left to do the last record still says how far the run is.
    session.watch.progress(progress.step)
    print(f"resumed from the save of step {found[0]}", flush=True)
    return progress
