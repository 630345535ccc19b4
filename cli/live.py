"""`status --watch`: the runs again and again until all have ended. In a terminal a table that is redrawn, elsewhere plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dptrain.cli.output import console, print_table, rich_table, say
from dptrain.errors import Interrupted
from dptrain.launch.locks import sweep_holder
from dptrain.records.index import find_runs, place_of
from dptrain.records.paths import RunPaths
from dptrain.records.sweeps import is_sweep, read_sweep
from dptrain.status.live import LIVE_HEADER, live_row, rows_that_fit, still_going, summary
from dptrain.status.model import RunStatus
from dptrain.status.show import RANK_HEADER, one_line, rank_row, remark, row_style
from dptrain.status.spark import marks_for
from dptrain.status.state import Scheduler, run_status
from dptrain.status.sweeps import each_once, resolve_all, resolve_runs

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LOCAL_S = 2.0
SLURM_S = 10.0
"""No faster where a run is SLURM's, and where lines are kept: in a log every look is a line."""
EXPENDABLE = ("LOSS", "MEMORY", "STEPS/S", "PSNR dB", "TREND")
EXPENDABLE_OF_RANKS = ("SENT", "PID", "PEAK", "HOST")


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The runs as there are now."""

    runs: Sequence[RunPaths]
    not_started: int = 0
    """Members of a sweep that have no run yet."""
    growing: bool = False
    """Something is still starting runs."""


def finder(texts: Sequence[str] | None) -> Callable[[], Watched]:
    """Looks for the runs that somebody named, or all: those of a sweep as they are started, the others once.

    :raises NoSuchRun: where there is none.
    """
    if not texts:
        every = find_runs()
        return lambda: Watched(runs=every)
    named = resolve_all(texts)
    sweeps = {t: record for t in texts if is_sweep(t) and (record := read_sweep(*place_of(t))) is not None}
    scheduler = Scheduler(SLURM_S)

    def find() -> Watched:
        now = {text: resolve_runs(text, None, scheduler) if text in sweeps else runs for text, runs in named.items()}
        growing = [name for name in sweeps if sweep_holder(*place_of(name)) is not None]
        missing = sum(len(sweeps[name].members) - len(now[name]) for name in growing)
        return Watched(runs=each_once(now), not_started=max(0, missing), growing=bool(growing))

    return find


def watch(find: Callable[[], Watched], ranks: bool, quiet: bool = False) -> list[RunStatus]:
    """Show the runs until every one has ended; the scheduler is asked every ten seconds at most.

    :param find: asked again at every look.
    :param ranks: a line per rank.
    :param quiet: only wait.
    :raises Interrupted: Ctrl-C; nothing that runs is touched.
    """
    show = Quiet() if quiet else Screen(ranks) if sys.stdout.isatty() else Lines(ranks)
    scheduler = Scheduler(SLURM_S)
    statuses: list[RunStatus] = []
    with show:
        while True:
            try:
                watched = find()
                statuses = run_status(watched.runs, scheduler)
                show.update(statuses, watched.not_started)
                if not watched.growing and not any(_goes_on(status) for status in statuses):
                    break
                time.sleep(interval_s(statuses, show.fastest_s))
            except KeyboardInterrupt:
                raise Interrupted(f"stopped watching; {still_going(statuses)}") from None
    show.conclude(statuses)
    return statuses


def interval_s(statuses: Sequence[RunStatus], fastest_s: float) -> float:
    """Seconds until the next look."""
    slurm = any(status.launcher == "slurm" and not status.ended for status in statuses)
    return max(fastest_s, SLURM_S) if slurm else fastest_s


def _goes_on(status: RunStatus) -> bool:
    """What cannot be read is waited for as long as it is there."""
    return not status.ended and Path(status.run_dir).is_dir()


class Quiet:
    """Shows nothing."""

    fastest_s = LOCAL_S

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, statuses: Sequence[RunStatus], not_started: int) -> None:
        """The runs as they are now."""

    def conclude(self, statuses: Sequence[RunStatus]) -> None:
        """All have ended."""


class Lines(Quiet):
    """Plain lines for logs and pipes: a run when its state or step has changed, and a line about all of them when their numbers have."""

    fastest_s = SLURM_S

    def __init__(self, ranks: bool) -> None:
        self._ranks = ranks
        self._shown: dict[str, tuple[str, int]] = {}
        self._counts = ""

    def update(self, statuses: Sequence[RunStatus], not_started: int) -> None:
        """Print what is new."""
        for status in statuses:
            if self._shown.get(status.run) != (status.state, status.step):
                say(one_line(status))
                self._shown[status.run] = (status.state, status.step)
                if self._ranks:
                    print_table(RANK_HEADER, [rank_row(status.run, rank) for rank in status.ranks])
        text = summary(statuses, not_started)
        counts = text.partition(";")[0]  # the time left changes with every look
        if counts != self._counts and len(statuses) + not_started > 1:
            say(text)
        self._counts = counts

    def conclude(self, statuses: Sequence[RunStatus]) -> None:
        """What lines had no room for."""
        for status in statuses:
            if (text := remark(status)) is not None:
                say(text)


class Screen(Lines):
    """A table that is drawn over itself."""

    fastest_s = LOCAL_S

    def __init__(self, ranks: bool) -> None:
        from rich.live import Live

        super().__init__(ranks)
        self._console: Console = console()
        self._marks = marks_for(sys.stdout.encoding)
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, statuses: Sequence[RunStatus], not_started: int) -> None:
        """Draw the table anew."""
        self._live.update(self.draw(statuses, not_started), refresh=True)

    def draw(self, statuses: Sequence[RunStatus], not_started: int) -> RenderableType:
        """A line about all runs where there are several, and the table."""
        from rich.console import Group
        from rich.text import Text

        if self._ranks:
            rows = [rank_row(status.run, rank) for status in statuses for rank in status.ranks]
            return rich_table(RANK_HEADER, rows, (), EXPENDABLE_OF_RANKS, self._console.width)
        fitting = rows_that_fit(statuses, self._console.height - 4)
        rows = [live_row(status, self._marks) for status in fitting]
        table = rich_table(LIVE_HEADER, rows, [row_style(s) for s in fitting], EXPENDABLE, self._console.width)
        if len(statuses) + not_started == 1:
            return table
        hidden = len(statuses) - len(fitting)
        return Group(Text(summary(statuses, not_started) + (f" ({hidden} not shown)" if hidden else "")), table)
