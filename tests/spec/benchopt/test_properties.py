"""Coupled keys: the runs of a file are the product of its axes, however its parameters are spread over them."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dptrain.spec.load import parse_spec
from dptrain.spec.sweep import expand
from tests.spec.benchopt.files import converted

ONE_RANK: dict[str, list[Any]] = {
    "distribute_denoiser": [True, False],
    "slurm_nodes": [1],
    "slurm_ntasks_per_node": [1],
}
RANKS: dict[str, list[Any]] = {
    "distribute_denoiser": [True],
    "slurm_nodes": [1, 2, 3],
    "slurm_ntasks_per_node": [1, 2, 4],
}
OTHERS: dict[str, list[Any]] = {
    "patch_size": [64, 96],
    "overlap": [4, 8],
    "max_batch_size": [0, 1, 4],
    "denoiser_sigma": [0.01, 0.05],
    "step_size": [0.1, None],
    "profiler_mode": ["custom", "torch"],
}
Axes = list[tuple[tuple[str, ...], list[list[Any]]]]


@st.composite
def axes_of(draw: st.DrawFn) -> Axes:
    """Every parameter once, in groups of any size and order, each with one to three rows."""
    domain = draw(st.sampled_from([ONE_RANK, RANKS])) | OTHERS
    keys = draw(st.permutations(sorted(domain)))
    cuts = sorted({0, len(keys), *draw(st.lists(st.integers(1, len(keys) - 1), max_size=len(keys)))})
    groups = [tuple(keys[a:b]) for a, b in itertools.pairwise(cuts)]
    row = {group: st.tuples(*(st.sampled_from(domain[key]) for key in group)).map(list) for group in groups}
    return [(group, draw(st.lists(row[group], min_size=1, max_size=3))) for group in groups]


def text_of(axes: Axes) -> str:
    lines = [
        f"    {', '.join(keys)}: {json.dumps([r[0] for r in rows] if len(keys) == 1 else rows)}" for keys, rows in axes
    ]
    head = "dataset: [{simulated: {image_size: 256, num_operators: 2}}]\nsolver:\n- PnP:\n    init_method: zeros\n"
    return head + "\n".join(lines) + "\nmax-runs: 2\n"


def runs_of(axes: Axes) -> set[tuple[Any, ...]]:
    """What benchopt would run, in the words of a spec."""
    runs = set()
    for rows in itertools.product(*(rows for _, rows in axes)):
        p = {
            key: value for (keys, _), row in zip(axes, rows, strict=True) for key, value in zip(keys, row, strict=True)
        }
        tiles = (p["patch_size"], p["overlap"], p["max_batch_size"] or "fit")
        if not p["distribute_denoiser"]:
            tiles = ("none", 0, 1)
        mode = p["profiler_mode"]
        gpus = p["slurm_nodes"] * p["slurm_ntasks_per_node"]
        runs.add((gpus, *tiles, p["denoiser_sigma"], p["step_size"] or "auto", mode))
    return runs


@given(axes_of())
def test_the_members_are_the_runs(axes: Axes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = converted(Path(folder), text_of(axes))
        loaded = made.load()
        assert parse_spec(made.spec_text(), "again.yaml", Path(folder)).spec == loaded.spec
    members = [m.spec for m in expand(loaded.spec)]
    seen = [
        (
            m.resources.gpus,
            m.tiling.patch,
            m.tiling.halo,
            m.tiling.max_batch_size,
            m.algorithm.sigma,
            m.algorithm.step_size,
            m.run.measure,
        )
        for m in members
    ]
    assert set(seen) == runs_of(axes) and len(seen) == len(set(seen))


@given(st.dictionaries(st.from_regex(r"[a-z]{3,8}_[a-z]{2,6}", fullmatch=True), st.integers(0, 9), max_size=5))
def test_no_key_is_dropped_silently(extra: dict[str, int]) -> None:
    known = {*ONE_RANK, *RANKS, *OTHERS, "init_method", "image_size", "noise_level", "num_operators", "batch_size"}
    names = [key for key in extra if key not in known]
    for place in ("dataset", "solver", ""):
        text = text_of([(("denoiser_sigma",), [[0.05]])])
        if place == "dataset":
            text = text.replace(
                "num_operators: 2", ", ".join(["num_operators: 2", *(f"{k}: {extra[k]}" for k in names)])
            )
        elif place == "solver":
            text = text.replace("zeros\n", "zeros\n" + "".join(f"    {k}: {extra[k]}\n" for k in names))
        else:
            text += "".join(f"{k}: {extra[k]}\n" for k in names)
        with tempfile.TemporaryDirectory() as folder:
            made = converted(Path(folder), text)
        listed = {(r["key"], r["value"]) for r in made.unmapped}
        prefix = f"{place}." if place else ""
        assert {(prefix + (k if place else k.replace("_", "-")), str(extra[k])) for k in names} <= listed
