"""What runs have needed beside what was forecast of them: JSON lines in `calibration.jsonl` of the folder of runs.

`report` adds a line per completed run, `plan` reads them. One line:

    {"kind": "measured", "t": 9.0, "run": "demo-20250102-030405-1a2b3c", "cluster": "site", "card": "Tesla V100-SXM2-32GB",
     "task": "train", "forecast_bytes": 1048576, "measured_bytes": 1153434, "step_key": "1a2b3c4d5e6f", "step_time_s": 0.8}

Of a run that has several lines the last one counts. Lines of other kinds, and damaged ones, are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dptrain.records.events import EventLog, read_events
from dptrain.records.paths import calibration_file
from dptrain.records.reading import real_number, whole_number

KIND = "measured"
CPU = "cpu"
"""Card of ranks that run on processors: a kind of its own, whose peaks are those of the tracker that also makes the forecast."""
MOST_BYTES = 10**15
LONGEST_STEP_S = 1e7


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One completed run."""

    run: str
    cluster: str
    """Name of the profile that it was made for."""
    card: str
    """What the device calls itself; `cpu`."""
    task: str
    forecast_bytes: int | None
    """Highest peak as plan had forecast it; None: it had not."""
    measured_bytes: int | None
    """Highest peak of a rank; None: not that of tensors alone."""
    step_key: str | None
    """What the time of a step depends on, see `dptrain.plan.timing`."""
    step_time_s: float | None
    """Median."""


def read_measured(root: Path) -> list[Measured]:
    """Every run's line in a folder of runs, oldest first; none where there is no such file, or something else in its place."""
    try:
        events = list(read_events(calibration_file(root)))
    except (OSError, ValueError):
        return []
    newest: dict[str, Measured] = {}
    for event in events:
        made = _parse(event)
        if made is not None:
            newest.pop(made.run, None)
            newest[made.run] = made
    return list(newest.values())


def store_measured(root: Path, found: Iterable[Measured]) -> int:
    """Append those that the file does not hold yet; how many that were.

    :raises OSError: a folder that cannot be written.
    """
    known = set(read_measured(root))
    new = [made for made in found if made not in known]
    if new:
        log = EventLog(calibration_file(root))
        try:
            for made in new:
                log.write(KIND, **asdict(made))
        finally:
            log.close()
    return len(new)


def _parse(event: dict[str, Any]) -> Measured | None:
    texts = [event.get(name) for name in ("run", "cluster", "card", "task")]
    if event.get("kind") != KIND or not all(isinstance(text, str) and text for text in texts):
        return None
    run, cluster, card, task = map(str, texts)
    key, step_time_s = event.get("step_key"), real_number(event.get("step_time_s"), LONGEST_STEP_S)
    return Measured(
        run=run,
        cluster=cluster,
        card=card,
        task=task,
        forecast_bytes=whole_number(event.get("forecast_bytes"), 1, MOST_BYTES),
        measured_bytes=whole_number(event.get("measured_bytes"), 1, MOST_BYTES),
        step_key=key if isinstance(key, str) else None,
        step_time_s=step_time_s if step_time_s is not None and step_time_s > 0 else None,
    )
