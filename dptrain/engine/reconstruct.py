"""Reconstruction: the PnP iteration on every image of the data, PSNR and SSIM after each, one record per iteration."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from dptrain.engine.build import Built, build
from dptrain.engine.metrics import psnr_db, ssim
from dptrain.engine.outputs import write_image, write_result
from dptrain.engine.problems import build_data
from dptrain.engine.requeue import leave_for_requeue
from dptrain.engine.saves import load_model, load_state, newest_save, write_save
from dptrain.engine.session import Diverged, Session

SECTIONS = ("gradient", "denoise")


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
    images = build_data(spec, built.physics, role="infer", device=session.ctx.device, dtype=built.dtype)
    session.count_steps(len(images) * algorithm.iterations)
    # deepinv's sections, timed where the algorithm calls them; a section outside an iteration (A^T y) counts as other.
    fidelity, prior = algorithm.optim.data_fidelity[0], algorithm.optim.prior[0]
    fidelity.grad = session.meter.timed("gradient", fidelity.grad)
    fidelity.prox = session.meter.timed("gradient", fidelity.prox)
    prior.prox = session.meter.timed("denoise", prior.prox)

    records, start, state = _resume(session, built)
    session.watch.enter("run")
    with torch.no_grad(), session.meter.tracking(algorithm):
        for index in range(start[0], len(images)):
            first = start[1] if index == start[0] else 0
            # The number first: two files may have one name.
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
    return algorithm.strategy.executed


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
    algorithm, y = built.algorithm, sample.measurements
    iterations = algorithm.iterations
    sigma = None
    if session.spec.algorithm.sigma == "noise":
        sigma = torch.tensor([sample.noise_std], device=session.ctx.device, dtype=built.dtype)
    session.meter.watch(y, sample.truth)
    if state is None:
        state = algorithm.initial(y)
        records = [*records, ImageRecord(name=sample.name)]
        _measure(session, records[-1], state["est"][0], sample.truth)
    for k in range(first, iterations):
        begin = time.perf_counter()
        previous = state
        state = algorithm.iterate(state, k, y, sigma)
        x = state["est"][0]
        if not bool(torch.isfinite(x.sum())):
            if session.first:
                write_image(session, "last-finite", previous["est"][0], sample, label=label)
            # The iterate is the same everywhere, so all ranks are here; the first to leave would have rank 0 ended mid-file.
            session.ctx.barrier()
            raise Diverged(f"the iterate is not finite after iteration {k + 1}; the last finite one is in output/")
        seconds = time.perf_counter() - begin
        session.meter.close_step(seconds, SECTIONS)
        psnr, similarity = _measure(session, records[-1], x, sample.truth)
        session.done(index * iterations + k + 1, seconds, psnr_db=psnr, ssim=similarity, loss=None)
        if k + 1 < iterations and session.requests.agree(session.ctx.device):
            _interrupt(session, records, state, index, k + 1)
    # Made again for the picture rather than kept: a full image less during the iterations. A collective, so on every rank.
    initial = algorithm.initial(y)["est"][0]
    if session.first:
        path = records[-1].psnr_db
        write_image(session, "reconstruction", state["est"][0], sample, label=label, initial=initial, psnr_db=path)
    return records


def _measure(
    session: Session, record: ImageRecord, x: torch.Tensor, truth: torch.Tensor | None
) -> tuple[float | None, float | None]:
    """PSNR and SSIM on rank 0, outside the memory account; every rank holds the same iterate."""
    if truth is None or not session.first:
        return None, None
    with session.meter.paused():
        psnr, similarity = psnr_db(x, truth), ssim(x, truth)
    record.psnr_db.append(psnr)
    if similarity is not None:
        record.ssim.append(similarity)
    return psnr, similarity


def _interrupt(session: Session, records: list[ImageRecord], state: dict[str, Any], index: int, done: int) -> None:
    """Save the iterate and ask to be started again."""
    step = index * session.spec.algorithm.iterations + done
    if session.first:
        estimates = {f"est{i}": tensor.clone() for i, tensor in enumerate(state["est"])}
        kept = {
            "image": index,
            "iteration": done,
            "it": int(state.get("it", 0)),
            "records": [asdict(r) for r in records],
        }
        write_save(session.paths, step, estimates, kept, session.spec.run.keep_saves)
    leave_for_requeue(session, step)


def _resume(session: Session, built: Built) -> tuple[list[ImageRecord], tuple[int, int], dict[str, Any] | None]:
    """Records, (image, iteration) to go on with, and the iterate: from the newest save, or the start."""
    found = newest_save(session.paths)
    if found is None:
        return [], (0, 0), None
    kept, tensors = load_state(found[1]), load_model(found[1])
    where = {"device": session.ctx.device, "dtype": built.dtype}
    estimates = tuple(tensors[f"est{i}"].to(**where) for i in range(len(tensors)))
    records = [ImageRecord(**r) for r in kept["records"]] if session.first else [ImageRecord(name="")]
    print(f"resumed from the save of step {found[0]}", flush=True)
    return records, (kept["image"], kept["iteration"]), {"est": estimates, "cost": None, "it": kept["it"]}
