"""Freezes what a run is into its directory, before anything is submitted: spec, plan, environment, script, intent."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrain.records.faults import declared_faults
from dptrain.records.intent import Intent, write_intent, write_json
from dptrain.records.paths import RunPaths, runs_root
from dptrain.records.places import writing
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec, dump_spec

if TYPE_CHECKING:
    from dptrain.plan.plan import Plan

GIT_TIMEOUT_S = 10.0
OTHER_ROOT = "export DPTRAIN_RUNS=/a/folder/you/can/write"


def create_run(
    plan: Plan,
    loaded: LoadedSpec,
    profile: ClusterProfile,
    *,
    name: str | None = None,
    sweep: str | None = None,
    fingerprint: str | None = None,
    refusal: str | None = None,
    again: RunPaths | None = None,
    faults: str | None = None,
) -> RunPaths:
    """Make the run directory with everything the ranks and `status` need; nothing is submitted.

    :param name: what the run id begins with; default: the spec's name.
    :param refusal: why the run will not be submitted: it is there to be seen.
    :param again: a run that was made and never submitted: its folder is used.
    :param faults: what the run is to suffer (`dptrain.records.faults`); default: what the environment asks for.
    :raises UsageError: where the folder cannot be made, or where a fault is injected that nobody has allowed.
    """
    faults = declared_faults(os.environ, plan.world_size) if faults is None else faults
    paths = again or RunPaths(runs_root(profile.runs) / new_run_id(name or loaded.spec.name))
    where = f"runs: a folder that can be written, in profile {profile.name}" if profile.runs else OTHER_ROOT
    with writing("the run folder", paths.dir, where):
        if again is None:
            paths.create()
        write_plan(paths, plan, loaded)
    intent = Intent(
        run=paths.run_id,
        task=plan.task,
        launcher=profile.launcher,
        cluster=profile.name,
        world_size=plan.world_size,
        steps=plan.steps,
        created_s=time.time(),
        submission="submitting" if refusal is None else "refused",
        refusal=refusal,
        sweep=sweep,
        fingerprint=fingerprint,
        faults=faults,
    )
    write_intent(paths, intent)
    return paths


def write_plan(paths: RunPaths, plan: Plan, loaded: LoadedSpec) -> None:
    """Everything but the intent."""
    paths.spec.write_text(dump_spec(plan.spec), encoding="utf-8")
    write_json(paths.plan, plan.to_json())
    write_json(paths.environment, describe_environment(loaded))
    if plan.sbatch is not None:
        paths.submission.write_text(plan.sbatch, encoding="utf-8")
    else:
        paths.submission.unlink(missing_ok=True)


def new_run_id(name: str) -> str:
    """`<name>-<YYYYmmdd-HHMMSS>-<6 hex>`: sorts by time within a name, and two of one second differ."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def describe_environment(loaded: LoadedSpec) -> dict[str, Any]:
    """What is needed to repeat the run; no values of environment variables, which may be secrets."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "folder": str(Path.cwd()),
        "spec": str(loaded.path),
        "git": git_state(Path.cwd()),
        "versions": package_versions(),
    }


def package_versions() -> dict[str, str]:
    """Every installed distribution and its version, by name."""
    found = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {name: found[name] for name in sorted(found, key=str.lower) if name}


def git_state(folder: Path) -> dict[str, Any] | None:
    """{sha, dirty} of the repository the folder lies in; None where there is none, or no git."""
    sha = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain")
    return None if sha is None else {"sha": sha.strip(), "dirty": bool(status is None or status.strip())}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
