"""Words for people: one line per run, the table, the paragraph of a failure, the summary of a result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dptrain.records.paths import RunPaths
from dptrain.records.reading import open_file, parse_json, real_number
from dptrain.status.model import Failure, RankStatus, RunStatus, first_word

TABLE_HEADER = ("RUN", "STATE", "STEP", "S/STEP", "ETA", "PSNR dB", "LOSS", "PEAK", "JOB", "SOURCE, AGE")
RANK_HEADER = ("RUN", "RANK", "HOST", "PID", "STATE", "PHASE", "STEP", "SEEN", "PEAK", "SENT")
TRACEBACK_LINES = 30
MESSAGE_CHARACTERS = 160


def seconds(value: float | None) -> str:
    """`0.42 s`, `12 s`, `3 min 20 s`, `5 h 02 min`, `3 d 4 h`; `-` where unknown."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.2f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def size(value: int | None) -> str:
    """Bytes with a unit."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def one_line(status: RunStatus, brief: bool = False) -> str:
    """State, step, quality, time left; `brief` leaves out what stands beside it already."""
    parts = [] if brief else [f"{status.run}:"]
    parts.append(status.state + (f" ({status.reason})" if status.reason else ""))
    if not brief and status.steps:
        parts.append(f"step {status.step}/{status.steps}")
    if status.psnr_db is not None:
        parts.append(f"PSNR {status.psnr_db:.2f} dB")
    elif status.loss is not None:
        parts.append(f"loss {status.loss:.4g}")
    if status.step_time_s is not None:
        parts.append(f"{seconds(status.step_time_s)}/step")
    if status.eta_s is not None:
        parts.append(f"ETA {seconds(status.eta_s)}")
    return "  ".join(parts)


def table_row(status: RunStatus) -> tuple[str, ...]:
    """One row under TABLE_HEADER."""
    attempt = f" (attempt {status.attempt})" if status.attempt > 1 else ""
    return (
        status.run,
        status.state + attempt,
        f"{status.step}/{status.steps}",
        number(status.step_time_s, ".3g"),
        seconds(status.eta_s),
        number(status.psnr_db, ".2f"),
        number(status.loss, ".4g"),
        size(status.peak_memory_bytes),
        status.job_id or "-",
        f"{status.source}, {seconds(status.age_s)}",
    )


def rank_row(run: str, rank: RankStatus) -> tuple[str, ...]:
    """One row under RANK_HEADER."""
    return (
        run,
        str(rank.rank),
        rank.host or "-",
        "-" if rank.pid is None else str(rank.pid),
        rank.state,
        rank.phase or "-",
        "-" if rank.step is None else str(rank.step),
        seconds(rank.last_seen_s),
        size(rank.peak_memory_bytes),
        size(rank.bytes_sent),
    )


def row_style(status: RunStatus) -> str | None:
    """Colour of the row in a terminal."""
    if status.bad:
        return "red"
    return {"completed": "green", "running": "cyan", "unknown": "yellow"}.get(first_word(status.state))


def remark(status: RunStatus) -> str | None:
    """What the row has no room for: why it waits, or how it failed, in one line; how the attempt before ended; what it warns of."""
    said = failure_line(status) if status.failure is not None else status.reason
    if status.faults:
        said = f"{said or status.state} (injected: {status.faults})"
    earlier = status.history[-1] if status.history and status.state != "completed" else None
    lines = [f"{status.run}: {text}" for text in (said, earlier, *(f"warning: {w}" for w in status.warnings)) if text]
    return "\n".join(lines) or None


def failure_line(status: RunStatus) -> str:
    """Who failed first, and the first line of what it said."""
    failure = status.failure
    if failure is None:
        return status.state
    message = failure.message.strip().splitlines()
    place = where(failure)
    return f"{failure.kind}" + (f": {place}" if place else "") + (f": {message[0]}" if message else "")


def follower_lines(status: RunStatus) -> list[str]:
    """A line per other rank that failed, and what it said: mostly that it lost the first one."""
    first = status.failure.rank if status.failure else None
    failed = [rank for rank in status.ranks if rank.rank != first and rank.state.startswith("failed")]
    return [f"rank {r.rank} on {r.host}: {r.state}" + (f": {short(r.message)}" if r.message else "") for r in failed]


def short(text: str) -> str:
    """A line that still reads as one: libraries add advice of their own to what they say."""
    return text if len(text) <= MESSAGE_CHARACTERS else f"{text[:MESSAGE_CHARACTERS].rstrip()} ..."


def failure_text(status: RunStatus, paths: RunPaths) -> str:
    """The paragraph of a run that did not end well: state, who, what, its traceback, where the log is."""
    lines = [f"{status.run}: {status.state}" + (f" ({status.reason})" if status.reason and not status.failure else "")]
    failure = status.failure
    if failure is not None:
        place = where(failure)
        lines += [f"first failure: {failure.kind}" + (f", {place}" if place else "")]
        lines += [f"  {line}" for line in failure.message.strip().splitlines()]
        if failure.traceback:
            lines += [f"  {line}" for line in failure.traceback.strip().splitlines()[-TRACEBACK_LINES:]]
    lines += [f"earlier: {text}" for text in status.history]
    lines += [f"injected on purpose: {status.faults}"] if status.faults else []
    lines += [f"log: {log_of(status, paths)}", f"what to try: dptrain status --why {status.called}"]
    return "\n".join(lines)


def result_lines(status: RunStatus, paths: RunPaths) -> list[str]:
    """PSNR before and after, or what there is instead, and where the pictures are."""
    lines = [f"{status.run}: {status.state}, {status.step} steps on {status.world_size} ranks"]
    result = read_result(paths)
    loss = _numbers(result.get("loss"))
    if isinstance(psnr := result.get("psnr_db"), list) and psnr:
        before, after = _when_measured(status, result, len(psnr) - 1)
        lines.append(f"PSNR {_decibels(psnr[0])} ({before}) -> {_decibels(psnr[-1])} ({after})")
    if loss:
        lines.append(f"loss {loss[0]:.4g} -> {loss[-1]:.4g}")
    output = result.get("output")
    pictures = [
        p
        for p in (output if isinstance(output, list) else [])
        if isinstance(p, str) and Path(p).name.startswith("side-by-side")
    ]
    lines += [f"side by side: {paths.dir / picture}" for picture in pictures[:4]]
    if len(pictures) > 4:
        lines.append(f"and {len(pictures) - 4} more in {paths.output}")
    lines.append(f"folder: {paths.dir}")
    return lines


def _decibels(value: object) -> str:
    """An iterate that equals the truth has no PSNR."""
    return "exact" if value is None else f"{value:.2f} dB" if isinstance(value, float | int) else "-"


def _when_measured(status: RunStatus, result: dict[str, Any], iterations: int) -> tuple[str, str]:
    """What the first and the last PSNR are of."""
    if status.task == "train":
        return "before training", f"after {status.step} steps, held-out images"
    images = result.get("images")
    if isinstance(images, list) and len(images) > 1:
        return "first iterate", f"after {iterations} iterations, mean over {len(images)} images"
    return "first iterate", f"after {status.step} steps"


def read_result(paths: RunPaths) -> dict[str, Any]:
    """result.json; empty where there is none."""
    try:
        with open_file(paths.result) as file:
            value = parse_json(file.read())
    except (OSError, ValueError):
        return {}
    return {key: _bounded(inner) for key, inner in value.items()} if isinstance(value, dict) else {}


def _bounded(value: Any) -> Any:
    """Numbers that JSON has none for, or that nothing measured can have, become null."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return None if real_number(value) is None else value
    if isinstance(value, dict):
        return {key: _bounded(inner) for key, inner in value.items()}
    return [_bounded(inner) for inner in value] if isinstance(value, list) else value


def _numbers(value: object) -> list[float]:
    return [v for inner in value if (v := real_number(inner)) is not None] if isinstance(value, list) else []


def where(failure: Failure) -> str:
    """`rank 1 on n2 at step 3 by SIGKILL`, as far as it is known."""
    parts: Sequence[tuple[object, str]] = (
        (failure.rank, f"rank {failure.rank}"),
        (failure.host, f"on {failure.host}"),
        (failure.step, f"at step {failure.step}"),
        (failure.signal, f"by {failure.signal}"),
    )
    return " ".join(text for value, text in parts if value is not None)


def log_of(status: RunStatus, paths: RunPaths) -> Path:
    """Where the failure is told: the failing rank's log, or that of what started the ranks."""
    attempt = paths.attempt(status.attempt)
    rank = status.failure.rank if status.failure else None
    if rank is not None and attempt.rank_log(rank).is_file():
        return attempt.rank_log(rank)
    if status.launcher == "local":
        return attempt.launcher_log
    batch = paths.batch_log_of(status.job_id) if status.job_id else paths.batch_log
    return batch if batch.is_file() else paths.batch_log
