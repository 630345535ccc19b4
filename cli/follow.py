"""Following runs: a progress bar in a terminal, a few plain lines elsewhere, and how it ended.

Everything goes to stderr but the summary, so that `--json` leaves one JSON value on stdout.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from dptrain.cli.output import console, note, print_json, say
from dptrain.errors import DptrainError, Interrupted, RunFailed
from dptrain.records.index import called
from dptrain.records.paths import RunPaths
from dptrain.status.model import RunStatus
from dptrain.status.show import failure_text, one_line, result_lines

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

FIRST_LINES_S = 1.0
LINES_PER_E_FOLD = 40
"""Plain lines come ever more slowly: about so many each time the waiting has grown by a factor of 2.7."""


class Lines:
    """Plain lines for logs and pipes: one when the state changes, some as the steps advance."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last: dict[str, tuple[str, int, float]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, statuses: Sequence[RunStatus]) -> None:
        """Print what is new and due."""
        now = time.monotonic()
        pause_s = max(FIRST_LINES_S, (now - self._began) / LINES_PER_E_FOLD)
        for status in statuses:
            state, step, printed = self._last.get(status.run, ("", -1, float("-inf")))
            if status.state != state or (status.step != step and now - printed >= pause_s):
                note(one_line(status))
                self._last[status.run] = (status.state, status.step, now)


class Bars:
    """One progress bar per run."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress = Progress(
            TextColumn("{task.fields[run]}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
            console=console(stderr=True),
            refresh_per_second=4,
        )

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @staticmethod
    def or_lines() -> Bars | Lines:
        """Bars in a terminal, lines elsewhere."""
        return Bars() if sys.stderr.isatty() else Lines()

    def update(self, statuses: Sequence[RunStatus]) -> None:
        """Move the bars."""
        for status in statuses:
            if status.run not in self._tasks:
                # The id of a single run is on the screen already.
                name = status.run if len(statuses) > 1 or self._tasks else ""
                self._tasks[status.run] = self._progress.add_task("", run=name, said="")
            said = one_line(status, brief=True)
            self._progress.update(self._tasks[status.run], completed=status.step, total=status.steps or None, said=said)


def follow(paths: RunPaths, launch: Callable[[], None], *, waits: bool, timeout_s: float | None) -> None:
    """Start the run and, where asked to, wait for its end.

    :raises Interrupted: Ctrl-C; a local run was cancelled then, a SLURM job goes on.
    """
    with ending_signals(), _on_interrupt([paths]):
        launch()
        if waits:
            watch([paths], timeout_s)


def watch(runs: Sequence[RunPaths], timeout_s: float | None) -> list[RunStatus]:
    """Show the runs until all have ended."""
    from dptrain.status.wait import wait_for

    with Bars.or_lines() as shown:
        return wait_for(runs, timeout_s=timeout_s, on_update=shown.update)


def conclude(paths: RunPaths, *, as_json: bool, waited: bool) -> None:
    """Print how the run ended, or where to look.

    :raises RunFailed: where it did not do what it was asked for.
    """
    from dptrain.status.state import run_status

    (status,) = run_status([paths])
    if as_json:
        print_json(status.to_json(ranks=True))
    elif not waited and not status.bad:
        say(f"{status.run}: {status.state}; folder {status.run_dir}")
        say(f"look: dptrain status {status.called}    end: dptrain cancel {status.called}")
    elif not status.bad:
        for line in result_lines(status, paths):
            say(line)
    if status.bad:
        raise RunFailed(failure_text(status, paths))


@contextmanager
def ending_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a followed run as Ctrl-C does: nothing is left behind by a closed terminal."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _on_interrupt(runs: Sequence[RunPaths]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        note("cancelling local ranks ..." if any(_is_local(paths) for paths in runs) else "")
        raise Interrupted("interrupted; " + "; ".join(end_after_interrupt(paths) for paths in runs)) from None
    except BrokenPipeError:  # as in any pipeline, who is not listened to any more ends
        for paths in runs:
            end_after_interrupt(paths)
        raise


def end_after_interrupt(paths: RunPaths) -> str:
    """Cancel a local run; leave a SLURM job. What was done, in words."""
    from dptrain.launch.cancel import cancel
    from dptrain.records.intent import read_intent

    intent = read_intent(paths)
    if intent.launcher == "slurm":
        going = f"job {intent.job_id} goes on" if intent.job_id else "its submission was not confirmed"
        name = called(paths.dir)
        return f"{intent.run}: {going}; look: dptrain status {name}    end: dptrain cancel {name}"
    if intent.job_id is None:
        return f"{intent.run}: nothing was started"
    try:
        return cancel(paths)
    except DptrainError as error:
        return str(error)


def _is_local(paths: RunPaths) -> bool:
    from dptrain.records.intent import read_intent

    return read_intent(paths).launcher == "local"
