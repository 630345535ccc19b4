"""What a person who watches several runs is shown: a line per run with its trend, and one line about all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

from dptrain.status.model import RunStatus, first_word
from dptrain.status.show import number, seconds, size
from dptrain.status.spark import sparkline

LIVE_HEADER = ("RUN", "STATE", "STEP", "TREND", "PSNR dB", "LOSS", "STEPS/S", "ETA", "MEMORY")
TREND_COLUMNS = 16

RUNNING = ("running", "starting", "stalled")
QUEUED = ("queued", "requeued", "submitting")


def live_row(status: RunStatus, marks: str) -> tuple[str, ...]:
    """One row under LIVE_HEADER."""
    rate = 1 / status.step_time_s if status.step_time_s else None
    return (
        status.run,
        status.state + (f" (attempt {status.attempt})" if status.attempt > 1 else ""),
        f"{status.step}/{status.steps}",
        sparkline(status.path, TREND_COLUMNS, marks),
        number(status.psnr_db, ".2f"),
        number(status.loss, ".4g"),
        number(rate, ".3g"),
        seconds(status.eta_s),
        size(status.peak_memory_bytes),
    )


def kind_of(status: RunStatus) -> str:
    """completed, running, queued, failed, or unknown."""
    word = first_word(status.state)
    if word in RUNNING:
        return "running"
    if word in QUEUED:
        return "queued"
    return word if word in ("completed", "unknown") else "failed"


def summary(statuses: Sequence[RunStatus], not_started: int = 0) -> str:
    """`12 runs: 5 completed, 2 running, 1 failed, 4 queued; all done in about 3 min 20 s`.

    :param not_started: members of a sweep that have no run yet; they count as queued.
    """
    counts = Counter(kind_of(status) for status in statuses)
    counts["queued"] += not_started
    kinds = ("completed", "running", "failed", "queued") + (("unknown",) if counts["unknown"] else ())
    total = len(statuses) + not_started
    text = f"{total} run{'s' if total != 1 else ''}: " + ", ".join(f"{counts[kind]} {kind}" for kind in kinds)
    left_s = time_left_s(statuses, not_started)
    return text if left_s is None else f"{text}; all done in about {seconds(left_s)}"


def time_left_s(statuses: Sequence[RunStatus], not_started: int = 0) -> float | None:
    """Seconds until all have ended; None where nothing says.

    What runs now ends at the latest ETA. What waits is taken to be as long as the median of the runs that have made steps, with
    their median set-up, and as many of it to run at once as do now.
    """
    running = [status for status in statuses if kind_of(status) == "running"]
    waiting = sum(kind_of(status) == "queued" for status in statuses) + not_started
    etas = [status.eta_s for status in running if status.eta_s is not None]
    if len(etas) < len(running) or not running:
        return None
    if not waiting:
        return max(etas)
    whole = [status.steps * status.step_time_s for status in statuses if status.step_time_s and status.steps]
    if not whole:
        return None
    setups = [status.setup_s for status in statuses if status.setup_s is not None]
    return max(etas) + math.ceil(waiting / len(running)) * (median(whole) + (median(setups) if setups else 0.0))


def still_going(statuses: Sequence[RunStatus], most: int = 6) -> str:
    """What goes on after somebody has stopped looking: each run with its state, and how to end it."""
    going = [status for status in statuses if not status.ended]
    lines = [f"  {s.run}: {s.state}, step {s.step}/{s.steps}" for s in going[:most]]
    if len(going) > most:
        lines.append(f"  and {len(going) - most} more")
    named = " ".join(status.called for status in going[:most])
    return "\n".join([f"{len(going)} still going:", *lines, f"    to end: dptrain cancel {named}"])


def rows_that_fit(statuses: Sequence[RunStatus], rows: int) -> list[RunStatus]:
    """As many runs as there are rows, in their order: those that move first, then those that failed, then the rest, newest first."""
    if len(statuses) <= rows:
        return list(statuses)
    order = {"running": 0, "failed": 1, "unknown": 1, "queued": 2, "completed": 3}
    ranked = sorted(range(len(statuses)), key=lambda i: (order[kind_of(statuses[i])], -i))
    return [statuses[i] for i in sorted(ranked[: max(rows, 0)])]
