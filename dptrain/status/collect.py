"""Reads the records of one run into plain values. Costs a bounded read per file: its first 8 KiB and its last 128 KiB.

Records are other processes' words, possibly of an older version: a field of a wrong type counts as absent.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from dptrain.records.events import Event, parse_events
from dptrain.records.intent import Intent, read_intent
from dptrain.records.paths import AttemptPaths, RunPaths
from dptrain.records.process import Alive, alive
from dptrain.records.reading import open_file, real_number, whole_number
from dptrain.scheduler.sbatch import JOB_BEGINS, setup_failure
from dptrain.status.srun import SrunMessage, parse_srun

HEAD_BYTES = 8 * 1024
TAIL_BYTES = 128 * 1024
LOG_TAIL_BYTES = 256 * 1024
END_BYTES = 8 * 1024
MOST_BYTES = 10**18
REQUEUE_CODE = 75
"""Exit code of ranks, and then of the attempt, that saved and ask to be started again."""
_RESTARTED = re.compile(r"\*\*\* JOB .* CANCELLED AT (?P<when>\S+) DUE TO (?P<why>JOB REQUEUE|PREEMPTION|NODE FAIL)")
_CUT_SHORT = {"PREEMPTION": "preempted", "NODE FAIL": "node-failure"}


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one rank of one attempt has written, newest values."""

    rank: int
    started: bool = False
    started_s: float | None = None
    ready_s: float | None = None
    """When its set-up was over."""
    host: str | None = None
    pid: int | None = None
    job_id: str | None = None
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """`interpreter`, its path, and by name the versions of it and of the libraries."""
    phase: str | None = None
    step: int = 0
    steps: int | None = None
    last_seen_s: float | None = None
    """Time of the newest record, seconds since the epoch."""
    worked_s: float | None = None
    """Time of the newest record of its work: its end, and signals, do not count."""
    step_times_s: tuple[float, ...] = ()
    peak_memory_bytes: int | None = None
    bytes_sent: int | None = None
    psnr_db: float | None = None
    loss: float | None = None
    psnr_path_db: tuple[float, ...] = ()
    """Its values over the newest steps that follow one another."""
    loss_path: tuple[float, ...] = ()
    final: bool = False
    failure: Event | None = None
    """The first failure record."""
    requeue: str | None = None
    """Reason of the rank's request to be started again."""
    save_s: float | None = None
    """The longest that a save took."""


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One start of the run."""

    number: int
    ranks: tuple[RankRecord, ...] = ()
    launched: Event | None = None
    exits: tuple[Event, ...] = ()
    """Ranks that the launcher saw end with a signal or a code other than 0."""
    ended: Event | None = None
    cancelled_s: float | None = None
    """When `dptrain cancel` asked for the end."""
    started_s: float | None = None
    """When its first rank began."""
    newest_s: float | None = None

    @property
    def over(self) -> bool:
        """The launcher has ended and starts no further attempt."""
        return self.ended is not None and int_of(self.ended, "exitcode", -256) != REQUEUE_CODE


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """Everything `decide` looks at, but the scheduler's word."""

    intent: Intent
    attempts: tuple[AttemptRecord, ...] = ()
    supervisor: Alive = "unknown"
    """Local runs: the process that started the ranks."""
    srun: tuple[SrunMessage, ...] = ()
    log_tail: str = ""
    """Last lines of the batch log or of the launcher's log."""
    cut_short: tuple[tuple[float, str], ...] = ()
    """When the scheduler ended attempts of this job in order to start it again, by the batch log, and why: preempted, node-failure."""
    setup_failure: tuple[int, str] | None = None
    """Exit code and text of the setup line that ended the job before the ranks."""
    later_log: str = ""
    """What the batch log says after its last restart: of an attempt that no rank has reported of."""
    began_again: bool = False
    """Whether the batch log shows that such an attempt did begin."""
    spec: Path | None = None
    """The frozen spec, read only where its limits are asked for; None: not asked, the ranks are done."""

    @property
    def latest(self) -> AttemptRecord | None:
        """The newest attempt that has any record, of those of the job that the intent names."""
        written = [a for a in self.attempts if a.newest_s is not None and a.number >= self.intent.first_attempt]
        return written[-1] if written else None

    @property
    def newest_number(self) -> int:
        """Number of the newest attempt that records or log show."""
        return (self.latest.number if self.latest else self.intent.first_attempt) + self.began_again

    def of_later_attempt(self) -> RunRecords:
        """With the log's words on an attempt after `latest`, which has left no record."""
        return _with_log(self, self.later_log)

    @property
    def stall_timeout_s(self) -> float:
        """Limit of a rank's silence."""
        return self._limits.get("stall_timeout_s", 600.0)

    @property
    def setup_timeout_s(self) -> float:
        """The same before the first step."""
        return self._limits.get("setup_timeout_s", 600.0)

    @property
    def signal_lead_s(self) -> float | None:
        """Time that the scheduler's warning leaves for a save; None: it warns of nothing, or nothing is read of it."""
        return self._limits.get("signal_lead_s") if self.intent.launcher == "slurm" else None

    @cached_property
    def _limits(self) -> dict[str, float]:
        return {} if self.spec is None else _limits(self.spec)


def read_run(paths: RunPaths) -> RunRecords:
    """Read one run. Raises OSError or ValueError where one of its files is not what it must be."""
    intent = read_intent(paths)
    attempts = tuple(_read_attempt(number, paths.attempt(number)) for number in paths.attempts())
    records = RunRecords(intent=intent, attempts=attempts)
    latest = records.latest
    records = replace(records, supervisor=_supervisor(intent, latest))
    slurm = intent.launcher == "slurm"
    done = latest is not None and _all_final(latest, intent)
    if done and not slurm:
        return records
    # Of a run that is done only what srun said last, unless earlier attempts have a history.
    limit = END_BYTES if done and len(attempts) == 1 else LOG_TAIL_BYTES
    log = _launch_log(paths, intent, latest.number if latest else intent.first_attempt, limit)
    if slurm:
        records = replace(records, cut_short=tuple(_cut_short(log)))
        log, later, restarted = _parts(log, _began_s(latest, intent))
        # Words on the end of the reported attempt may come behind its restart.
        began = JOB_BEGINS in later.splitlines() or setup_failure(later) is not None
        records = replace(records, later_log=later, began_again=restarted and began)
    return _with_log(replace(records, spec=None if done else paths.spec), log)


def _with_log(records: RunRecords, log: str) -> RunRecords:
    slurm = records.intent.launcher == "slurm"
    return replace(
        records,
        srun=parse_srun(log) if slurm else (),
        log_tail="\n".join(log.rstrip().splitlines()[-12:]),
        setup_failure=setup_failure(log) if slurm else None,
    )


def read_edges(path: Path) -> list[Event]:
    """Events of the file's two ends; the whole of a small file."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        return []
    with file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if size <= HEAD_BYTES + TAIL_BYTES:
            return parse_events(file.read().split(b"\n"), path)
        head = file.read(HEAD_BYTES).split(b"\n")[:-1]
        file.seek(size - TAIL_BYTES)
        tail = file.read().split(b"\n")[1:]
        if not any(line.strip() for line in tail):  # one line is longer than that
            file.seek(0)
            return parse_events(file.read().split(b"\n"), path)
        return parse_events([*head, *tail], path)


def _read_attempt(number: int, paths: AttemptPaths) -> AttemptRecord:
    launcher = read_edges(paths.launcher_events)
    ranks = tuple(rank_record(r, read_edges(paths.rank_events(r))) for r in paths.ranks())
    return attempt_record(number, ranks, launcher)


def attempt_record(number: int, ranks: Sequence[RankRecord], launcher: Sequence[Event]) -> AttemptRecord:
    """One attempt from its ranks and the launcher's events."""
    starts = [r.started_s for r in ranks if r.started_s is not None]
    times = [t for t in (*(r.last_seen_s for r in ranks), *(seconds_of(e, "t") for e in launcher)) if t is not None]
    cancels = [seconds_of(e, "t") or 0.0 for e in launcher if e["kind"] == "cancel"]
    return AttemptRecord(
        number=number,
        ranks=tuple(ranks),
        launched=next((e for e in launcher if e["kind"] == "launched"), None),
        exits=tuple(e for e in launcher if e["kind"] == "exit"),
        ended=next((e for e in reversed(launcher) if e["kind"] == "ended"), None),
        cancelled_s=min(cancels, default=None),
        started_s=min(starts, default=None),
        newest_s=max(times, default=None),
    )


def rank_record(rank: int, events: Sequence[Event]) -> RankRecord:
    """Newest values of one rank's events."""
    start = next((e for e in events if e["kind"] == "start"), {})
    steps = [e for e in events if e["kind"] == "step"]
    return RankRecord(
        rank=rank,
        started=bool(start),
        started_s=seconds_of(start, "t"),
        ready_s=next((seconds_of(e, "t") for e in events if text_of(e, "phase") == "run"), None),
        host=text_of(start, "host"),
        pid=int_of(start, "pid"),
        job_id=text_of(start, "job_id"),
        device=text_of(start, "device"),
        versions=_versions(start),
        phase=_last_text(events, "phase"),
        step=max((int_of(e, "step") or 0 for e in events), default=0),
        steps=_last_int(events, "steps"),
        last_seen_s=max((t for e in events if (t := seconds_of(e, "t")) is not None), default=None),
        worked_s=max(
            (t for e in events if e["kind"] not in ("failure", "signal") and (t := seconds_of(e, "t")) is not None),
            default=None,
        ),
        step_times_s=tuple(s for e in steps if (s := seconds_of(e, "seconds")) is not None),
        peak_memory_bytes=max(
            (b for e in events if (b := int_of(e, "peak_memory_bytes", most=MOST_BYTES)) is not None), default=None
        ),
        bytes_sent=_last_int(events, "bytes_sent", MOST_BYTES),
        psnr_db=next((v for e in reversed(steps) if (v := number_of(e, "psnr_db")) is not None), None),
        loss=next((v for e in reversed(steps) if (v := number_of(e, "loss")) is not None), None),
        psnr_path_db=_path(steps, "psnr_db"),
        loss_path=_path(steps, "loss"),
        final=any(e["kind"] == "final" for e in events),
        failure=next((e for e in events if e["kind"] == "failure"), None),
        requeue=next((text_of(e, "reason") or "requeued" for e in events if e["kind"] == "requeue"), None),
        save_s=max(
            (s for e in events if e["kind"] == "save" and (s := seconds_of(e, "seconds")) is not None), default=None
        ),
    )


def _path(steps: Sequence[Event], key: str) -> tuple[float, ...]:
    """A value over the newest steps without a gap: of a long file, only its two ends are read."""
    values: list[float] = []
    later: int | None = None
    for event in reversed(steps):
        step = int_of(event, "step")
        if step is None or (later is not None and step != later - 1):
            break
        later = step
        if (value := number_of(event, key)) is not None:
            values.append(value)
    return tuple(reversed(values))


def _versions(start: Event) -> dict[str, str]:
    said = start.get("versions")
    named = {"interpreter": start.get("python"), **(said if isinstance(said, dict) else {})}
    return {name: version for name, version in named.items() if isinstance(version, str)}


def number_of(event: Event, key: str) -> float | None:
    """A finite number, or None."""
    return real_number(event.get(key))


def seconds_of(event: Event, key: str) -> float | None:
    """A time or a duration, or None."""
    return None if (value := real_number(event.get(key), 1e12)) is None or value < 0 else value


def int_of(event: Event, key: str, least: int = 0, most: int = 10**9) -> int | None:
    """A whole number in this range, or None."""
    return whole_number(event.get(key), least, most)


def text_of(event: Event, key: str) -> str | None:
    """A text, or None."""
    value: Any = event.get(key)
    return value if isinstance(value, str) else None


def _last_text(events: Sequence[Event], key: str) -> str | None:
    return next((v for e in reversed(events) if (v := text_of(e, key)) is not None), None)


def _last_int(events: Sequence[Event], key: str, most: int = 10**9) -> int | None:
    return next((v for e in reversed(events) if (v := int_of(e, key, most=most)) is not None), None)


def _all_final(attempt: AttemptRecord, intent: Intent) -> bool:
    return sum(rank.final for rank in attempt.ranks) >= intent.world_size


def _supervisor(intent: Intent, latest: AttemptRecord | None) -> Alive:
    if intent.launcher != "local" or (latest is not None and latest.over):
        return "unknown"
    launched = latest.launched if latest else None
    if launched is not None and (pid := int_of(launched, "pid")) is not None:
        return alive(pid, text_of(launched, "host"), int_of(launched, "start_ticks", most=10**18))
    if intent.job_id is not None and re.fullmatch("[0-9]{1,9}", intent.job_id):
        return alive(int(intent.job_id), intent.host, None)
    return "unknown"


def _launch_log(paths: RunPaths, intent: Intent, attempt: int, limit: int) -> str:
    if intent.launcher == "local":
        return tail_text(paths.attempt(attempt).launcher_log, limit)
    if intent.job_id is None:
        return ""
    return tail_text(paths.batch_log_of(intent.job_id), limit)


def _cut_short(log: str) -> Iterator[tuple[float, str]]:
    for found in _RESTARTED.finditer(log):
        if (why := _CUT_SHORT.get(found["why"])) is not None and (when := _clock(found)) is not None:
            yield when, why


def _clock(restarted: re.Match[str]) -> float | None:
    # The log's clock is local time without a zone, as is ours.
    with suppress(ValueError):
        return datetime.fromisoformat(restarted["when"]).timestamp()
    return None


def _parts(log: str, began_s: float) -> tuple[str, str, bool]:
    """The batch log is appended to by every attempt of a job: from the reported attempt on, and from the last restart on.

    :param began_s: when the reported attempt began: a restart after that has ended this one, and belongs to it.
    :return: both, and whether there is such a restart.
    """
    lines = log.splitlines()
    restarts = [(i + 1, _clock(found)) for i, line in enumerate(lines) if (found := _RESTARTED.search(line))]
    # The log's times are of whole seconds.
    before = [i for i, when in restarts if when is None or when < began_s - 1]
    own, later = max(before, default=0), restarts[-1][0] if restarts else 0
    return "\n".join(lines[own:]), "\n".join(lines[later:]), later > own


def _began_s(latest: AttemptRecord | None, intent: Intent) -> float:
    """Before all of its job's log for the first attempt, after all of it for a later one that no rank has reported of."""
    if latest is None or latest.number == intent.first_attempt:
        return float("-inf")
    return latest.started_s if latest.started_s is not None else float("inf")


def tail_text(path: Path, limit: int) -> str:
    """The last `limit` bytes of a text file; empty where there is none."""
    try:
        with open_file(path) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read().decode("utf-8", errors="replace")
    except (OSError, ValueError):  # only shown
        return ""


def _limits(spec: Path) -> dict[str, float]:
    """Numbers of the frozen spec's section `run`: reading YAML takes longer than all the rest of a run."""
    import yaml

    # The parser in C is ten times as fast; not every build of PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with open_file(spec) as file:
            value = yaml.load(file, loader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):  # the limits of a spec that says nothing
        value = None
    run = value.get("run") if isinstance(value, dict) else None
    return {key: number for key in run if (number := number_of(run, key))} if isinstance(run, dict) else {}
