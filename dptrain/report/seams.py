"""Seams: do the borders of tiles show in a reconstruction?

The *jump* at a pixel is how far the step to its neighbour differs from the mean of the steps before and after it,
|d0 - (d- + d+) / 2|, so that neither brightness nor a slope counts. The seam score of an axis is the mean jump across the borders of
tile cores over the mean jump everywhere else along that axis: 1 where a border is a place like any other. How much chance there is in
it is seen from the same grid shifted by every number of pixels that keeps it off the borders: `sigma` is how many standard deviations
of their scores it lies above their mean. The image itself hides small seams between its edges; the difference to the untiled run,
where there is one, hides nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dptrain.errors import UsageError
from dptrain.geometry.tiles import TileGrid
from dptrain.records.reading import whole_number
from dptrain.report.compare import open_array
from dptrain.report.groups import problem_of, untiled_by
from dptrain.report.runs import Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLAB_ELEMENTS = 8_000_000
REACH = 2
"""Pixels on either side of a border whose jumps touch it."""
REMARKABLE = 4.0
"""Sigma from which on a score is called a seam; by chance one border in some ten thousand gets there."""
FEWEST_SHIFTS = 10


@dataclass(frozen=True, kw_only=True)
class AxisScore:
    """Borders across one axis."""

    axis: int
    borders: int
    at_borders: float
    """Mean jump."""
    inside: float
    score: float | None
    """None: nothing jumps inside."""
    sigma: float | None
    """None: there are too few shifted grids to compare with, or they are all alike."""

    @property
    def seam(self) -> bool | None:
        """Whether the borders stand out; None: not known."""
        return None if self.sigma is None else self.sigma >= REMARKABLE


@dataclass(frozen=True, kw_only=True)
class ImageSeams:
    """One image."""

    name: str
    axes: tuple[AxisScore, ...]
    untiled: Untiled | None = None


@dataclass(frozen=True, kw_only=True)
class Untiled:
    """Tiled minus untiled."""

    run: str
    largest: float
    rms: float
    rms_at_borders: float | None
    """Within the halo of a border; None: every pixel is."""
    rms_inside: float | None
    axes: tuple[AxisScore, ...]
    """Seam scores of the difference."""


@dataclass(frozen=True, kw_only=True)
class Seams:
    """Everything about one run."""

    run: str
    grid: TileGrid
    images: tuple[ImageSeams, ...]
    advice: str | None = None
    """How to get the untiled run, or why there can be none; None where there is one."""
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """For other programs."""
        value = asdict(self)
        del value["grid"]
        value["tiles"] = {"counts": list(self.grid.counts), "patch": self.grid.patch, "halo": self.grid.halo}
        for image, made in zip(value["images"], self.images, strict=True):
            _add_seams(image["axes"], made.axes)
            if made.untiled is not None:
                _add_seams(image["untiled"]["axes"], made.untiled.axes)
        return value


def _add_seams(entries: Sequence[dict[str, Any]], axes: Sequence[AxisScore]) -> None:
    for entry, axis in zip(entries, axes, strict=True):
        entry["seam"] = axis.seam


def seams_of(run: Run, untiled: Run | None) -> Seams:
    """Seam scores of a reconstruction, and its difference to an untiled one.

    :param untiled: a completed run of the same problem without tiles.
    :raises UsageError: where the run has no tiles, no output, or the other is not of the same problem.
    """
    grid = grid_of(run)
    if untiled is not None:
        _check_untiled(run, untiled)
    images = []
    for path in sorted(run.paths.output.glob("reconstruction*.npy")):
        tiled = _fitting(open_array(path), grid, path.name)
        against = None
        if untiled is not None:
            other = untiled.paths.output / path.name
            against = _difference(tiled, _fitting(open_array(other), grid, other.name), grid, untiled.name)
        images.append(ImageSeams(name=path.stem, axes=scores(grid, [tiled]), untiled=against))
    if not images:
        raise UsageError(f"{run.name} has no reconstruction in output/\n    write: a completed run of dptrain infer")
    return Seams(run=run.name, grid=grid, images=tuple(images))


def grid_of(run: Run) -> TileGrid:
    """The tiles of a run.

    :raises UsageError: where it has none, or one.
    """
    patch, halo = whole_number(run.spec.get("tiling.patch"), 1), whole_number(run.spec.get("tiling.halo"))
    if run.image_size is None or halo is None or (patch is None and not run.untiled):
        raise UsageError(f"the spec of {run.name} does not say its tiles\n    write: a run whose spec.yaml is whole")
    grid = TileGrid(run.image_size, max(run.image_size) if patch is None else patch, halo)
    if len(grid) == 1:
        raise UsageError(f"{run.name} has one tile and so no seams\n    write: a run with a smaller tiling.patch")
    return grid


def find_untiled(run: Run, runs: Sequence[Run]) -> Run | None:
    """The newest completed untiled run of the same problem among others."""
    return untiled_by(runs, problem_of).get(problem_of(run))


def scores(grid: TileGrid, arrays: Sequence[NDArray[Any]]) -> tuple[AxisScore, ...]:
    """Scores of every axis with a border.

    :param arrays: (C, *image), or two of them: of their difference.
    """
    lines = _line_jumps(arrays, grid.shape)
    found = []
    for axis, jumps in enumerate(lines):
        borders = [tile.core_start for tile in grid.axes[axis] if tile.core_start > 0]
        if borders and len(jumps):
            found.append(_axis_score(axis, borders, jumps))
    return tuple(found)


def _axis_score(axis: int, borders: Sequence[int], jumps: NDArray[Any]) -> AxisScore:
    """
    :param jumps: (N - 3,) mean jump between pixels p - 1 and p, for p = 2 ... N - 2.
    """
    import numpy as np

    places = np.arange(2, len(jumps) + 2)
    near = np.abs(places[:, None] - np.asarray(borders)).min(1)
    here, inside = jumps[near == 0], jumps[near >= REACH]
    if not len(here) or not len(inside):
        return AxisScore(axis=axis, borders=len(borders), at_borders=0, inside=0, score=None, sigma=None)
    base = float(inside.mean())
    mine = float(here.mean())
    shifted = []
    for by in range(-len(jumps), len(jumps) + 1):
        moved = [b + by for b in borders if 2 <= b + by < len(jumps) + 2]
        if len(moved) == len(here) and min(near[b - 2] for b in moved) >= REACH:
            shifted.append(float(np.mean([jumps[b - 2] for b in moved])))
    return AxisScore(
        axis=axis,
        borders=len(here),
        at_borders=mine,
        inside=base,
        score=mine / base if base else None,
        sigma=_sigma(mine, shifted),
    )


def _sigma(value: float, others: Sequence[float]) -> float | None:
    spread = statistics.stdev(others) if len(others) >= FEWEST_SHIFTS else 0.0
    return (value - statistics.fmean(others)) / spread if spread else None


def _line_jumps(arrays: Sequence[NDArray[Any]], shape: Sequence[int]) -> list[NDArray[Any]]:
    """Per axis the mean jump at each place along it, over channels and all other axes; a slab of the first axis at a time."""
    import numpy as np

    sums = [np.zeros(max(0, n - 3)) for n in shape]
    rows = max(1, SLAB_ELEMENTS * shape[0] // max(1, arrays[0].size))
    for start in range(0, shape[0], rows):
        stop = min(shape[0], start + rows)
        # Three rows more, for the jumps that reach over the slab's end.
        slab = _slab(arrays, start, min(shape[0], stop + 3))
        if slab.shape[1] > 3:
            first = _jumps(slab, 1)
            sums[0][start : start + first.shape[1]] += first.sum(axis=tuple(i for i in range(first.ndim) if i != 1))
        own = slab[:, : stop - start]
        for axis in range(1, len(shape)):
            if shape[axis] > 3:
                found = _jumps(own, axis + 1)
                sums[axis] += found.sum(axis=tuple(i for i in range(found.ndim) if i != axis + 1))
    channels = arrays[0].shape[0]
    total = channels * int(np.prod(shape))
    return [s / (total // n) for s, n in zip(sums, shape, strict=True)]


def _jumps(x: NDArray[Any], axis: int) -> NDArray[Any]:
    """|d0 - (d- + d+) / 2| along an axis of N: N - 3 of them."""
    import numpy as np

    steps = np.moveaxis(np.diff(x, axis=axis), axis, 0)
    return np.moveaxis(np.abs(steps[1:-1] - (steps[:-2] + steps[2:]) / 2), 0, axis)


def _slab(arrays: Sequence[NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
    import numpy as np

    parts = [a[:, start:stop].astype(np.float64) for a in arrays]
    made: NDArray[Any] = parts[0] if len(parts) == 1 else parts[0] - parts[1]
    return made


def _difference(tiled: NDArray[Any], untiled: NDArray[Any], grid: TileGrid, name: str) -> Untiled:
    import numpy as np

    shape = grid.shape
    near = [_near_border(grid, axis) for axis in range(len(shape))]
    largest, sums, counts = 0.0, [0.0, 0.0], [0, 0]
    rows = max(1, SLAB_ELEMENTS * shape[0] // max(1, tiled.size))
    for start in range(0, shape[0], rows):
        slab = _slab([tiled, untiled], start, min(shape[0], start + rows))
        # (rows, ...): whether a border of any axis is near.
        mask = near[0][start : start + slab.shape[1]]
        for other in near[1:]:
            mask = mask[..., None] | other
        largest = max(largest, float(np.abs(slab).max()))
        for side, chosen in enumerate((mask, ~mask)):
            sums[side] += float(np.sum(np.where(chosen, slab, 0) ** 2))
            counts[side] += int(chosen.sum()) * slab.shape[0]
    at, inside = (None if not n else float(np.sqrt(s / n)) for s, n in zip(sums, counts, strict=True))
    return Untiled(
        run=name,
        largest=largest,
        rms=float(np.sqrt(sum(sums) / sum(counts))),
        rms_at_borders=at,
        rms_inside=inside,
        axes=scores(grid, [tiled, untiled]),
    )


def _near_border(grid: TileGrid, axis: int) -> NDArray[Any]:
    """Which places along an axis are within the halo of a border."""
    import numpy as np

    near = np.zeros(grid.shape[axis], dtype=bool)
    for tile in grid.axes[axis]:
        if tile.core_start > 0:
            near[max(0, tile.core_start - max(1, grid.halo)) : tile.core_start + max(1, grid.halo)] = True
    return near


def _fitting(array: NDArray[Any], grid: TileGrid, name: str) -> NDArray[Any]:
    if array.shape[1:] != grid.shape:
        raise UsageError(
            f"{name} has shape {array.shape}, not that of a {' x '.join(map(str, grid.shape))} image\n"
            "    write: a run whose output is whole"
        )
    return array


def _check_untiled(run: Run, untiled: Run) -> None:
    without = ("tiling.", "resources.gpus", "resources.layout")
    if not untiled.untiled or not untiled.completed:
        raise UsageError(f"{untiled.name} is no completed untiled run\n    write: a run with tiling.patch: none")
    mine, other = ({k: v for k, v in r.spec.items() if not _is_how(k, without)} for r in (run, untiled))
    differing = [key for key in dict.fromkeys([*mine, *other]) if mine.get(key) != other.get(key)]
    if differing:
        raise UsageError(
            f"{untiled.name} is not of the same problem as {run.name}: {', '.join(differing[:4])} differ\n"
            f"    write: an untiled run of {run.paths.spec}"
        )


def _is_how(key: str, without: Sequence[str]) -> bool:
    of_run = key.startswith("run.") and key != "run.seed"
    return (
        of_run
        or key in ("name", "cluster", "resources.time_min")
        or key.startswith(tuple(without))
        or key.startswith("train.")
    )
