"""What `plan` does besides one plan: probe the denoiser, and a table over numbers of ranks and sizes of image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dptrain.cli.output import note, print_table, say
from dptrain.cli.start import Options, Planned, read_spec
from dptrain.errors import PlanRefused, SpecError, UsageError

if TYPE_CHECKING:
    from dptrain.plan.rows import Row
    from dptrain.spec.load import LoadedSpec

HEADER = (
    "PIXELS", "GPUS", "FITS", "PEAK GiB", "PATCH", "BATCH", "MODE", "TILES MAX", "MEAN", "IDLE", "BALANCE", "WORK",
    "MB/STEP", "SENT s", "EFF.", "",
)  # fmt: skip
EXPENDABLE = ("PATCH", "SENT s", "IDLE", "MEAN", "BATCH", "MODE")
"""Columns that a narrow terminal leaves out first; then the others from the right, but those that are kept."""
KEPT = ("PIXELS", "GPUS", "FITS", "PEAK GiB", "EFF.", "")
UNKNOWN = "not known"


def whole_numbers(text: str, option: str) -> list[int]:
    """`1,2,4` as numbers, ascending, each once."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and len(word) < 8 and int(word) > 0 for word in words):
        raise UsageError(f"{option} is {text!r}, not a list of whole numbers\n    write: {option} 1,2,4,8")
    return sorted({int(word) for word in words})


def probe(path: Path, options: Options) -> None:
    """Ask how far the denoiser sees, where nobody has: seconds, once per network. A failure is said and changes nothing."""
    from dptrain.plan.inputs import freeze_weights
    from dptrain.plan.receptive import NotMeasured, known, measure

    spec = freeze_weights(read_spec(path, options).spec)
    if known(spec) is not None:
        return
    note("measuring how far the denoiser sees (once per network; --no-probe leaves it out) ...")
    try:
        measure(spec)
    except NotMeasured as error:
        note(f"how far the denoiser sees could not be measured: {error}")


def table(
    path: Path,
    planned: Planned,
    options: Options,
    gpus: Sequence[int] | None,
    sizes: Sequence[int] | None,
    *,
    forecast_memory: bool,
) -> list[Row]:
    """One row per size and number of ranks, planned as `--set` of these values would be; none where neither was asked for.

    :param gpus: None: the spec's own number.
    :param sizes: likewise, edges of square or cubic images.
    """
    from dptrain.plan.plan import forecast_all
    from dptrain.plan.rows import Row, mark_knees

    if gpus is None and sizes is None:
        return []
    spec = planned.plan.spec
    axes = len(spec.problem.image_size)
    images = [(edge,) * axes for edge in sizes] if sizes else [spec.problem.image_size]
    counts = gpus or [planned.plan.world_size]
    cells = [(image, count) for image in images for count in counts]
    read = [_read(path, options, image, count) for image, count in cells]
    if forecast_memory or planned.profile.gpu_memory_gib is not None:
        able = [loaded.spec for loaded in read if not isinstance(loaded, str)]
        forecast_all(able, planned.plan.task, planned.profile)
    rows = []
    for (image, count), loaded in zip(cells, read, strict=True):
        if isinstance(loaded, str):
            rows.append(Row(image_size=image, gpus=count, fits=False, peak_gib=None, reasons=(loaded,)))
        else:
            rows.append(_row(loaded, planned, image, count, forecast_memory))
    return mark_knees(rows)


def _read(path: Path, options: Options, image: tuple[int, ...], count: int) -> LoadedSpec | str:
    """The spec of one row, or why it cannot be read."""
    changes = (f"problem.image_size={list(image)}", f"resources.gpus={count}")
    try:
        return read_spec(path, replace(options, overrides=(*options.overrides, *changes)))
    except SpecError as error:
        return str(error)


def _row(loaded: LoadedSpec, planned: Planned, image: tuple[int, ...], count: int, forecast_memory: bool) -> Row:
    from dptrain.plan.plan import make_plan
    from dptrain.plan.rows import Row, row_of

    try:
        return row_of(make_plan(loaded, planned.plan.task, planned.profile, forecast_memory=forecast_memory))
    except PlanRefused as error:
        return Row(image_size=image, gpus=count, fits=False, peak_gib=None, reasons=(str(error),))


def check_place(path: Path) -> None:
    """:raises UsageError: where the picture could not be written."""
    from dptrain.plan.figure import check_place as check

    check(path)


def draw(rows: Sequence[Row], path: Path) -> None:
    """The picture of the table."""
    from dptrain.plan.figure import draw as draw_figure

    draw_figure(rows, path)
    note(f"wrote {path}")


def print_rows(rows: Sequence[Row]) -> None:
    """The table, what refuses rows, and what the knee is; nothing where there are no rows."""
    from dptrain.plan.rows import KNEE_GAIN, largest_fitting

    if not rows:
        return
    say()
    others = [name for name in reversed(HEADER) if name not in (*KEPT, *EXPENDABLE)]
    print_table(HEADER, [_cells(row) for row in rows], (), (*EXPENDABLE, *others), fold=False)
    for row in rows:
        for reason in row.reasons:
            say(f"{_size(row)} on {row.gpus}: refused: {reason}")
    if len({row.image_size for row in rows}) > 1:
        for gpus, image in largest_fitting(rows).items():
            on = "1 rank" if gpus == 1 else f"{gpus} ranks"
            say(
                f"{on}: {'none of these images fits' if image is None else f'the largest of these that fits is {_shape(image)}'}"
            )
    able = [row for row in rows if row.fits is not False]
    if any(row.knee for row in rows):
        say(
            f"knee: beyond it a rank that is added brings less than {100 * KNEE_GAIN:.0f} % of what one of the first row does"
        )
    elif len({row.gpus for row in able}) > 1:
        say(f"no knee up to {max(row.gpus for row in able)} ranks: all of them pay")
    if any(row.communication_s is None for row in able):
        say(
            "efficiency is balance / work; give the profile bandwidths and gpu_tflops for an estimate with communication"
        )


def _size(row: Row) -> str:
    return _shape(row.image_size)


def _shape(image: Sequence[int]) -> str:
    return " x ".join(map(str, image))


def _cells(row: Row) -> list[str]:
    fits = {None: UNKNOWN, True: "yes", False: "no"}[row.fits]

    def shown(value: float | None, form: str = ".2f") -> str:
        return UNKNOWN if value is None else format(value, form)

    return [
        _size(row),
        str(row.gpus),
        fits,
        shown(row.peak_gib),
        UNKNOWN if row.patch is None else str(row.patch),
        shown(row.max_batch_size, "d"),
        row.checkpoint or UNKNOWN,
        shown(row.tiles_per_rank_max, "d"),
        shown(row.tiles_per_rank_mean),
        shown(row.idle_ranks, "d"),
        shown(row.balance),
        shown(row.work_multiplier, ".3f"),
        shown(None if row.bytes_per_step is None else row.bytes_per_step / 1e6, ".1f"),
        shown(row.communication_s, ".3g"),
        shown(row.efficiency_bound),
        "knee" if row.knee else "",
    ]
