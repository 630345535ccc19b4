"""The complete text of a batch script: what `plan` shows is, byte for byte, what sbatch gets.

The text depends on the profile and on the request only, never on the run directory: all its paths are relative, and sbatch is
called with `--chdir`. Nothing reaches a header line or the shell unchecked.
"""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Iterator

from dptrain.errors import UsageError
from dptrain.scheduler.requests import JobRequest
from dptrain.spec.cluster import EXTRA_SBATCH_KEYS, ClusterProfile

SETUP_FAILED = "dptrain: setup line failed with exit code"
"""Begins the line that the script prints to its log when a setup line fails; the line itself follows."""

JOB_BEGINS = "dptrain: the job begins"
"""The first line that the script prints to its log, at every start of the job."""
RANKS_START = "dptrain: the ranks are started"
"""The last one, after the setup lines: what srun says before it is about steps of theirs."""
JOB_BEGAN = "DPTRAIN_JOB_BEGAN_S"
"""Variable of the ranks: when the script began, seconds since the epoch; the time limit counts from about then."""

PICKLE_FOLDER = "submitit"
"""Relative to the folder the job runs in; submitit finds its pickled call there by job id."""

EXTRA_KEYS = frozenset(EXTRA_SBATCH_KEYS)
"""Keys `extra_sbatch` may hold. An empty value gives a line without `=`."""

_OWN_KEYS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "gres": "gpu_request: gres",
    "gpus-per-node": "gpu_request: gpus-per-node",
    "mem": "mem_per_node_gib",
    "mem-per-cpu": "mem_per_cpu_gib",
    "cpus-per-task": "cpus_per_task",
    "time": "resources.time_min in the spec",
    "nodes": "resources.gpus in the spec",
    "ntasks": "resources.gpus in the spec",
    "ntasks-per-node": "gpus_per_node",
    "signal": "run.signal_lead_s in the spec",
}
"""Keys that have a field of their own."""

_IDENTITY = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]&|*()!-]+")


def sbatch_script(profile: ClusterProfile, request: JobRequest) -> str:
    """The whole script.

    :raises UsageError: where the profile holds something that must not reach a header line or the shell.
    """
    lines = ["#!/bin/bash"]
    lines += [_header_line(profile, key, value) for key, value in _header(profile, request)]
    lines += ["", f"export {JOB_BEGAN}=$(date +%s)", f'echo "{JOB_BEGINS}" >&2']
    lines += _setup(profile)
    lines += _exports(profile)
    lines += ["", f'echo "{RANKS_START}" >&2', "exec " + _srun(profile)]
    return "\n".join(lines) + "\n"


def setup_failure(log: str) -> tuple[int, str] | None:
    """(exit code, setup line) from the text of a batch log, or None where no setup line failed. The newest one counts."""
    found = re.findall(rf"^{re.escape(SETUP_FAILED)} (\d+): (.*)$", log, flags=re.MULTILINE)
    return (int(found[-1][0]), found[-1][1]) if found else None


def interpreter_of(script: str) -> str | None:
    """The Python that a script of this module starts the ranks with."""
    words = shlex.split(script.rstrip().rpartition("\n")[2], comments=False)
    return words[words.index("-P") - 1] if "-P" in words[1:] else None


def _header(profile: ClusterProfile, request: JobRequest) -> Iterator[tuple[str, str]]:
    yield "job-name", request.name
    for key in ("partition", "account", "qos", "constraint"):
        value: str | None = getattr(profile, key)
        if value is not None:
            yield key, value
    yield "nodes", str(request.nodes)
    yield "ntasks-per-node", str(request.tasks_per_node)
    yield "cpus-per-task", str(profile.cpus_per_task)
    if profile.gpu_request == "gres":
        yield "gres", f"gpu:{request.tasks_per_node}"
    elif profile.gpu_request == "gpus-per-node":
        yield "gpus-per-node", str(request.tasks_per_node)
    yield from _memory(profile)
    yield "time", str(request.time_min)
    # Without `B:` the signal reaches the ranks and not this script. Not USR1: NCCL uses it.
    yield "signal", f"USR2@{request.signal_lead_s}"
    # A job that is followed by another must not come back itself, also not after a node has failed.
    yield ("requeue" if profile.restart == "requeue" else "no-requeue"), ""
    yield "open-mode", "append"
    if request.array is None:
        yield "output", "batch/batch-%j.log"
    else:
        limit = f"%{request.array.max_parallel}" if request.array.max_parallel else ""
        yield "array", f"0-{request.array.count - 1}{limit}"
        yield "output", "batch/batch-%A_%a.log"
    for key, value in profile.extra_sbatch.items():
        yield _extra_key(profile, key), value


def _memory(profile: ClusterProfile) -> Iterator[tuple[str, str]]:
    if profile.mem_per_cpu_gib is not None and profile.mem_per_node_gib is not None:
        raise UsageError(
            f"profile {profile.name}: mem_per_cpu_gib and mem_per_node_gib contradict each other\n    write: only one of them"
        )
    if profile.mem_per_cpu_gib is not None:
        yield "mem-per-cpu", _mib(profile.mem_per_cpu_gib)
    if profile.mem_per_node_gib is not None:
        yield "mem", _mib(profile.mem_per_node_gib)


def _mib(gib: float) -> str:
    return "0" if gib == 0 else f"{max(1, round(gib * 1024))}M"


def _extra_key(profile: ClusterProfile, key: str) -> str:
    if key in EXTRA_KEYS:
        return key
    where = f"profile {profile.name}: extra_sbatch: {key!r}"
    if key in _OWN_KEYS:
        raise UsageError(f"{where} has a field of its own\n    write: {_OWN_KEYS[key]}")
    near = difflib.get_close_matches(key, EXTRA_KEYS, n=1)
    raise UsageError(
        f"{where} is not a key that may be passed on\n    write: {near[0] if near else ', '.join(sorted(EXTRA_KEYS))}"
    )


def _header_line(profile: ClusterProfile, key: str, value: str) -> str:
    if not value:
        return f"#SBATCH --{key}"
    if _CONTROL.search(value) or "'" in value or '"' in value or "\\" in value:
        raise UsageError(f"profile {profile.name}: {key}: {value!r} holds a quote, a backslash or a control character")
    # sbatch splits header lines at blanks and ends them at `#`, and takes single quotes as the shell does.
    return f"#SBATCH --{key}={value}" if _PLAIN.fullmatch(value) else f"#SBATCH --{key}='{value}'"


def _setup(profile: ClusterProfile) -> Iterator[str]:
    if not profile.setup:
        return
    yield ""
    yield "# A setup line that fails, or leaves the script, ends the job before any rank starts."
    yield "# Only errexit: activation scripts break under nounset."
    words = f'echo "{SETUP_FAILED} $dptrain_code: $dptrain_setup" >&2'
    # A line such as `exit 0` must not make the job look well.
    yield f"trap 'dptrain_code=$?; {words}; [ $dptrain_code -ne 0 ] || exit 1' EXIT"
    yield "set -e"
    for line in profile.setup:
        if _CONTROL.search(line.replace("\t", " ")):
            raise UsageError(
                f"profile {profile.name}: setup: {line!r} holds a control character\n    write: one line per entry"
            )
        yield f"dptrain_setup={shlex.quote(line)}"
        yield line
    yield "set +e"
    yield "trap - EXIT"


def _exports(profile: ClusterProfile) -> Iterator[str]:
    values: dict[str, str] = {"OMP_NUM_THREADS": str(profile.cpus_per_task)}
    if profile.interface is not None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*", profile.interface):
            raise UsageError(
                f"profile {profile.name}: interface: {profile.interface!r} is not the name of one interface "
                f"(gloo knows neither lists nor exclusions)\n    write: interface: eth0"
            )
        values |= {"GLOO_SOCKET_IFNAME": profile.interface, "NCCL_SOCKET_IFNAME": f"={profile.interface}"}
    values |= profile.env
    yield ""
    # Identity comes from srun alone: a variable left by the submitting shell or a setup line would make every rank the same one.
    yield "unset " + " ".join(_IDENTITY)
    for name, value in values.items():
        _check_variable(profile, name, value)
        yield f"export {name}={shlex.quote(value)}"
    # Since 22.05 srun no longer inherits --cpus-per-task, and ranks would get one core each.
    yield f"export SRUN_CPUS_PER_TASK={profile.cpus_per_task}"
    yield "export SUBMITIT_EXECUTOR=slurm"
    yield "export SUBMITIT_LOG_LEVEL=WARNING"


def _check_variable(profile: ClusterProfile, name: str, value: str) -> None:
    where = f"profile {profile.name}: env: {name!r}"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"{where} is not the name of a variable")
    if name in _IDENTITY or name.startswith(("SLURM_", "SUBMITIT_")):
        raise UsageError(f"{where} is set by the scheduler for every rank and must not be set here")
    if _CONTROL.search(value):
        raise UsageError(f"{where}: its value {value!r} holds a control character")


def _srun(profile: ClusterProfile) -> str:
    words = ["srun", "--kill-on-bad-exit=1", "--wait=60", f"--cpus-per-task={profile.cpus_per_task}", "--label"]
    words += profile.command_prefix
    words += [profile.python or sys.executable, "-P", "-u", "-m", "submitit.core._submit", PICKLE_FOLDER]
    for word in words:
        if _CONTROL.search(word):
            raise UsageError(f"profile {profile.name}: command_prefix or python: {word!r} holds a control character")
    return shlex.join(words)
