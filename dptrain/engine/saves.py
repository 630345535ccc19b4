"""Saves: what training or an interrupted reconstruction needs to go on. (The word checkpoint means activation checkpointing.)

A save is a folder `saves/step-<n>/` with `state.pt` (read in torch's restricted mode), `manifest.json` (sizes and SHA-256 of the
others), and what there is once as `model.safetensors` (weights), what every rank has its part of as `shard-<rank>.safetensors`
(iterates; the box is in the file). It is written beside, flushed to disk and renamed by rank 0: complete or absent. Any number of
ranks can read the shards of any other.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from dptrain.engine.communication import gathered, meet, told_by_first
from dptrain.engine.problems.random_fields import seed_of
from dptrain.geometry.boxes import Box, cells, intersect, shape_of, slices
from dptrain.records.intent import write_json
from dptrain.records.paths import RunPaths
from dptrain.records.saves import MANIFEST, entry_of, newest_save, save_steps

MODEL, STATE = "model.safetensors", "state.pt"
SHARD = "shard-"
PROBE_BYTES = 2**16
Tensors = dict[str, torch.Tensor]


def rng_states() -> list[dict[str, torch.Tensor]]:
    """RNG of every rank, in rank order; a collective."""
    mine = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        mine["cuda"] = torch.cuda.get_rng_state()
    return gathered(mine)


def restore_rng(states: list[dict[str, torch.Tensor]], rank: int, *key: int | str) -> None:
    """Set this rank's RNG from a save.

    A stream that the save does not have (a rank beyond its ranks, a GPU where it was made without one) begins anew, at a place
    that `key` and rank determine.
    """
    torch.manual_seed(seed_of(*key, "resumed", rank))
    if rank < len(states):
        torch.set_rng_state(states[rank]["cpu"])
        if "cuda" in states[rank] and torch.cuda.is_available():
            torch.cuda.set_rng_state(states[rank]["cuda"])


def write_save(
    paths: RunPaths,
    step: int,
    state: dict[str, Any],
    keep: int,
    *,
    model: Tensors | None = None,
    shard: tuple[Box, Tensors] | None = None,
    rank: int = 0,
) -> None:
    """Write one save, then remove all but the newest `keep` up to this one. With shards a collective, without them rank 0 only.

    :param state: plain containers, numbers, strings and tensors only; rank 0's is written.
    :param model: name -> tensor; rank 0's is written.
    :param shard: this rank's box and its parts (B, C, *box) of whole images by name; None: there are no shards.
    :raises OSError: a full disk; earlier saves stay.
    """
    target = paths.save(step)
    beside = paths.partial_save(step)
    if rank == 0:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
    try:
        with _full_disk_by_name(beside):
            files = _write_shards(beside, rank, *shard) if shard is not None else {}
            if rank == 0:
                _complete(beside, target, step, state, model, files)
    finally:
        if rank == 0:
            shutil.rmtree(beside, ignore_errors=True)
    if rank == 0:
        # A save of a later step is one that nothing went on from: it is damaged, and takes no place of a good one.
        kept = [s for s in save_steps(paths) if s <= step][-keep:]
        for old in set(save_steps(paths)) - set(kept):
            shutil.rmtree(paths.save(old))
    if shard is not None:
        meet()


def _write_shards(beside: Path, rank: int, box: Box, tensors: Tensors) -> dict[str, Any]:
    """Every rank's shard; their entries in the manifest."""
    meet()  # The folder is there.
    mine: dict[str, Any] = {}
    if cells(box):
        path = beside / f"{SHARD}{rank}.safetensors"
        save_file(_plain(tensors), path, metadata={"box": json.dumps(box)})
        mine[path.name] = entry_of(path)
        _sync(path)
    return {name: entry for files in gathered(mine) for name, entry in files.items()}


def _complete(
    beside: Path, target: Path, step: int, state: dict[str, Any], model: Tensors | None, files: dict[str, Any]
) -> None:
    """Rank 0's files, the manifest, and the new name."""
    if model is not None:
        save_file(_plain(model), beside / MODEL)
    # A file that torch opens itself stays open, and keeps its part of a full disk, as long as anybody holds the error.
    with (beside / STATE).open("wb") as file:
        torch.save(state, file)
    own = [STATE] if model is None else [MODEL, STATE]
    files = {name: entry_of(beside / name) for name in own} | files
    write_json(beside / MANIFEST, {"step": step, "files": files})
    for name in (*own, MANIFEST):
        _sync(beside / name)
    shutil.rmtree(target, ignore_errors=True)
    beside.rename(target)
    _sync(target.parent)


def load_shards(save: Path, box: Box) -> Tensors:
    """The parts (B, C, *box) of whole images, by name, on CPU; only what lies in the box is read.

    :param box: of any rank of any number of ranks.
    """
    made: Tensors = {}
    for path in sorted(save.glob(f"{SHARD}*.safetensors")):
        with safe_open(path, framework="pt") as file:
            held = tuple((start, stop) for start, stop in json.loads(file.metadata()["box"]))
            common = intersect(held, box)
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                lead = part.get_shape()[:2]
                if name not in made:
                    made[name] = part[:0].new_empty((*lead, *shape_of(box)))
                if common is not None:
                    made[name][slices(common, box, lead=2)] = part[slices(common, held, lead=2)]
    return made


@contextmanager
def _full_disk_by_name(folder: Path) -> Iterator[None]:
    """What torch and safetensors say of a full disk has no number, and torch's not even the words: the kernel is asked.

    :raises OSError: ENOSPC or EDQUOT, in place of theirs.
    """
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        for number in (errno.ENOSPC, errno.EDQUOT):
            if f"os error {number}" in str(error):
                raise OSError(number, os.strerror(number), str(folder)) from error
        # torch leaves its half of a file, and with it the disk as full as it was.
        (folder / ".probe").write_bytes(bytes(PROBE_BYTES))
        raise


def _plain(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def agreed_save(paths: RunPaths) -> tuple[int, Path] | None:
    """The newest save as rank 0 finds it, for every rank; a collective."""
    first = not dist.is_initialized() or dist.get_rank() == 0
    return told_by_first(newest_save(paths) if first else None)


def load_model(save: Path) -> Tensors:
    """Tensors of the model, on CPU."""
    tensors: Tensors = load_file(save / MODEL)
    return tensors


def load_state(save: Path) -> dict[str, Any]:
    """Everything else, on CPU, in torch's restricted mode: no code in the file is run."""
    state: dict[str, Any] = torch.load(save / STATE, map_location="cpu", weights_only=True)
    return state


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
