"""What a run leaves for people: arrays, pictures, curves, and result.json. Rank 0 writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from PIL import Image

from dptrain.engine.communication import gathered
from dptrain.engine.image_files import NpyFile, Preview, TiffFile
from dptrain.engine.measure import card_name
from dptrain.engine.observers import Outcome
from dptrain.engine.problems import RankPhysics
from dptrain.engine.session import Session
from dptrain.engine.split import Misaligned, split
from dptrain.records.intent import write_json

matplotlib.use("Agg")  # No screen on a compute node.


def write_image(
    session: Session,
    physics: RankPhysics,
    kind: str,
    x: torch.Tensor,
    sample: Any,
    *,
    label: str = "",
    initial: torch.Tensor | None = None,
    psnr_db: list[float] | None = None,
) -> None:
    """Write one image: NPY as it is, a picture clipped to [0, 1], TIFF where the source has 16 bits. All ranks call it.

    :param kind: start of the file names.
    :param x: this rank's part (1, C, *box).
    :param label: rest of the file names: what tells several images apart.
    :param initial: the first iterate; with it a side-by-side picture (first iterate, result, truth), the picture of the truth and the
        curve are written.
    """
    folder = session.paths.output
    shape = (physics.channels, *session.spec.problem.image_size)
    npy = NpyFile(folder / f"{kind}{label}.npy", shape, x) if session.first else None
    tiff = TiffFile(folder / f"{kind}{label}.tif", shape) if session.first and sample.bit_depth == 16 else None
    picture = Preview(shape)
    for start, slab in physics.slabs(x, picture.factor):
        if slab is not None and npy is not None:
            rows = slab.detach().cpu().numpy()
            npy.write(start, rows)
            picture.add(start, rows)
            if tiff is not None:
                tiff.write(start, rows)
    panels = [("reconstruction", picture)]
    if initial is not None:
        panels.insert(0, ("first iterate", _preview(physics, initial, shape)))
        if sample.truth is not None:
            panels.append(("truth", _preview(physics, sample.truth, shape)))
    if npy is None:
        return
    npy.close()
    Image.fromarray(picture.pixels).save(folder / f"{kind}{label}.png")
    if initial is not None:
        _side_by_side(panels, psnr_db or [], folder / f"side-by-side{label}.png")
        for name, shown in panels:
            if name == "truth":
                Image.fromarray(shown.pixels).save(folder / f"truth{label}.png")
    if psnr_db:
        _curve(psnr_db, "iteration", "PSNR (dB)", folder / f"psnr{label}.png")


def _preview(physics: RankPhysics, x: torch.Tensor, shape: tuple[int, ...]) -> Preview:
    made = Preview(shape)
    for start, slab in physics.slabs(x, made.factor):
        if slab is not None:
            made.add(start, slab.detach().cpu().numpy())
    return made


def write_curve(session: Session, values: list[float], x_label: str, y_label: str, name: str) -> None:
    """Draw one curve into output/NAME.png."""
    _curve(values, x_label, y_label, session.paths.output / f"{name}.png")


def write_result(session: Session, **numbers: Any) -> None:
    """Gather what every rank measured and write result.json; a collective. `numbers` are the task's own keys."""
    mine = {
        "peak_memory_bytes": session.meter.peak_memory_bytes,
        "largest_storage_bytes": session.meter.largest_storage_bytes,
        "bytes_sent": session.ctx.bytes_sent,
    }
    of_ranks = gathered((mine, session.meter.window.outcome))
    every = [numbers for numbers, _ in of_ranks]
    if not session.first:
        return
    write_json(
        session.paths.result,
        {
            "state": "completed",
            "task": session.intent.task,
            "steps": session.watch.step,
            **_finite(numbers),
            "sections": session.meter.medians(),
            **{key: [of_rank[key] for of_rank in every] for key in mine},
            **_measured(session, [outcome for _, outcome in of_ranks]),
            "world_size": session.env.world_size,
            "replicas": session.spec.resources.replicas,
            "layout": session.spec.resources.layout,
            "card": card_name(session.ctx.device),
            "output": sorted(str(p.relative_to(session.paths.dir)) for p in session.paths.output.iterdir()),
        },
    )


def _measured(session: Session, outcomes: list[Outcome]) -> dict[str, Any]:
    """What was measured in the few steps that were looked at more closely."""
    first = outcomes[0]
    seen = [outcome.seen for outcome in outcomes if outcome.seen is not None]
    communication, note = None, first.note
    if first.steps is not None and len(seen) == len(outcomes):
        try:
            communication = split(seen, first.steps[1] - first.steps[0] + 1)
        except Misaligned as error:
            # A run that is done is not lost for it.
            note = f"no split of the communication: {error}"
            print(note, flush=True)
    files = [str(path.relative_to(session.paths.dir)) for outcome in outcomes for path in outcome.files]
    steps = None if first.steps is None else list(first.steps)
    measure = {"mode": session.spec.run.measure, "active_steps": steps, "files": files, "note": note}
    return {"measure": measure, "communication": communication}


def _finite(value: Any) -> Any:
    # JSON has no infinity: a PSNR of identical images is written as null.
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value


def _side_by_side(panels: list[tuple[str, Preview]], psnr_db: list[float], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 4.6), dpi=120, layout="constrained")
    shown = {"first iterate": psnr_db[:1], "reconstruction": psnr_db[-1:]}
    for axes, (title, preview) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        axes.imshow(preview.pixels, cmap="gray", vmin=0, vmax=255)
        axes.set_title(title + "".join(f", {value:.2f} dB" for value in shown.get(title, [])))
        axes.set_axis_off()
    figure.savefig(path)


def _curve(values: list[float], x_label: str, y_label: str, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5, 3.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(range(len(values)), values, marker="." if len(values) <= 60 else "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    figure.savefig(path)
