"""sbatch: hand over a script and get a job id, or the scheduler's own words.

A submission that seems to have failed may have been accepted (the controller was slow to answer). Every submission therefore has
a unique comment, which is looked up before it is called failed; nothing here submits twice.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dptrain.errors import StateUnknown, SubmissionRejected
from dptrain.scheduler.commands import NoAnswer, run_command, says_no_slurm
from dptrain.scheduler.query import find_by_comment

SUBMIT_TIMEOUT_S = 120.0
LOOK_UP_S = (0.0, 1.0, 3.0, 6.0)
"""Pauses before each look for a submission that got no clear answer: the controller may still be at it."""
NO_SLURM_ADVICE = "\n    write: dptrain doctor, which says what is missing here; or --cluster local"
_UNCLEAR = re.compile(
    r"timed out|did not answer|Unable to contact|Connection refused|Zero Bytes|Communication|Transport", re.I
)


@dataclass(frozen=True, kw_only=True)
class TestOnly:
    """What `sbatch --test-only` said."""

    __test__ = False  # not a test class

    accepted: bool | None
    """None: nobody answered, or this machine belongs to no cluster."""
    words: str
    """SLURM's own."""


@dataclass(frozen=True, kw_only=True)
class ArrayLimits:
    """How large an array the controller takes."""

    max_count: int
    """Members of one array; below 2: arrays are switched off."""


def submit_script(
    script: Path, *, chdir: Path, comment: str, options: Sequence[str] = (), fds: Sequence[int] = ()
) -> str:
    """Submit a script file; the job id.

    :param chdir: the folder the job runs in; the script's relative paths begin here.
    :param comment: unique; what the job is looked up by when sbatch gives no clear answer.
    :param options: further options of sbatch.
    :param fds: file descriptors that sbatch keeps open, such as those of locks.
    :raises SubmissionRejected: with SLURM's words; no job exists.
    :raises StateUnknown: neither sbatch nor squeue answered: a job may exist.
    """
    words = ["sbatch", f"--chdir={chdir}", f"--comment={comment}", *options, str(script)]
    try:
        answer = run_command(words, timeout_s=SUBMIT_TIMEOUT_S, fds=fds)
    except NoAnswer as error:
        problem = str(error)
        if "not installed" in problem:
            raise SubmissionRejected(f"{problem} on this machine{NO_SLURM_ADVICE}") from None
    else:
        match = re.search(r"^Submitted batch job (\d+)", answer.out, flags=re.MULTILINE)
        if answer.exit_code == 0 and match:
            return match[1]
        problem = answer.words or f"sbatch ended with exit code {answer.exit_code}"
    accepted = _look_up(comment, problem)
    if accepted is not None:
        return accepted
    advice = NO_SLURM_ADVICE if says_no_slurm(problem) else ""
    raise SubmissionRejected(problem + advice + _unused_variables())


def _look_up(comment: str, problem: str) -> str | None:
    """The job that was accepted although sbatch failed, or None where there is none."""
    unclear = _UNCLEAR.search(problem) is not None
    for pause_s in LOOK_UP_S if unclear else LOOK_UP_S[:1]:
        time.sleep(pause_s)
        try:
            found = find_by_comment(comment)
        except NoAnswer as error:
            if unclear:
                raise StateUnknown(
                    f"sbatch gave no clear answer ({problem}), and squeue neither ({error}): the job may have been accepted\n"
                    f"    look for it before submitting again: squeue --me --Format=JobID,Comment:80   (comment: {comment})"
                ) from None
            return None
        if found is not None:
            return found
    return None


def _unused_variables() -> str:
    names = sorted(k for k in os.environ if k.startswith("SBATCH_"))
    if not names:
        return ""
    return f"\n    {', '.join(names)} set in this shell are not used: write the value in the cluster profile"


def test_only(script: str, cwd: Path | None = None) -> TestOnly:
    """Ask whether the script would be accepted, and when it would start; nothing is submitted."""
    where = [f"--chdir={cwd}"] if cwd else []
    try:
        answer = run_command(["sbatch", "--test-only", *where], stdin=script)
    except NoAnswer as error:
        return TestOnly(accepted=None, words=str(error))
    words = "\n".join(line.removeprefix("sbatch: ") for line in answer.words.splitlines())
    if answer.exit_code != 0 and (_UNCLEAR.search(words) or says_no_slurm(words)):
        return TestOnly(accepted=None, words=words)
    return TestOnly(accepted=answer.exit_code == 0, words=words)


test_only.__test__ = False  # type: ignore[attr-defined]


def array_limits() -> ArrayLimits:
    """The controller's own numbers.

    :raises NoAnswer: where it does not answer.
    """
    answer = run_command(["scontrol", "show", "config"])
    if answer.exit_code != 0:
        raise NoAnswer(answer.words)
    limits = [int(n) for n in re.findall(r"^(?:MaxArraySize|MaxJobCount)\s*=\s*(\d+)", answer.out, flags=re.MULTILINE)]
    # Indices run from 0 to MaxArraySize - 1.
    return ArrayLimits(max_count=min(limits, default=1))
