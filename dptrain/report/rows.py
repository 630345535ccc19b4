"""Runs as flat rows: one row per run, one column per number and per key of its spec, plan and environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dptrain.records.paths import RunPaths
from dptrain.report.runs import Row, Run, flatten, load_runs
from dptrain.status.model import RunStatus
from dptrain.status.show import number, size

TABLE_HEADER = ("RUN", "TASK", "STATE", "RANKS", "LAYOUT", "STEPS", "PSNR dB", "SSIM", "LOSS", "S/STEP", "PEAK")
"""PSNR before and after; SSIM and loss at the end; the median time of a step; the largest peak of a rank."""
NO_COLUMNS = ("sbatch", "choices", "overrides", "reasons", "task", "steps", "world_size", "layout")
"""Of the plan: long texts, and what has a column already."""
PACKAGES = ("torch", "deepinv", "numpy", "dptrain")
"""Whose versions are columns; environment.json has all of them."""


def result_rows(runs: Sequence[RunPaths], statuses: Sequence[RunStatus]) -> list[Row]:
    """One row per run, in the order given."""
    return [row_of(run) for run in load_runs(runs, statuses)]


def row_of(run: Run) -> Row:
    """Every number that is known of a run."""
    status, steps = run.status, sorted(run.steps_s)
    psnr, loss, ssim = (run.entries(key) for key in ("psnr_db", "loss", "ssim"))
    return {
        "run": status.run,
        "state": status.state,
        "task": status.task,
        "step": status.step,
        "steps": status.steps,
        "world_size": status.world_size,
        "psnr_db_first": psnr[0] if psnr else None,
        "psnr_db_last": psnr[-1] if psnr else status.psnr_db,
        "ssim_first": ssim[0] if ssim else None,
        "ssim_last": ssim[-1] if ssim else None,
        "loss_first": loss[0] if loss else None,
        "loss_last": loss[-1] if loss else status.loss,
        "step_time_s": run.step_s,
        "step_time_min_s": steps[0] if steps else None,
        "step_time_max_s": steps[-1] if steps else None,
        **{f"section_{key}_s": value for key, value in run.sections.items()},
        "peak_memory_bytes_max": run.peak_bytes,
        "bytes_sent_max": max(run.numbers("bytes_sent"), default=None),
        "attempt": status.attempt,
        "failure": _first_line(status.failure.message) if status.failure else None,
        "failure_class": status.failure.kind if status.failure else None,
        "run_dir": status.run_dir,
        **{f"spec.{key}": value for key, value in run.spec.items()},
        **{f"plan.{key}": value for key, value in flatten(_plan(run)).items()},
        **{f"environment.{key}": value for key, value in _environment(run).items()},
    }


def table_row(row: Row) -> tuple[str, ...]:
    """The numbers of a row that answer how it went, under TABLE_HEADER."""
    psnr = (row["psnr_db_first"], row["psnr_db_last"])
    return (
        row["run"],
        row["task"] or "-",
        row["state"],
        str(row["world_size"]),
        str(row.get("spec.resources.layout", "-")),
        f"{row['step']}/{row['steps']}",
        " -> ".join(format(value, ".2f") for value in psnr if value is not None) or "-",
        number(row["ssim_last"], ".3f"),
        number(row["loss_last"], ".4g"),
        number(row["step_time_s"], ".3g"),
        size(row["peak_memory_bytes_max"]),
    )


def _first_line(text: str) -> str | None:
    return next(iter(text.strip().splitlines()), None)


def _plan(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.plan.items() if key not in NO_COLUMNS}


def _environment(run: Run) -> dict[str, Any]:
    found, versions = run.environment, run.environment.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    git = found.get("git") if isinstance(found.get("git"), dict) else {}
    return {
        **{key: found.get(key) for key in ("python", "platform", "host")},
        "device": run.start.get("device"),
        **{f"git.{key}": (git or {}).get(key) for key in ("sha", "dirty")},
        **{f"versions.{name}": versions.get(name) for name in PACKAGES},
    }
