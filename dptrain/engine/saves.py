"""Saves: what training or an interrupted reconstruction needs to go on. (The word checkpoint means activation checkpointing.)

A save is a folder `saves/step-<n>/` with `model.safetensors`, `state.pt` (read in torch's restricted mode) and `manifest.json`
(sizes and SHA-256 of the others). It is written beside, flushed to disk and renamed by rank 0: complete or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from dptrain.records.intent import write_json
from dptrain.records.paths import RunPaths

MODEL, STATE, MANIFEST = "model.safetensors", "state.pt", "manifest.json"


def rng_states() -> list[dict[str, torch.Tensor]]:
    """RNG of every rank, in rank order; a collective."""
    mine = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        mine["cuda"] = torch.cuda.get_rng_state()
    if not dist.is_initialized():
        return [mine]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def restore_rng(states: list[dict[str, torch.Tensor]], rank: int) -> None:
    """Set this rank's RNG from a save; a save of another number of ranks leaves ranks beyond it as they are."""
    if rank < len(states):
        torch.set_rng_state(states[rank]["cpu"])
        if "cuda" in states[rank] and torch.cuda.is_available():
            torch.cuda.set_rng_state(states[rank]["cuda"])


def write_save(paths: RunPaths, step: int, model: dict[str, torch.Tensor], state: dict[str, Any], keep: int) -> None:
    """Write one save, then remove all but the newest `keep`. Rank 0 only.

    :param model: name -> tensor.
    :param state: plain containers, numbers, strings and tensors only.
    :raises OSError: a full disk; what was written beside is removed, earlier saves stay.
    """
    target = paths.save(step)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        save_file({k: v.detach().cpu().contiguous() for k, v in model.items()}, beside / MODEL)
        torch.save(state, beside / STATE)
        files = {
            name: {"bytes": (beside / name).stat().st_size, "sha256": _digest(beside / name)} for name in (MODEL, STATE)
        }
        write_json(beside / MANIFEST, {"step": step, "files": files})
        for name in (MODEL, STATE, MANIFEST):
            _sync(beside / name)
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
        _sync(paths.saves)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in save_steps(paths)[:-keep]:
        shutil.rmtree(paths.save(old))


def save_steps(paths: RunPaths) -> list[int]:
    """Steps that have a save, ascending; not yet verified."""
    return sorted(int(p.name[5:]) for p in paths.saves.glob("step-*") if p.name[5:].isdigit())


def newest_save(paths: RunPaths) -> tuple[int, Path] | None:
    """The newest save whose files have the sizes and checksums of its manifest; a broken newer one is named and skipped."""
    for step in reversed(save_steps(paths)):
        problem = _problem(paths.save(step))
        if problem is None:
            return step, paths.save(step)
        print(f"save of step {step} is skipped: {problem}", flush=True)
    return None


def load_model(save: Path) -> dict[str, torch.Tensor]:
    """Tensors of the model, on CPU."""
    tensors: dict[str, torch.Tensor] = load_file(save / MODEL)
    return tensors


def load_state(save: Path) -> dict[str, Any]:
    """Everything else, on CPU, in torch's restricted mode: no code in the file is run."""
    state: dict[str, Any] = torch.load(save / STATE, map_location="cpu", weights_only=True)
    return state


def _problem(save: Path) -> str | None:
    try:
        files = json.loads((save / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, entry in files.items():
            if (save / name).stat().st_size != entry["bytes"]:
                return f"{name} has {(save / name).stat().st_size} bytes, the manifest says {entry['bytes']}"
            if _digest(save / name) != entry["sha256"]:
                return f"{name} does not have the manifest's checksum"
    except (OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
