"""Reconstruction: the PnP iteration on every image of the data, PSNR and SSIM after each, one record per iteration.

Every rank works on its part of the image: all of it in the layout replicated, its box in the layout sharded. PSNR and SSIM are
those of the whole image; rank 0 writes what is written, a slab of all ranks' boxes at a time.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from dptrain.engine.build import Built, build
from dptrain.engine.divergence import Growth, squared_norm
from dptrain.engine.metrics import psnr_of_mse, squared_error
from dptrain.engine.outputs import write_image, write_result
from dptrain.engine.problems import build_data
from dptrain.engine.requeue import leave_for_requeue
from dptrain.engine.saves import agreed_save, load_shards, load_state, write_save
from dptrain.engine.session import Session
from dptrain.engine.unrolled import Iterate, Unrolled
from dptrain.geometry.boxes import empty_box
from dptrain.records.paths import RunPaths

SECTIONS = ("gradient", "denoise")
OTHERS = "another rank's iterate diverges"


@dataclass(kw_only=True)
class ImageRecord:
    """Numbers of one image; lists have one entry per iterate, [0] before the first iteration."""

    name: str
    psnr_db: list[float] = field(default_factory=list)
    ssim: list[float] = field(default_factory=list)


def run(session: Session) -> set[int]:
    """Reconstruct every image; returns the ids of the tiles this rank executed."""
    built = build(session.spec, session.ctx, **session.decided)
    algorithm, spec = built.algorithm, session.spec
    images = build_data(spec, built.physics, role="infer")
    session.count_steps(len(images) * algorithm.iterations)
    algorithm.time_sections(session.meter)
    records, start, state = _resume(session, built)
    session.enter("run")
    with torch.no_grad(), session.meter.tracking(algorithm):
        for index in range(start[0], len(images)):
            first = start[1] if index == start[0] else 0
            # The number first: two files may have one name.
            with session.meter.paused():
                sample = images[index]
            label = f"-{index:04d}-{sample.name}" if len(images) > 1 else ""
            records, state = _one_image(session, built, sample, label, index, first, records, state), None
    psnr = [sum(values) / len(values) for values in zip(*(r.psnr_db for r in records), strict=True)]
    similarity = [sum(values) / len(values) for values in zip(*(r.ssim for r in records), strict=True)]
    write_result(
        session,
        psnr_db=psnr or None,
        ssim=similarity or None,
        loss=None,
        images=[asdict(r) for r in records],
        step_size=[float(v) for v in algorithm.parameters_k["step_size"]],
        norm_sq=algorithm.norm_sq,
    )
    return algorithm.executed


def _one_image(
    session: Session,
    built: Built,
    sample: Any,
    label: str,
    index: int,
    first: int,
    records: list[ImageRecord],
    state: dict[str, Any] | None,
) -> list[ImageRecord]:
    """Iterate on one image from iteration `first`; appends its record."""
    algorithm = built.algorithm
    iterations = algorithm.iterations
    sigma = None
    if session.spec.algorithm.sigma == "noise":
        sigma = torch.tensor([sample.noise_std], device=session.ctx.device, dtype=built.dtype)
    session.meter.watch(sample.measurements, sample.truth)
    measured = algorithm.measured(sample.measurements)
    truth = sample.truth
    if state is None:
        state = algorithm.initial(measured)
        records = [*records, ImageRecord(name=sample.name)]
        _measure(session, algorithm, records[-1], state["est"][0], truth)
    growth = _growth(session, algorithm, measured, state["est"][0], first)
    stop = False
    for k in range(first, iterations):
        step = index * iterations + k + 1
        with session.meter.step(step, session.steps, SECTIONS):
            session.faults.at_step(step, state["est"][0])
            state = algorithm.iterate(state, k, measured, sigma)
            x = state["est"][0]
            norm = math.sqrt(algorithm.sum(squared_norm(x)))
        wrong = growth.judge(norm, k + 1, x)
        agreed = session.requests.agree(session.ctx.device, diverged=wrong is not None)
        if agreed.diverged:
            with session.meter.paused():
                write_image(session, built.physics, "last-good", growth.good, sample, label=label)
            where = f"the last good one, of iteration {growth.good_after}, is output/last-good{label}.npy"
            session.leave_diverged(f"{wrong or OTHERS}; {where}", here=_here(algorithm, growth, x, wrong))
        psnr, similarity = _measure(session, algorithm, records[-1], x, truth)
        session.done(step, session.meter.step_s, psnr_db=psnr, ssim=similarity, loss=None)
        stop = agreed.stop
        if stop and k + 1 < iterations:
            _interrupt(session, built, records, state, index, k + 1)
    # Made again for the picture rather than kept: an image less during the iterations.
    initial, final = algorithm.initial(measured)["est"][0], state["est"][0]
    path = records[-1].psnr_db
    with session.meter.paused():
        write_image(session, built.physics, "reconstruction", final, sample, label=label, initial=initial, psnr_db=path)
    if stop and (index + 1) * iterations < session.steps:
        _interrupt(session, built, records, None, index + 1, 0)
    return records


def _growth(session: Session, algorithm: Unrolled, measured: Any, x: torch.Tensor, done: int) -> Growth:
    """Of one image; a collective, not part of a step."""
    with session.meter.paused(), session.ctx.uncounted():
        size = float(algorithm.sum(squared_norm(algorithm.back_projected(measured))))
    return Growth(math.sqrt(size), algorithm.elements(x), x, done)


def _here(algorithm: Unrolled, growth: Growth, x: torch.Tensor, wrong: str | None) -> bool:
    """Whether it is this rank's part that runs away, and the others only learnt of it; a collective.

    Within one step what is not finite reaches the neighbours: it began where there is most of it, in the iterate before if there
    is any.
    """
    bad = float(growth.count_bad(x))
    share = bad if bad else float(squared_norm(x))
    return algorithm.largest(-1.0 if wrong is None else share) == share


def _measure(
    session: Session, algorithm: Unrolled, record: ImageRecord, x: torch.Tensor, truth: torch.Tensor | None
) -> tuple[float | None, float | None]:
    """PSNR and SSIM on rank 0, outside the memory account; a collective where no rank holds the whole iterate."""
    if truth is None or (algorithm.holds_whole and not session.first):
        return None, None
    with session.meter.paused():
        psnr = psnr_of_mse(float(algorithm.sum(squared_error(x, truth))) / algorithm.elements(x))
        similarity = algorithm.ssim(x, truth)
    if not session.first:
        return None, None
    record.psnr_db.append(psnr)
    if similarity is not None:
        record.ssim.append(similarity)
    return psnr, similarity


def _interrupt(
    session: Session, built: Built, records: list[ImageRecord], state: Iterate | None, index: int, done: int
) -> None:
    """Save every rank's part of the iterate, so that any number of ranks can go on, and ask to be started again.

    :param state: after `done` iterations on image `index`; None before the first.
    """
    begin = time.perf_counter()
    step = index * session.spec.algorithm.iterations + done
    kept = {
        "image": index,
        "iteration": done,
        "records": [asdict(r) for r in records],
    }
    with session.faults.saving(step, session.paths.saves):
        save_iterate(session.paths, built, state, step, kept, session.spec.run.keep_saves)
    if session.first:
        session.events.write("save", step=step, seconds=round(time.perf_counter() - begin, 3))
    leave_for_requeue(session, step)


def _resume(session: Session, built: Built) -> tuple[list[ImageRecord], tuple[int, int], dict[str, Any] | None]:
    """Records, (image, iteration) to go on with, and the iterate: from the newest save, or the start."""
    found = agreed_save(session.paths)
    if found is None:
        return [], (0, 0), None
    kept = load_state(found[1])
    session.watch.progress(found[0])
    records = [ImageRecord(**r) for r in kept["records"]] if session.first else [ImageRecord(name="")]
    print(f"resumed from the save of step {found[0]}", flush=True)
    state = load_iterate(found[1], built, kept["iteration"]) if kept["iteration"] else None
    return records, (kept["image"], kept["iteration"]), state


def save_iterate(
    paths: RunPaths, built: Built, state: Iterate | None, step: int, kept: dict[str, Any], keep: int
) -> None:
    """Write a save of an iterate, every rank its part; a collective.

    :param state: None between two images: there is nothing to keep of it.
    :param kept: what there is beside it.
    """
    algorithm = built.algorithm
    carried = {} if state is None else {name: tensor.clone() for name, tensor in algorithm.carried(state).items()}
    # Of the layout replicated one rank has all that there is.
    mine = state is not None and (not algorithm.holds_whole or algorithm.ctx.rank == 0)
    box = built.physics.box if mine else empty_box(len(built.physics.box))
    write_save(paths, step, kept, keep, shard=(box, carried), rank=algorithm.ctx.rank)


def load_iterate(save: Path, built: Built, k: int) -> Iterate:
    """This rank's part of what any number of ranks, in either layout, saved after k iterations on an image."""
    where = {"device": built.algorithm.ctx.device, "dtype": built.dtype}
    carried = {name: tensor.to(**where) for name, tensor in load_shards(save, built.physics.box).items()}
    return built.algorithm.state_of(carried, k)
