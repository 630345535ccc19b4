"""What a run leaves for people: arrays, pictures, curves, and result.json. Rank 0 writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import tifffile
import torch
import torch.distributed as dist
from PIL import Image

from dptrain.engine.session import Session
from dptrain.records.intent import write_json

matplotlib.use("Agg")  # No screen on a compute node.

PREVIEW_PIXELS = 2048
"""Longest edge of a picture meant to be looked at; the arrays keep every pixel."""


def write_image(
    session: Session,
    kind: str,
    x: torch.Tensor,
    sample: Any,
    *,
    label: str = "",
    initial: torch.Tensor | None = None,
    psnr_db: list[float] | None = None,
) -> None:
    """Write one image of shape (1, C, ...): NPY as it is, a picture clipped to [0, 1], TIFF where the source has 16 bits.

    :param kind: start of the file names.
    :param label: rest of the file names: what tells several images apart.
    :param initial: the first iterate; with it a side-by-side picture (first iterate, result, truth) and the curve are written.
    """
    folder = session.paths.output
    array = x[0].detach().cpu().numpy()
    np.save(folder / f"{kind}{label}.npy", array)
    _picture(array, folder / f"{kind}{label}.png")
    if sample.bit_depth == 16:
        scaled = np.round(np.clip(array, 0, 1) * 65535).astype(np.uint16)
        tifffile.imwrite(
            folder / f"{kind}{label}.tif", np.moveaxis(scaled, 0, -1) if array.shape[0] in (3, 4) else scaled
        )
    if initial is not None:
        panels = [("first iterate", initial), ("reconstruction", x)]
        if sample.truth is not None:
            panels.append(("truth", sample.truth))
        _side_by_side(panels, psnr_db or [], folder / f"side-by-side{label}.png")
    if psnr_db:
        _curve(psnr_db, "iteration", "PSNR (dB)", folder / f"psnr{label}.png")


def write_curve(session: Session, values: list[float], x_label: str, y_label: str, name: str) -> None:
    """Draw one curve into output/NAME.png."""
    _curve(values, x_label, y_label, session.paths.output / f"{name}.png")


def write_result(session: Session, **numbers: Any) -> None:
    """Gather every rank's peak and write result.json; a collective. `numbers` are the task's own keys."""
    peaks: list[Any] = [session.meter.peak_memory_bytes]
    sent: list[Any] = [session.ctx.bytes_sent]
    if dist.is_initialized():
        peaks, sent = [None] * session.env.world_size, [None] * session.env.world_size
        dist.all_gather_object(peaks, session.meter.peak_memory_bytes)
        dist.all_gather_object(sent, session.ctx.bytes_sent)
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
            "peak_memory_bytes": peaks,
            "bytes_sent": sent,
            "world_size": session.env.world_size,
            "layout": session.spec.resources.layout,
            "output": sorted(str(p.relative_to(session.paths.dir)) for p in session.paths.output.iterdir()),
        },
    )


def _finite(value: Any) -> Any:
    # JSON has no infinity: a PSNR of identical images is written as null.
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value


def _flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(C, H, W), or the middle slice of (C, D, H, W), as 8-bit (H, W) or (H, W, 3)."""
    if array.ndim == 4:
        array = array[:, array.shape[1] // 2]
    shown = array[:3] if array.shape[0] >= 3 else array[:1]
    pixels = np.round(np.nan_to_num(np.clip(shown, 0, 1)) * 255).astype(np.uint8)
    return np.moveaxis(pixels, 0, -1) if pixels.shape[0] == 3 else pixels[0]


def _picture(array: np.ndarray[Any, Any], path: Path) -> None:
    Image.fromarray(_flat(array)).save(path)


def _side_by_side(panels: list[tuple[str, torch.Tensor]], psnr_db: list[float], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 4.6), dpi=120, layout="constrained")
    shown = {"first iterate": psnr_db[:1], "reconstruction": psnr_db[-1:]}
    for axes, (title, x) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        image = Image.fromarray(_flat(x[0].detach().cpu().numpy()))
        image.thumbnail((PREVIEW_PIXELS, PREVIEW_PIXELS))
        axes.imshow(np.asarray(image), cmap="gray", vmin=0, vmax=255)
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
