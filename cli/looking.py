"""What `status` and `logs` print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from dptrain.cli.output import note, print_json, print_table, say
from dptrain.records.paths import RunPaths, runs_root
from dptrain.status.model import RunStatus, first_word
from dptrain.status.show import RANK_HEADER, TABLE_HEADER, rank_row, remark, row_style, table_row
from dptrain.status.state import Scheduler, run_status

EXPENDABLE = ("PEAK", "JOB", "LOSS", "S/STEP", "PSNR dB", "ETA")
MOST_NAMES = 8
EXPENDABLE_OF_RANKS = ("SENT", "PID", "PEAK", "HOST")


def look(runs: Sequence[RunPaths]) -> list[RunStatus]:
    """Status of the runs now."""
    return run_status(runs)


def print_statuses(statuses: Sequence[RunStatus], ranks: bool) -> None:
    """The table, and under it what the rows have no room for."""
    if not statuses:
        say(f"no runs in {runs_root()}")
        return
    if ranks:
        print_table(
            RANK_HEADER,
            [rank_row(status.run, rank) for status in statuses for rank in status.ranks],
            (),
            EXPENDABLE_OF_RANKS,
        )
    else:
        print_table(TABLE_HEADER, [table_row(s) for s in statuses], [row_style(s) for s in statuses], EXPENDABLE)
    for status in statuses:
        if (text := remark(status)) is not None:
            say(text)


def print_sweeps(
    named: Mapping[str, Sequence[RunPaths]], statuses: Sequence[RunStatus], tell: Callable[[str], None] = say
) -> None:
    """Of each sweep that was named, one line about all of it, the members that have no run, and runs that are not its own.

    :param tell: prints a line.
    """
    from dptrain.records.sweeps import is_sweep, not_started
    from dptrain.status.live import summary
    from dptrain.status.sweeps import strangers

    for name in filter(is_sweep, named):
        missing, own = not_started(name), {paths.run_id for paths in named[name]}
        tell(f"sweep {name}: {summary([s for s in statuses if s.run in own], len(missing))}")
        if missing:
            more = f" and {len(missing) - MOST_NAMES} more" if len(missing) > MOST_NAMES else ""
            tell(f"not started: {', '.join(missing[:MOST_NAMES])}{more}; the same dptrain sweep command starts them")
        if (text := strangers(name, named[name])) is not None:
            tell(text)


def print_why(runs: Sequence[RunPaths], statuses: Sequence[RunStatus], as_json: bool) -> None:
    """A paragraph per run; with `as_json` its status entry, and the paragraph's parts as `why`."""
    from dptrain.status.why import explain

    entries = []
    for paths, status in zip(runs, statuses, strict=True):
        if "out-of-memory" in status.state:
            note(f"{status.run}: forecasting the memory of lighter steps ...")
        told = explain(paths, status)
        entries.append({**status.to_json(), "why": told.to_json()})
        if not as_json:
            say("\n".join(told.text()))
    if as_json:
        print_json(entries)


def exit_code(statuses: Sequence[RunStatus]) -> int:
    """1 where a run did not do what it was asked for, 6 where the state of one is unknown, else 0."""
    if any(status.bad for status in statuses):
        return 1
    return 6 if any(first_word(status.state) == "unknown" for status in statuses) else 0


def print_logs(paths: RunPaths, *, rank: int | None, failed: bool, follow: bool) -> None:
    """The logs one after the other, or as they grow."""
    from dptrain.status.logs import first_words, follow_logs, logs_of, nothing_to_read, read_log

    (status,) = run_status([paths])
    if failed and rank is None:
        if told := first_words(status):
            say("\n".join(told))
        else:
            note(f"{status.run}: {status.state}; no rank is known to have failed")
    if not follow:
        logs = logs_of(paths, status, rank=rank, failed_first=failed)
        if not logs:
            note(nothing_to_read(paths, status))
        for log in logs:
            say(f"==> {log.title}: {log.path} <==")
            for piece in read_log(log):
                sys.stdout.write(piece)
            say()
        return
    scheduler, latest = Scheduler(), [status]

    def ended() -> bool:
        latest[:] = run_status([paths], scheduler)
        return latest[0].ended

    last = None
    for log, text in follow_logs(lambda: logs_of(paths, latest[0], rank=rank, failed_first=failed), ended):
        if log.path != last:
            say(f"==> {log.title}: {log.path} <==")
        sys.stdout.write(text)
        sys.stdout.flush()
        last = log.path
