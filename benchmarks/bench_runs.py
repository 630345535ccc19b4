"""What the benchmarks share: run the command as a user would, and read what it left."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dptrain.records.events import read_events
from dptrain.records.paths import RunPaths

IMPORTS = "dptrain.engine.worker", "dptrain.engine.trainer", "dptrain.engine.reconstruct", "matplotlib.figure"
"""All that a rank imports."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that completed."""

    paths: RunPaths

    @property
    def result(self) -> dict[str, Any]:
        """result.json."""
        value: dict[str, Any] = json.loads(self.paths.result.read_text(encoding="utf-8"))
        return value

    def events(self, kind: str) -> list[list[dict[str, Any]]]:
        """Per rank, its events of one kind."""
        attempt = self.paths.attempt(1)
        logs = [attempt.rank_events(rank) for rank in range(self.result["world_size"])]
        return [[event for event in read_events(log) if event["kind"] == kind] for log in logs]

    @property
    def resident_peak_bytes(self) -> int:
        """Largest resident size that any of its ranks reached, set-up and output included."""
        return int(max(final["resident_peak_bytes"] for (final,) in self.events("final")))

    @property
    def step_s(self) -> float:
        """Median seconds of the slowest rank's steps without the first, which pays for warm-up."""
        seconds = [[event["seconds"] for event in rank] for rank in self.events("step")]
        return float(max(statistics.median(rank[1:] or rank) for rank in seconds))


def run_dptrain(task: str, ranks: int, spec: Path, runs: Path, overrides: Sequence[str] = ()) -> Finished:
    """Run the command on `ranks` local ranks with `runs`, not there yet, as its folder of runs."""
    command = [sys.executable, "-m", "dptrain.cli.main", task, str(spec), "--cluster", "local"]
    command += [word for change in (f"resources.gpus={ranks}", *overrides) for word in ("--set", change)]
    environment = {**os.environ, "DPTRAIN_RUNS": str(runs)}
    ended = subprocess.run(command, env=environment, cwd=runs.parent, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    (folder,) = runs.iterdir()
    done = Finished(paths=RunPaths(folder))
    if done.result["state"] != "completed" or done.result["world_size"] != ranks:
        raise SystemExit(f"{folder}: {done.result['state']} on {done.result['world_size']} ranks")
    return done


def import_baseline_bytes() -> int:
    """Resident peak of a process that has imported what a rank imports, and done nothing."""
    code = f"import {', '.join(IMPORTS)}; print(dptrain.engine.measure.resident_peak_bytes())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def machine() -> str:
    """What the numbers depend on."""
    model = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "CPU"
    )
    return f"{len(os.sched_getaffinity(0))} cores ({model}), torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n"
