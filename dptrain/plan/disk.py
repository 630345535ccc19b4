"""What a run writes, against what is free in the folder of runs.

Refused is only what is certain: arrays of the result, saves of training. A quota that is smaller than the free space is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from dptrain.plan.layouts import ELEMENT_BYTES
from dptrain.plan.receptive import Receptive
from dptrain.spec.schema import Spec, Task

RNG_BYTES = 5056
"""State of torch's generator on the CPU, per rank and save."""
ONE_ITERATE = ("pgd", "hqs")
"""Algorithms that carry one image from step to step; the others carry two."""
FILES_OF_A_SAVE = 4
"""Folder, state, manifest, weights; in inference a shard per rank in the weights' place."""
FILES_OF_AN_IMAGE = 4
FILES_OF_A_RUN = 12
MUCH = 0.5
"""Share of the free space from which on plan speaks of it."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Bytes and files of one run, and the space they find."""

    folder: str
    """Where runs are made."""
    saves_bytes: int | None
    """Of all saves kept at a time; None: the number of weights is not known. In inference only an interrupted run saves."""
    output_bytes: int
    """Of arrays; pictures come on top."""
    files: int
    """Files and folders of a first attempt, with the saves."""
    free_bytes: int
    free_files: int | None
    """Inodes; None: the file system does not count them."""

    def line(self) -> str:
        """One line for the page."""
        saves = "saves not known" if self.saves_bytes is None else f"saves up to {_readable(self.saves_bytes)}"
        free = "" if self.free_files is None else f" and {self.free_files} files"
        return (
            f"disk: {saves}, output {_readable(self.output_bytes)}, {self.files} files; "
            f"free in {self.folder}: {_readable(self.free_bytes)}{free}"
        )

    def refusals(self, task: Task) -> Iterator[str]:
        """What cannot fit."""
        need = self.output_bytes + ((self.saves_bytes or 0) if task == "train" else 0)
        if need > self.free_bytes:
            yield (
                f"{_readable(need)} of saves and output do not fit into {self.folder}: {_readable(self.free_bytes)} are free; "
                "write: DPTRAIN_RUNS=another folder" + (", or a smaller run.keep_saves" if task == "train" else "")
            )
        if self.free_files is not None and self.files > self.free_files:
            yield f"{self.files} files do not fit into {self.folder}: {self.free_files} inodes are free"

    def notes(self) -> Iterator[str]:
        """What takes much of the space."""
        need = self.output_bytes + (self.saves_bytes or 0)
        if MUCH * self.free_bytes < need <= self.free_bytes:
            yield f"saves and output of {_readable(need)} take most of the {_readable(self.free_bytes)} free in {self.folder}"


def disk_of(spec: Spec, task: Task, images: int, receptive: Receptive | None, runs: Path) -> Disk:
    """Count what a run writes and look at the folder.

    :param images: that inference reconstructs.
    :param receptive: knows the number of weights.
    :param runs: folder of runs; need not exist yet.
    """
    number = ELEMENT_BYTES[spec.resources.precision]
    image_bytes = number * spec.problem.channels * prod(spec.problem.image_size)
    if task == "train" and spec.train is not None:
        made = -(-spec.train.steps // spec.train.save_every_steps)
        # The newest is written before the oldest is removed.
        held = min(made, spec.run.keep_saves + 1)
        # Weights, and Adam's two moments of those it changes.
        copies = 3 if "denoiser" in spec.train.trainable else 1
        save = None if receptive is None else copies * number * receptive.parameters + RNG_BYTES * spec.resources.gpus
        output, pictures, shards = 0, 1, 0
    else:
        held = 1
        save = image_bytes * (1 if spec.algorithm.name in ONE_ITERATE else 2)
        output, pictures, shards = images * image_bytes, images, spec.resources.gpus - 1
    free = os.statvfs(_existing(runs))
    return Disk(
        folder=str(runs),
        saves_bytes=None if save is None else held * save,
        output_bytes=output,
        files=FILES_OF_A_RUN
        + 2 * spec.resources.gpus
        + (FILES_OF_A_SAVE + shards) * held
        + FILES_OF_AN_IMAGE * pictures,
        free_bytes=free.f_bavail * free.f_frsize,
        free_files=free.f_favail if free.f_files else None,
    )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _readable(count: int) -> str:
    """Bytes in a unit of 1000 that leaves few digits."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}" if unit != "B" else f"{count} B"
