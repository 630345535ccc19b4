"""Which runs may be compared: those whose specs, cluster and device differ in nothing but what a figure varies.

Of several completed runs that are alike the newest counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from dptrain.report.runs import Run

RANKS = ("resources.gpus",)
HOW = (*RANKS, "resources.layout", "tiling.max_batch_size", "tiling.checkpoint")
"""Keys that say how a result is computed and must not change it."""
SAME_PIXELS = 0.02
"""Runs of a weak-scaling ladder have so nearly as many pixels per rank."""
NAMES = {
    "problem.image_size": "image",
    "resources.gpus": "ranks",
    "resources.layout": "layout",
    "tiling.patch": "patch",
    "tiling.halo": "halo",
    "tiling.max_batch_size": "batch",
    "tiling.checkpoint": "checkpoint",
    "algorithm.name": "algorithm",
    "algorithm.iterations": "iterations",
    "denoiser.name": "denoiser",
    "problem.physics.name": "physics",
    "resources.precision": "precision",
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """Comparable runs, by what the figure varies."""

    label: str
    """What tells it from the others of the figure."""
    runs: tuple[Run, ...]


def completed(runs: Iterable[Run]) -> list[Run]:
    """Runs that a figure may show."""
    return [run for run in runs if run.completed]


def series(runs: Sequence[Run], without: Sequence[str], by: Callable[[Run], Any], least: int = 2) -> list[Series]:
    """Groups of completed runs that are alike but for some keys, each sorted by `by`, one run per value of it.

    :param without: keys that may differ.
    :param by: what the figure varies; runs where it is None are left out.
    :param least: groups with fewer values are left out.
    """
    groups: dict[str, dict[Any, Run]] = {}
    for run in sorted(completed(runs), key=lambda run: run.status.created_s):
        if (value := by(run)) is not None:
            groups.setdefault(run.setting(without, asked=True), {})[value] = run
    found = [tuple(group[value] for value in sorted(group, key=_order)) for group in groups.values()]
    return labelled([group for group in found if len(group) >= least], without)


def labelled(groups: Sequence[tuple[Run, ...]], without: Sequence[str] = ()) -> list[Series]:
    """Name groups by the keys in which their first runs differ."""
    texts = labels([group[0] for group in groups], without)
    return [Series(label=text, runs=group) for text, group in zip(texts, groups, strict=True)]


def labels(runs: Sequence[Run], without: Sequence[str] = ()) -> list[str]:
    """What tells each run from the others: as few keys as do; where there is none, the image and the layout."""
    left_out = ("name", "resources.time_min", *without)
    asked = [run.asked for run in runs]
    every = dict.fromkeys(k for spec in asked for k in spec)
    keys = [k for k in (*NAMES, *(k for k in every if k not in NAMES)) if k not in left_out and k[:4] != "run."]
    shown: list[str] = []
    apart = 1
    for key in keys:
        marks = {json.dumps([spec.get(k) for k in (*shown, key)], default=str) for spec in asked}
        if len(marks) > apart:
            shown.append(key)
            apart = len(marks)
    shown = shown or [k for k in ("problem.image_size", "resources.layout") if k not in without]
    texts = [", ".join(_named(k, spec[k]) for k in shown if k in spec) for spec in asked]
    texts = [text or run.name for text, run in zip(texts, runs, strict=True)]
    return [text if texts.count(text) == 1 else f"{text} ({run.name})" for text, run in zip(texts, runs, strict=True)]


def ladders(runs: Sequence[Run]) -> list[Series]:
    """Weak-scaling ladders: runs alike but for image and ranks, in which a rank has as many pixels in all of them."""
    groups: dict[str, list[Run]] = {}
    without = ("problem.image_size", *RANKS)
    for run in sorted(completed(runs), key=lambda run: (pixels_per_rank(run) or 0, run.status.created_s)):
        if pixels_per_rank(run) is not None:
            groups.setdefault(run.setting(without, asked=True), []).append(run)
    found = []
    for group in groups.values():
        for step in _alike(group):
            by_ranks = {run.ranks: run for run in step}
            if len(by_ranks) > 1:
                found.append(tuple(by_ranks[ranks] for ranks in sorted(by_ranks)))
    texts = labels([group[0] for group in found], without)
    return [
        Series(label=f"{pixels_per_rank(group[0]):,.0f} pixels a rank, {text}", runs=group)
        for text, group in zip(texts, found, strict=True)
    ]


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs, by ascending pixels per rank, cut where that number has grown by more than the tolerance."""
    steps: list[list[Run]] = []
    for run in runs:
        if steps and (pixels_per_rank(run) or 0) <= (pixels_per_rank(steps[-1][0]) or 0) * (1 + SAME_PIXELS):
            steps[-1].append(run)
        else:
            steps.append([run])
    return steps


def pixels_per_rank(run: Run) -> float | None:
    """Pixels of the image over ranks; None where the image is not known."""
    return None if run.image_size is None else prod(run.image_size) / run.ranks


def newest_by(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, Run]:
    """Key -> the newest of the completed runs that have it; each run's key is asked for once."""
    return {key(run): run for run in sorted(completed(runs), key=lambda run: run.status.created_s)}


def untiled_by(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, Run]:
    """`newest_by` of the runs on one rank without tiles."""
    return newest_by((run for run in runs if run.untiled and run.ranks == 1), key)


def problem_of(run: Run) -> str:
    """What a run shares with those that reach the same result without tiles, in any layout."""
    return run.setting(("tiling.", *RANKS, "resources.layout"))


def work_of(run: Run) -> str:
    """`problem_of`, and what a step recomputes: more work per pixel is not the price of tiles."""
    return f"{problem_of(run)} {run.recomputation}"


def _named(key: str, value: Any) -> str:
    if isinstance(value, list):
        value = "x".join(str(v) for v in value)
    if key in ("resources.layout", "algorithm.name", "denoiser.name", "problem.physics.name"):
        return str(value)
    if key == "tiling.patch" and value == "none":
        return "untiled"
    return f"{NAMES.get(key, key)} {value}"


def _order(value: Any) -> tuple[bool, Any]:
    return (isinstance(value, str), value)
