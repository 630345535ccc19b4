"""What the controller knows about jobs: one squeue call for any number of them.

A job is known until MinJobAge after its end; later, with accounting off, only the run's own records can say how it ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dptrain.scheduler.commands import QUERY_TIMEOUT_S, Answer, NoAnswer, run_command
from dptrain.scheduler.states import FINISHED, Meaning, PendingReason, meaning_of, pending_reason

# Fixed widths: names of users and jobs may hold any separator. squeue cuts what is longer.
_FIELDS = {
    "JobArrayID": 96,
    "State": 32,
    "Reason": 128,
    "NodeList": 2048,
    "exit_code": 16,
    "RestartCnt": 8,
    "StartTime": 24,
    "EndTime": 24,
    "TimeLeft": 24,
    "Comment": 256,
}
_ALL_ELEMENTS = {"SLURM_BITSTR_LEN": "0"}
"""Without it squeue cuts long lists of array elements with `...`."""


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """One job, or one member of an array, as the controller sees it."""

    job_id: str
    """`12`, or `12_3` for an array member."""
    state: Meaning
    raw_state: str
    """SLURM's own word."""
    reason: PendingReason
    """Why it is pending, or what SLURM notes of its end; empty word where there is nothing."""
    nodes: str | None
    """The node list in SLURM's form (`n[1-2]`), None before the start."""
    exit_code: int | None
    """What the batch script left with, None while the job is not over."""
    exit_signal: int | None
    """The number of the signal that ended the batch script, None where there was none."""
    restarts: int
    """Requeues so far: the attempt number is one more."""
    start_time: str | None
    """When it started, or is expected to start, in local time; None where SLURM does not know."""
    time_left: str | None
    comment: str
    ended_s: float | None = None
    """When it ended, seconds since the epoch; None while it has not."""
    source: str = "scheduler"
    """`scheduler`: the controller; `accounting`: sacct, of a job that the controller has forgotten."""

    @property
    def finished(self) -> bool:
        """Whether this attempt is over."""
        return self.state in FINISHED

    @property
    def impossible(self) -> bool:
        """Whether it can never start as it was asked for."""
        return self.state == "queued" and self.reason.kind == "impossible"


class QueueAnswer(dict[str, JobInfo]):
    """Job id -> JobInfo of the jobs the controller knows. Empty and `answered` False where nobody answered."""

    def __init__(self, jobs: Iterable[JobInfo] = (), no_answer: str | None = None) -> None:
        super().__init__((job.job_id, job) for job in jobs)
        self.no_answer = no_answer
        """Why there is no answer, or None: then a job that is missing is one the controller has forgotten."""

    @property
    def answered(self) -> bool:
        return self.no_answer is None


def query_jobs(job_ids: Iterable[str]) -> QueueAnswer:
    """Ask for any number of jobs with one call; without ids nothing is asked.

    :param job_ids: `12` or `12_3`.
    """
    wanted = sorted(set(job_ids))
    if not wanted:
        return QueueAnswer()
    # `--array` prints one line per member; whole arrays are asked for, since 200 members make a long command line.
    arrays = sorted({job_id.split("_")[0] for job_id in wanted})
    try:
        jobs = list(_squeue(f"--jobs={','.join(arrays)}"))
    except NoAnswer as error:
        return QueueAnswer(no_answer=str(error))
    return QueueAnswer(job for job in jobs if job.job_id in wanted)


def find_by_comment(comment: str) -> str | None:
    """The newest job whose comment is exactly this one, or None where the controller has none.

    For an array, the id of the array.

    :raises NoAnswer: where nobody answered: then nothing is known, and submitting again could double the job.
    """
    return find_by_comments([comment]).get(comment)


def find_by_comments(comments: Iterable[str]) -> dict[str, str]:
    """Comment -> the newest job of this user that has it, with one call; what the controller does not know is left out.

    :raises NoAnswer: as `find_by_comment`.
    """
    wanted = set(comments)
    found: dict[str, int] = {}
    for job in _squeue("--me") if wanted else ():
        if job.comment in wanted:
            found[job.comment] = max(found.get(job.comment, 0), int(job.job_id.split("_")[0]))
    return {comment: str(job_id) for comment, job_id in found.items()}


def _squeue(*selection: str) -> Iterator[JobInfo]:
    layout = ",".join(f"{name}:{width}" for name, width in _FIELDS.items())
    words = ["squeue", "--states=all", "--array", "--noheader", f"--Format={layout}", *selection]
    answer = run_command(words, timeout_s=QUERY_TIMEOUT_S, extra=_ALL_ELEMENTS)
    if answer.exit_code != 0 and not _knows_none(answer):
        raise NoAnswer(_last_line(answer) or f"squeue ended with exit code {answer.exit_code}")
    for line in answer.out.splitlines():
        yield from parse_line(line)


def _knows_none(answer: Answer) -> bool:
    # One unknown id is an error of squeue; among several it is left out.
    return "Invalid job id specified" in answer.err


def _last_line(answer: Answer) -> str:
    lines = answer.words.splitlines()
    return lines[-1].strip() if lines else ""


def parse_line(line: str) -> Iterator[JobInfo]:
    """The jobs of one line of squeue: one, or every member of a range such as `12_[3-4%1]`."""
    values: dict[str, str] = {}
    start = 0
    for name, width in _FIELDS.items():
        values[name] = line[start : start + width].strip()
        start += width
    state = meaning_of(values["State"])
    code, ended_by = _exit(values["exit_code"]) if state in FINISHED else (None, None)
    for job_id in expand_job_id(values["JobArrayID"]):
        yield JobInfo(
            job_id=job_id,
            state=state,
            raw_state=values["State"],
            reason=pending_reason(values["Reason"] if state == "queued" or state in FINISHED else ""),
            nodes=_known(values["NodeList"]),
            exit_code=code,
            exit_signal=ended_by,
            restarts=int(values["RestartCnt"]) if values["RestartCnt"].isdigit() else 0,
            start_time=_known(values["StartTime"]),
            time_left=_known(values["TimeLeft"]),
            comment=_known(values["Comment"]) or "",
            ended_s=_seconds(values["EndTime"]) if state in FINISHED else None,
        )


def _exit(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) from `3:0`, or from a wait status as 22.05 prints it: 768 is exit code 3."""
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        return int(match[1]), int(match[2]) or None
    if not text.isdigit():
        return None, None
    return int(text) >> 8, int(text) & 0x7F or None


def _seconds(text: str) -> float | None:
    """Seconds since the epoch of a local time as squeue prints it."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _known(text: str) -> str | None:
    return None if text in ("", "N/A", "(null)", "Unknown", "None", "INVALID") else text


def expand_job_id(text: str) -> list[str]:
    """`12` -> 12; `12_3` -> 12_3; `12_[0,3-5:2%1]` -> 12_0, 12_3, 12_5. What is none of these stays as it is."""
    match = re.fullmatch(r"(\d+)_\[([\d,:\-]+)(?:%\d+)?\]", text.strip())
    if match is None:
        return [text.strip()]
    members: list[str] = []
    for part in match[2].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        numbers = range(int(first), int(last or first) + 1, int(step or 1))
        members.extend(f"{match[1]}_{number}" for number in numbers)
    return members
