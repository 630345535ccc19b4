"""What the accounting database knows of jobs that the controller has forgotten: one sacct call for any number of them.

Many sites have none; that is no error. Its word is only asked for where neither the controller nor the records say how a job ended.
What it says of a job that has ended does not change any more: it is kept in `$XDG_CACHE_HOME/dptrain/accounting.jsonl`, sacct's own
line by run and job, so that old runs are not asked about again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dptrain.records.events import EventLog, read_events
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


def kept_file() -> Path:
    """Where lasting answers are."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "dptrain" / "accounting.jsonl"


def kept(runs: Mapping[str, str]) -> dict[str, JobInfo | None]:
    """Job id -> what accounting had said of it, None where it knew nothing; without jobs that have no lasting answer.

    :param runs: job id -> run: another cluster's job may have the same id.
    """
    try:
        events = list(read_events(kept_file())) if runs else []
    except (OSError, ValueError):
        return {}
    # The file may be damaged: a key of any values.
    said = {f"{event.get('run')} {event.get('job_id')}": event.get("line") for event in events}
    found: dict[str, JobInfo | None] = {}
    for job_id, run in runs.items():
        if isinstance(line := said.get(f"{run} {job_id}"), str):
            found[job_id] = next((job for job in _parse(line) if job.job_id == job_id and job.finished), None)
    return found


def keep(runs: Mapping[str, str], answer: Mapping[str, JobInfo]) -> None:
    """Keep the answer on these jobs; of one that is not in it, that nothing is known.

    :param runs: job id -> run.
    """
    # A home that cannot be written costs the next status a call, no more.
    with suppress(OSError):
        path = kept_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        log = EventLog(path)
        try:
            for job_id, run in runs.items():
                line = _line(answer[job_id]) if job_id in answer else ""
                log.write("accounted", run=run, job_id=job_id, line=line)
        finally:
            log.close()


def _line(job: JobInfo) -> str:
    code = f"{job.exit_code or 0}:{job.exit_signal or 0}"
    return "|".join([job.job_id, job.raw_state, code, job.nodes or "", job.start_time or ""])


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
