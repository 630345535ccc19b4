"""A rehearsal's problem: the spec made small. What decides how a run starts, stops and goes on stays: ranks, layout, network, tile.

Every change is an override with its reason, so that it goes through the reading and the checks of any other. A key that the user
has set for this rehearsal stays as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from dptrain.geometry.tiles import TileGrid
from dptrain.plan.checks import files_of
from dptrain.plan.inputs import learned_iterations, weights_run
from dptrain.plan.plan import Plan
from dptrain.spec.files import expand_files
from dptrain.spec.load import LoadedSpec
from dptrain.spec.schema import Data, Factory, FileData, MultiframeSuperres, Spec, Train

STEPS = 8
"""Optimiser steps, or iterations of a reconstruction."""
WARNED_AFTER = 3
"""Steps made when the warning is sent, where there are enough."""
SAVE_EVERY_STEPS = 2
TIME_MIN = 15
NAME_SUFFIX = "-rehearsal"
NAME_LIMIT = 64


@dataclass(frozen=True, kw_only=True)
class Change:
    """One value of the spec that is another one in the rehearsal."""

    key: str
    value: str
    """As YAML."""
    reason: str

    @property
    def override(self) -> str:
        """As `--set` takes it."""
        return f"{self.key}={self.value}"


def changes(loaded: LoadedSpec, plan: Plan) -> list[Change]:
    """What makes a problem small.

    :param loaded: the whole problem; what overrides it stays.
    :param plan: of it.
    """
    spec = plan.spec
    name = spec.name[: NAME_LIMIT - len(NAME_SUFFIX)] + NAME_SUFFIX
    fixed = [override.key for override in loaded.overrides]
    found = [
        Change(key="name", value=json.dumps(name), reason="so that its runs are told from the others"),
        *_decided(loaded, plan),
        *([] if "problem.image_size" in fixed else _image(spec, plan.grid)),
        *(_training(spec, spec.train) if plan.task == "train" and spec.train is not None else _reconstruction(spec)),
        *_limits(spec),
    ]
    return [change for change in found if not any(f"{change.key}.".startswith(f"{key}.") for key in fixed)]


def warned_after(steps: int) -> int:
    """After how many of so many steps the warning is sent; 0 where there are too few.

    It reaches the ranks in the next step, at whose end they save; one is left to go on with.
    """
    return min(WARNED_AFTER, (steps - 1) // 2)


def save_ratio(whole: Plan, small: Plan) -> float:
    """How many times the bytes of the rehearsal's save one of the whole problem has: iterates grow with the image, weights do not."""
    if whole.task == "train":
        return 1.0
    return math.prod(whole.spec.problem.image_size) / math.prod(small.spec.problem.image_size)


def _decided(loaded: LoadedSpec, plan: Plan) -> Iterator[Change]:
    """What plan has fitted to the whole problem: a small one would be fitted otherwise."""
    tiling = loaded.spec.tiling
    written = {"patch": tiling.patch, "max_batch_size": tiling.max_batch_size, "checkpoint": tiling.checkpoint}
    keys = [f"tiling.{key}" for key, value in written.items() if value == "fit"]
    for key in [*(["resources.gpus"] if loaded.fit_gpus else []), *keys]:
        yield Change(key=key, value=str(plan.choice(key)), reason="as planned for the whole problem")


def _image(spec: Spec, grid: TileGrid) -> Iterator[Change]:
    small = _small_image(spec, grid)
    if small == spec.problem.image_size:
        return
    counts = " x ".join(map(str, TileGrid(small, grid.patch, grid.halo).counts))
    window = " x ".join(map(str, grid.window_shape))
    reason = f"the same tiles of {window} pixels, {counts} of them"
    yield Change(key="problem.image_size", value=json.dumps(list(small)), reason=reason)
    held_out = spec.train.held_out_data if spec.train is not None else None
    for key, data in (("problem.data", spec.problem.data), ("train.held_out_data", held_out)):
        if isinstance(data, FileData) and data.crop == "none":
            yield Change(key=f"{key}.crop", value="center", reason="the files are larger than this image")


def _small_image(spec: Spec, grid: TileGrid) -> tuple[int, ...]:
    """The smallest image of the same tiles that has one for every rank, and neighbours wherever there were some."""
    size = spec.problem.image_size
    held_out = spec.train.held_out_data if spec.train is not None else None
    if isinstance(spec.problem.physics, Factory) or not all(map(_any_size, (spec.problem.data, held_out))):
        return size
    counts = [min(2, count) for count in grid.counts]
    while math.prod(counts) < min(len(grid), spec.resources.ranks_per_replica):
        # Where most tiles are left out so far: the shape stays that of the image.
        axis = max(range(len(counts)), key=lambda i: grid.counts[i] / counts[i])
        counts[axis] += 1
    factor = spec.problem.physics.factor if isinstance(spec.problem.physics, MultiframeSuperres) else 1
    return tuple(
        length if few == count else min(length, factor * math.ceil(few * grid.patch / factor))
        for length, few, count in zip(size, counts, grid.counts, strict=True)
    )


def _any_size(data: Data | None) -> bool:
    """Whether images of another size can be had of the same data: not of measured ones, and not of user code."""
    return not isinstance(data, Factory) and not (isinstance(data, FileData) and data.measurements is not None)


def _training(spec: Spec, train: Train) -> Iterator[Change]:
    each = spec.resources.replicas * train.batch_size
    few = "enough to stop in the middle"
    yield Change(key="train.steps", value=str(STEPS), reason=few)
    yield Change(
        key="train.save_every_steps", value=str(SAVE_EVERY_STEPS), reason="saves of its own beside that of the warning"
    )
    if (images := min(train.images, max(3, each))) < train.images:
        yield Change(key="train.images", value=str(images), reason="more than one epoch")
    if train.held_out > 1:
        yield Change(key="train.held_out", value="1", reason="one is enough")
    if _iterations_free(spec) and spec.algorithm.iterations > 2:
        yield Change(key="algorithm.iterations", value="2", reason="two unrolled steps meet all there is to meet")


def _reconstruction(spec: Spec) -> Iterator[Change]:
    if _iterations_free(spec):
        yield Change(key="algorithm.iterations", value=str(STEPS), reason="enough to stop in the middle")
    data = spec.problem.data
    if isinstance(data, FileData) and len(files_of(data)) > 1:
        for key, patterns in (("truth", data.truth), ("measurements", data.measurements)):
            if patterns is not None:
                value = json.dumps(expand_files(patterns)[:1])
                yield Change(key=f"problem.data.{key}", value=value, reason="one image is enough")


def _iterations_free(spec: Spec) -> bool:
    """Not where a step size was learned for each of them."""
    run = weights_run(spec)
    return run is None or learned_iterations(run) is None


def _limits(spec: Spec) -> Iterator[Change]:
    if spec.resources.time_min > TIME_MIN and spec.run.signal_lead_s <= TIME_MIN * 60 // 2:
        yield Change(key="resources.time_min", value=str(TIME_MIN), reason="short jobs start sooner")
