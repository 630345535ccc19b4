"""Checks of this machine and of a cluster profile before the first submission. Every finding says what to do about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dptrain.errors import UsageError
from dptrain.launch.cluster import choose_cluster, controller_answers
from dptrain.records.paths import runs_root
from dptrain.scheduler.commands import NoAnswer, run_command
from dptrain.scheduler.requests import JobRequest
from dptrain.scheduler.sbatch import sbatch_script
from dptrain.scheduler.submit import test_only
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.schema import Spec

GIB = 2**30
RANK_MEMORY_GIB = 1.0
"""What one rank takes before it holds any image: torch and deepinv are imported."""
LOW_DISK_GIB = 5.0
LOW_SHM_GIB = 0.5
IMPORT_TIMEOUT_S = 180.0
CLIENTS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun")

_PROBE = """
import json, torch, deepinv
from importlib.metadata import version
cuda = torch.cuda.is_available()
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())] if cuda else []
print(json.dumps({"torch": version("torch"), "deepinv": version("deepinv"),
                  "gpus": [[g.name, g.total_memory / 2**30] for g in gpus]}))
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    level: Literal["ok", "warn", "fail"]
    name: str
    found: str
    advice: str = ""
    """What to do; empty where nothing needs to be done."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(cluster: str | None) -> list[Finding]:
    """Everything, the machine first. A wrong profile is a finding, not an error."""
    findings = [*_python(), *_machine(), *_runs_folder(runs_root())]
    try:
        profile, reason = choose_cluster(cluster, Spec(name="doctor"))
    except UsageError as error:
        said = str(error).removeprefix("cluster profile: ")
        return [*findings, Finding(level="fail", name="cluster profile", found=said)]
    findings.append(Finding(level="ok", name="cluster profile", found=f"{profile.name} ({profile.launcher}): {reason}"))
    if profile.runs:
        findings += _runs_folder(Path(profile.runs).expanduser().absolute())
    if profile.launcher == "slurm":
        return [*findings, *_slurm(profile)]
    silent = controller_answers()
    return [
        *findings,
        Finding(level="ok", name="SLURM controller", found=silent or "answers; this profile runs locally"),
    ]


def _python() -> Iterator[Finding]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE], capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        advice = "a slow file system? put the environment on a local or cached one"
        found = f"importing torch took longer than {IMPORT_TIMEOUT_S:.0f} s"
        yield Finding(level="fail", name="python", found=found, advice=advice)
        return
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding(
            level="fail", name="python", found=f"{sys.executable}: {last}", advice="install dptrain into this Python"
        )
        return
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    versions = f"{sys.version.split()[0]}, torch {seen['torch']}, deepinv {seen['deepinv']}"
    yield Finding(level="ok", name="python", found=f"{versions} ({sys.executable})")
    gpus = [f"{name} ({gib:.0f} GiB)" for name, gib in seen["gpus"]]
    yield Finding(level="ok", name="gpus", found=", ".join(gpus) or "none: local ranks are CPU processes")


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding(level="ok", name="cores", found=f"{cores} for this process")
    available = _available_memory_gib()
    if available is not None:
        ranks = int(available // RANK_MEMORY_GIB)
        advice = "" if ranks >= 2 else "close other programs, or run with resources.gpus: 1"
        found = f"{available:.1f} GiB available; about {RANK_MEMORY_GIB:.0f} GiB per CPU rank before any image"
        yield Finding(level="warn" if advice else "ok", name="memory", found=found, advice=advice)
    shm = Path("/dev/shm")
    if shm.is_dir():
        free = shutil.disk_usage(shm).free / GIB
        advice = (
            ""
            if free >= LOW_SHM_GIB
            else "GPU ranks of one host exchange data there: start the container with --shm-size=2g"
        )
        yield Finding(level="warn" if advice else "ok", name="/dev/shm", found=f"{free:.1f} GiB free", advice=advice)


def _available_memory_gib() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    kib = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else kib / 2**20


def _runs_folder(folder: Path) -> Iterator[Finding]:
    there = next(p for p in (folder, *folder.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        advice = "write: export DPTRAIN_RUNS=<a folder that compute nodes can write>"
        yield Finding(level="fail", name="runs folder", found=f"{folder}: {error.strerror}", advice=advice)
        return
    free = shutil.disk_usage(there).free / GIB
    advice = "" if free >= LOW_DISK_GIB else "saves and results go there: make room, or set DPTRAIN_RUNS"
    found = f"{folder}: writable, {free:.1f} GiB free"
    yield Finding(level="warn" if advice else "ok", name="runs folder", found=found, advice=advice)


def _slurm(profile: ClusterProfile) -> Iterator[Finding]:
    missing = [name for name in CLIENTS if shutil.which(name) is None]
    if missing:
        advice = "run dptrain where jobs can be submitted, or write: --cluster local"
        yield Finding(level="fail", name="SLURM commands", found=f"not found: {', '.join(missing)}", advice=advice)
        return
    yield Finding(level="ok", name="SLURM commands", found=", ".join(CLIENTS))
    silent = controller_answers()
    if silent is not None:
        advice = "check SLURM_CONF and that slurmctld and munge run"
        yield Finding(level="fail", name="SLURM controller", found=silent, advice=advice)
        return
    yield Finding(level="ok", name="SLURM controller", found="answers")
    yield from _partition(profile)
    yield from _test_submission(profile)


def _partition(profile: ClusterProfile) -> Iterator[Finding]:
    try:
        answer = run_command(["sinfo", "--noheader", "--format=%R"])
    except NoAnswer as error:
        yield Finding(level="fail", name="partition", found=str(error), advice="try again")
        return
    names = sorted(set(answer.out.split()))
    if profile.partition is None:
        found = f"the profile names none, so SLURM's default is used; there are: {', '.join(names)}"
        yield Finding(level="ok", name="partition", found=found)
        return
    unknown = [name for name in profile.partition.split(",") if name not in names]
    advice = (
        f"write in the profile: partition: {names[0] if names else '...'}   (there are: {', '.join(names)})"
        if unknown
        else ""
    )
    found = f"not known to SLURM: {', '.join(unknown)}" if unknown else profile.partition
    yield Finding(level="fail" if unknown else "ok", name="partition", found=found, advice=advice)


def _test_submission(profile: ClusterProfile) -> Iterator[Finding]:
    # A full node, as runs ask for: one rank fits where its node may not.
    ranks = profile.gpus_per_node
    request = JobRequest(name="doctor", nodes=1, tasks_per_node=ranks, world_size=ranks, time_min=5, signal_lead_s=60)
    name = "sbatch --test-only"
    try:
        said = test_only(sbatch_script(profile, request), Path.cwd())
    except UsageError as error:
        yield Finding(level="fail", name=name, found=str(error), advice="correct the profile")
        return
    if said.accepted:
        yield Finding(level="ok", name=name, found=said.words or "accepted")
    else:
        advice = "correct the profile" if said.accepted is False else "try again"
        yield Finding(level="fail", name=name, found=said.words, advice=advice)
