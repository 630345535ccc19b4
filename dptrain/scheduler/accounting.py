"""What the accounting database knows of jobs that the controller has forgotten: one sacct call for any number of them.

Many sites have none; that is no error. Its word is only asked for where neither the controller nor the records say how a job ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dptrain.scheduler.commands import QUERY_TIMEOUT_S, NoAnswer, run_command
from dptrain.scheduler.query import JobInfo
from dptrain.scheduler.states import meaning_of, pending_reason

_FIELDS = ("JobID", "State", "ExitCode", "NodeList", "Start")


def query_accounting(job_ids: Iterable[str]) -> dict[str, JobInfo] | None:
    """Job id -> how its newest attempt ended; without ids nothing is asked.

    :param job_ids: `12` or `12_3`.
    :return: None where there is no accounting, or nobody answered.
    """
    wanted = sorted(set(job_ids))
    if not wanted:
        return {}
    words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={','.join(_FIELDS)}"]
    try:
        answer = run_command([*words, f"--jobs={','.join(wanted)}"], timeout_s=QUERY_TIMEOUT_S)
    except NoAnswer:
        return None
    if answer.exit_code != 0:
        return None
    # The controller knows of no such job: an entry without an end is of one whose end accounting has missed.
    return {job.job_id: job for job in _parse(answer.out) if job.job_id in wanted and job.finished}


def _parse(text: str) -> Iterator[JobInfo]:
    """Of a line such as `12_3|CANCELLED by 1000|0:15|n[1-2]|2024-01-31T10:00:00`."""
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != len(_FIELDS):
            continue
        job_id, state, exit_code, nodes, start = values
        code, _, ended_by = exit_code.partition(":")
        yield JobInfo(
            job_id=job_id,
            state=meaning_of(state),
            raw_state=state,
            reason=pending_reason(""),
            nodes=nodes if nodes not in ("", "None assigned") else None,
            exit_code=int(code) if code.isdigit() else None,
            exit_signal=(int(ended_by) or None) if ended_by.isdigit() else None,
            restarts=0,  # 22.05 keeps no count
            start_time=start if start not in ("", "None", "Unknown") else None,
            time_left=None,
            comment="",
            source="accounting",
        )
