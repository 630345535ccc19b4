"""srun's and slurmstepd's own words in the batch log: the only witness of a rank that was killed without writing anything.

    srun: error: n2: task 3: Killed
    srun: error: n[1-2]: tasks 0,2-3: Exited with exit code 1
    srun: error: n1: task 0: Segmentation fault (core dumped)
    srun: error: n1: task 0: Out Of Memory
    srun: error: Node failure on n2
    slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-31T10:00:00 DUE TO TIME LIMIT ***
    slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2024-01-31T10:00:00 ***
    slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been killed ...

Where several slurmd share a host, slurmstepd puts the node's name behind its own (`slurmstepd-n1: error: ...`).
A cancelled step alone says nothing: srun ends the step that way whenever one of its tasks has failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dptrain.scheduler.sbatch import JOB_BEGINS, RANKS_START

SIGNALS = {
    "Hangup": "SIGHUP",
    "Interrupt": "SIGINT",
    "Quit": "SIGQUIT",
    "Illegal instruction": "SIGILL",
    "Trace/breakpoint trap": "SIGTRAP",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Killed": "SIGKILL",
    "User defined signal 1": "SIGUSR1",
    "Segmentation fault": "SIGSEGV",
    "User defined signal 2": "SIGUSR2",
    "Broken pipe": "SIGPIPE",
    "Alarm clock": "SIGALRM",
    "Terminated": "SIGTERM",
    "CPU time limit exceeded": "SIGXCPU",
    "File size limit exceeded": "SIGXFSZ",
}
"""What the C library calls a signal -> its name."""

_TASK = re.compile(r"srun: error: (?P<host>[^\s:]+): tasks? (?P<tasks>\d[\d,-]*): (?P<what>.+?)\s*$")
_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")
_NODE = re.compile(r"srun: error: Node failure on (?P<host>\S+)")
_JOB = re.compile(
    r"slurmstepd\S*: error: \*\*\* (?P<unit>JOB|STEP) \S+ ON (?P<host>\S+) CANCELLED AT \S+(?: DUE TO (?P<why>[^*]+?))?,? \*\*\*"
)
_OOM = re.compile(r"slurmstepd\S*: error: Detected \d+ oom[-_]kill event")
_LAUNCH = re.compile(r"(?:srun|slurmstepd\S*): error: (execve\(\): |Unable to create step|.*aborted before step)")


@dataclass(frozen=True, kw_only=True)
class SrunMessage:
    """One line that says how a task, a node or the job ended."""

    kind: str
    """killed, exited, out-of-memory, node-failure, time-limit, preempted, cancelled, launch."""
    tasks: tuple[int, ...] = ()
    host: str | None = None
    """As written: `n2`, or `n[1-2]` where one line speaks for several."""
    exit_code: int | None = None
    signal: str | None = None
    text: str


def parse_srun(log: str) -> tuple[SrunMessage, ...]:
    """Every such line of a batch log, in its order; other lines are skipped.

    Setup lines may start steps of their own: what happens to tasks before the ranks are started is not about ranks.
    """
    messages: list[SrunMessage] = []
    begun, in_setup = 0, False
    for line in log.splitlines():
        if line in (JOB_BEGINS, RANKS_START):
            in_setup = line == JOB_BEGINS
            # The beginning of a long log is not read: what comes before the first of these lines was a setup, too.
            messages[begun:] = messages[begun:] if in_setup else _of_jobs(messages[begun:])
            begun = len(messages)
        elif ("srun: " in line or "slurmstepd" in line) and (message := _parse_line(line)) is not None:
            messages.append(message)
    return tuple(messages[:begun] + _of_jobs(messages[begun:])) if in_setup else tuple(messages)


def _of_jobs(messages: list[SrunMessage]) -> list[SrunMessage]:
    return [m for m in messages if m.kind not in ("killed", "exited", "out-of-memory", "launch")]


def _parse_line(line: str) -> SrunMessage | None:
    text = line.strip()
    if found := _TASK.search(line):
        return _task_message(found, text)
    if found := _NODE.search(line):
        return SrunMessage(kind="node-failure", host=found["host"], text=text)
    if found := _JOB.search(line):
        kind = _job_kind(found["unit"], found["why"])
        # Of a lost node it is another one that speaks.
        host = None if kind == "node-failure" else found["host"]
        return SrunMessage(kind=kind, host=host, text=text) if kind else None
    if _OOM.search(line):
        return SrunMessage(kind="out-of-memory", text=text)
    if _LAUNCH.search(line):
        return SrunMessage(kind="launch", text=text)
    return None


def _task_message(found: re.Match[str], text: str) -> SrunMessage | None:
    tasks, host, what = expand_tasks(found["tasks"]), found["host"], found["what"]
    if code := _EXIT_CODE.match(what):
        return SrunMessage(kind="exited", tasks=tasks, host=host, exit_code=int(code[1]), text=text)
    if what.lower().startswith("out of memory"):
        return SrunMessage(kind="out-of-memory", tasks=tasks, host=host, text=text)
    signal = SIGNALS.get(what.removesuffix("(core dumped)").strip())
    return SrunMessage(kind="killed", tasks=tasks, host=host, signal=signal, text=text) if signal else None


def _job_kind(unit: str, why: str | None) -> str | None:
    for words, kind in (("TIME LIMIT", "time-limit"), ("PREEMPTION", "preempted"), ("NODE FAILURE", "node-failure")):
        if why and words in why:
            return kind
    return "cancelled" if unit == "JOB" and not why else None


def expand_tasks(text: str) -> tuple[int, ...]:
    """`0,2-3` -> (0, 2, 3); a range that runs backwards or beyond a million tasks is left out."""
    tasks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            low, high = int(first), int(last or first)
            tasks.extend(range(low, min(high, low + 1_000_000) + 1))
    return tuple(tasks)
