"""What the benchmarks share: run the command as a user would, and read what it left and how much memory its ranks took."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dptrain.records.events import read_events
from dptrain.records.paths import RunPaths

POLL_S = 0.05
IMPORTS = "dptrain.engine.worker", "dptrain.engine.trainer", "dptrain.engine.reconstruct", "matplotlib.figure"
"""All that a rank imports."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that completed."""

    paths: RunPaths
    resident_peak_bytes: int
    """Largest resident size that any of its ranks reached, from start to end."""

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
    def step_s(self) -> float:
        """Median seconds of the slowest rank's steps without the first, which pays for warm-up."""
        seconds = [[event["seconds"] for event in rank] for rank in self.events("step")]
        return float(max(statistics.median(rank[1:] or rank) for rank in seconds))


def run_dptrain(task: str, ranks: int, spec: Path, runs: Path, overrides: Sequence[str] = ()) -> Finished:
    """Run the command on `ranks` local ranks with `runs`, not there yet, as its folder of runs."""
    command = [sys.executable, "-m", "dptrain.cli.main", task, str(spec), "--cluster", "local"]
    command += [word for change in (f"resources.gpus={ranks}", *overrides) for word in ("--set", change)]
    environment = {**os.environ, "DPTRAIN_RUNS": str(runs)}
    with (runs.parent / f"{runs.name}.log").open("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=runs.parent)
        peak, pids = 0, set[int]()
        while process.poll() is None:
            if len(pids) < ranks:
                pids |= rank_pids(runs)
            peak = max(peak, *(resident_peak_bytes(pid) for pid in pids), 0)
            time.sleep(POLL_S)
        if process.returncode != 0:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{log.read()}")
    (folder,) = runs.iterdir()
    done = Finished(paths=RunPaths(folder), resident_peak_bytes=peak)
    if done.result["state"] != "completed" or done.result["world_size"] != ranks:
        raise SystemExit(f"{folder}: {done.result['state']} on {done.result['world_size']} ranks")
    return done


def rank_pids(runs: Path) -> set[int]:
    """Processes of the ranks, from the events they have written so far."""
    return {
        e["pid"] for log in runs.glob("*/attempts/1/rank-*.jsonl") for e in read_events(log) if e["kind"] == "start"
    }


def resident_peak_bytes(pid: int) -> int:
    """Largest resident size of a live process so far; 0 for one that is gone.

    The kernel keeps this peak per program, whereas `ru_maxrss` starts with that of the process that started it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def import_baseline_bytes() -> int:
    """Resident peak of a process that has imported what a rank imports, and done nothing."""
    code = f"import {', '.join(IMPORTS)}, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return resident_peak_bytes(process.pid)


def machine() -> str:
    """What the numbers depend on."""
    model = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "CPU"
    )
    return f"{len(os.sched_getaffinity(0))} cores ({model}), torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n"
