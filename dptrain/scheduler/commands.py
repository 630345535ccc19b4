"""Runs the scheduler's commands: in a cleaned environment, with a time limit, and with "it did not answer" as its own case."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

QUERY_TIMEOUT_S = 20.0
"""Limit for commands that only ask; squeue itself gives up on a dead controller after about as long."""

KEPT = frozenset({"SLURM_CONF", "SLURM_JWT"})
"""How a client finds and convinces its controller: removing these as well leaves sbatch without a cluster."""

_RANK_VARIABLES = """
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE NODE_RANK ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE
    MASTER_ADDR MASTER_PORT DPTRAIN_ATTEMPT DPTRAIN_FIRST_ATTEMPT DPTRAIN_JOB_ID DPTRAIN_JOB_BEGAN_S SUBMITIT_EXECUTOR SUBMITIT_FOLDER
"""
RANK_VARIABLES = frozenset(_RANK_VARIABLES.split())
"""What tells a process which rank it is; inherited from an outer job it would be wrong."""

_RANK_PREFIXES = ("TORCHELASTIC_", "PMI_", "PMIX_", "PMI2_", "OMPI_")
_SCHEDULER_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SINFO_")
_DEVICES = frozenset({"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"})


_NO_SLURM = re.compile(r"is not installed|configuration (file|source)|cannot stat file", re.IGNORECASE)


def says_no_slurm(words: str) -> bool:
    """Whether a command's words mean that this machine belongs to no cluster: no programs, or no configuration."""
    return _NO_SLURM.search(words) is not None


class NoAnswer(Exception):
    """A scheduler command is not installed, or nobody answered it. Says nothing about any job."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command printed."""

    exit_code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """stderr, or stdout where that is empty: what to quote."""
        return self.err.strip() or self.out.strip()


def without_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what an outer job says about ranks."""
    return {k: v for k, v in environ.items() if k not in RANK_VARIABLES and not k.startswith(_RANK_PREFIXES)}


def without_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without any outer job: inside an allocation, sbatch would take its node counts from `SLURM_*`.

    `SBATCH_*` goes too: it would silently beat the lines of the script, which are what `plan` has shown.
    """
    cleaned = without_rank(environ)
    return {
        k: v for k, v in cleaned.items() if k in KEPT or (k not in _DEVICES and not k.startswith(_SCHEDULER_PREFIXES))
    }


def run_command(
    words: Sequence[str],
    *,
    timeout_s: float = QUERY_TIMEOUT_S,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
    stdin: str = "",
    fds: Sequence[int] = (),
) -> Answer:
    """Run one command to its end.

    :param extra: variables added to the cleaned environment.
    :param stdin: text the command reads.
    :param fds: file descriptors that the command gets, too.
    :raises NoAnswer: where the command is not installed or takes longer than `timeout_s`.
    """
    env = {**without_job(os.environ), "LC_ALL": "C", **(extra or {})}
    try:
        done = subprocess.run(
            list(words),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            cwd=cwd,
            env=env,
            input=stdin,
            pass_fds=fds,
            check=False,
        )
    except FileNotFoundError:
        raise NoAnswer(f"{words[0]} is not installed") from None
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace").strip() if isinstance(error.stderr, bytes) else ""
        last = f": {said.splitlines()[-1]}" if said else ""
        raise NoAnswer(f"{words[0]} did not answer within {timeout_s:.0f} s{last}") from None
    return Answer(exit_code=done.returncode, out=done.stdout, err=done.stderr)
