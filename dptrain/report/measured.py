"""Passes on to plan what completed runs have needed: a line per run in `calibration.jsonl` beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from dptrain.errors import DptrainError
from dptrain.plan.timing import step_key
from dptrain.records.calibration import CPU, MOST_BYTES, Measured, store_measured
from dptrain.records.intent import Intent, read_intent
from dptrain.records.paths import RunPaths, calibration_file
from dptrain.records.reading import open_file, parse_json, problem_of, whole_number
from dptrain.spec.load import load_spec
from dptrain.status.model import RunStatus
from dptrain.status.show import read_result


def remember(runs: Sequence[RunPaths], statuses: Sequence[RunStatus]) -> Iterator[str]:
    """Store what plan can use of the runs; what was stored, and where that was not possible, for people."""
    made = [
        (paths.dir.parent, found)
        for paths, status in zip(runs, statuses, strict=True)
        if (found := measured_of(paths, status)) is not None
    ]
    for root, group in groupby(sorted(made, key=lambda item: str(item[0])), key=lambda item: item[0]):
        try:
            count = store_measured(root, [found for _, found in group])
        except OSError as error:
            yield f"not stored for plan: {problem_of(error, root)}"
            continue
        if count:
            yield f"stored for plan: {count} run{'s' * (count != 1)} in {calibration_file(root)}"


def measured_of(paths: RunPaths, status: RunStatus) -> Measured | None:
    """What a completed run has needed; None of any other, of one made to fail, and of one whose files cannot be read."""
    if status.state != "completed" or status.faults is not None:
        return None
    try:
        intent, plan = read_intent(paths), _plan(paths)
    except (OSError, ValueError):
        return None
    result = read_result(paths)
    card = result.get("card")
    if not isinstance(card, str) or not card:
        return None
    memory = plan.get("memory")
    return Measured(
        run=paths.run_id,
        cluster=intent.cluster,
        card=card,
        task=intent.task,
        forecast_bytes=whole_number(memory.get("peak_bytes"), 1, MOST_BYTES) if isinstance(memory, dict) else None,
        measured_bytes=_peak(result, card, status),
        step_key=_step_key(paths, intent, plan),
        step_time_s=status.step_time_s,
    )


def _plan(paths: RunPaths) -> dict[str, Any]:
    with open_file(paths.plan) as file:
        value = parse_json(file.read())
    return value if isinstance(value, dict) else {}


def _peak(result: dict[str, Any], card: str, status: RunStatus) -> int | None:
    """The highest peak, also of earlier attempts; None where a CPU could not follow its tensors and the whole process stands in."""
    peaks, largest = result.get("peak_memory_bytes"), result.get("largest_storage_bytes")
    followed = card != CPU or (isinstance(largest, list) and None not in largest)
    numbers = [whole_number(peak, 1, MOST_BYTES) for peak in (peaks if isinstance(peaks, list) else [])]
    known = [n for n in numbers if n is not None]
    return max(*known, status.peak_memory_bytes or 0) if followed and known else None


def _step_key(paths: RunPaths, intent: Intent, plan: dict[str, Any]) -> str | None:
    batch, mode = whole_number(plan.get("max_batch_size"), 1), plan.get("checkpoint")
    if batch is None or not isinstance(mode, str):
        return None
    try:
        return step_key(load_spec(paths.spec).spec, intent.task, batch, mode)
    except (DptrainError, OSError):
        return None
