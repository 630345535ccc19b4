"""The memory that a step will need, before the queue: asked of the engine in a process of its own, kept on disk.

The answer is that of the engine's storage tracker, which sees tensors alone. What a card needs beside them is an allowance, see
`cards.py`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import dptrain
from dptrain.plan.receptive import module_hash, weights_mark
from dptrain.records.process import program
from dptrain.spec.dump import plain
from dptrain.spec.load import dump_spec
from dptrain.spec.schema import Factory, Spec, Task

_LOG = logging.getLogger(__name__)
GIB = 2**30
TELL_AGAIN_S = 10.0
"""How often it is said how many of several answers there are."""
CPU_LIMIT_S = 300
"""Processor time of one answer."""
LIBRARIES_S = 20
"""Processor time until the first."""
PATIENCE = 6
"""Time that passes over processor time, before a process that sleeps is given up."""
MEMORY_LIMIT_GIB = 0.75
"""What the process may take beyond its libraries (0.7 GiB): together what a login node grants anyone."""
IRRELEVANT = (
    "name",
    "cluster",
    "sweep",
    "run",
    "problem.data",
    "tiling.max_batch_size",
    "tiling.checkpoint",
    "resources.time_min",
    "train.steps",
    "train.images",
    "train.held_out",
    "train.held_out_data",
    "train.learning_rate",
    "train.schedule",
    "train.save_every_steps",
)
"""Keys that do not change the memory of a step, or that a request says itself."""
SOURCES = ("engine", "geometry", "spec")
"""Folders whose code makes the forecast."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question: a spec as decided so far, and what plan would decide."""

    spec: Spec
    task: Task
    max_batch_size: int
    checkpoint: str

    def to_json(self) -> dict[str, Any]:
        """As the engine reads it."""
        return {
            "spec": dump_spec(self.spec),
            "task": self.task,
            "max_batch_size": self.max_batch_size,
            "checkpoint": self.checkpoint,
        }


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Memory of the most loaded rank in bytes, or why it is not known."""

    peaks: Mapping[str, int]
    """By phase: forward, and in training backward and optimizer; empty where the forecast failed."""
    terms: Mapping[str, Mapping[str, int]]
    """What each peak consists of."""
    per_step_bytes: int | None
    """What one more unrolled step adds to the peak; None in inference and for a single step."""
    bytes_sent: int | None
    """By that rank in one optimiser step, or in all iterations on an image; gradients of weights included."""
    rank: int | None
    error: str | None
    """Why there is none."""

    @property
    def phase(self) -> str:
        """The phase with the highest peak."""
        return max(self.peaks, key=lambda phase: self.peaks[phase])

    @property
    def peak_bytes(self) -> int:
        """The highest peak."""
        return self.peaks[self.phase]


def forecast(requests: Sequence[Request]) -> list[Forecast]:
    """Answers in the order of the requests. Those not known yet are worked out in one process of a few seconds."""
    keys = [_key(request) for request in requests]
    answers = {key: found for key in keys if key is not None and (found := _cached(key)) is not None}
    open_requests = [(key, request) for key, request in zip(keys, requests, strict=True) if key not in answers]
    made = _ask([request for _, request in open_requests])
    fresh = iter(made)
    results = []
    for key, _ in zip(keys, requests, strict=True):
        if key in answers:
            results.append(_read(answers[key]))
            continue
        value = next(fresh)
        if key is not None and "error" not in value:
            _keep(key, value)
        results.append(_read(value))
    return results


def _read(value: Mapping[str, Any]) -> Forecast:
    return Forecast(
        peaks=value.get("peaks", {}),
        terms=value.get("terms", {}),
        per_step_bytes=value.get("per_step_bytes"),
        bytes_sent=value.get("bytes_sent"),
        rank=value.get("rank"),
        error=value.get("error"),
    )


def _ask(requests: Sequence[Request]) -> list[dict[str, Any]]:
    """The engine's answers, or for each the reason why there is none. How far it is goes to the log: one answer takes up to a minute."""
    if not requests:
        return []
    asked = {
        "requests": [request.to_json() for request in requests],
        "memory_limit_gib": MEMORY_LIMIT_GIB,
        "cpu_limit_s": CPU_LIMIT_S,
    }
    answers: list[dict[str, Any]] = []
    limit_s = PATIENCE * (LIBRARIES_S + CPU_LIMIT_S * len(requests))
    told_s = time.monotonic()
    _LOG.info("forecasting the memory of %s (kept for the next plan) ...", _steps(len(requests)))
    with tempfile.TemporaryFile() as said, _started(said) as process:
        late = threading.Timer(limit_s, process.kill)
        late.daemon = True
        late.start()
        try:
            _tell(process, asked)
            for line in process.stdout or ():
                answers += _answer_in(line)
                if answers and time.monotonic() - told_s > TELL_AGAIN_S and len(answers) < len(requests):
                    told_s = time.monotonic()
                    _LOG.info("  %d of %d", len(answers), len(requests))
        finally:
            in_time = late.is_alive()
            late.cancel()
            process.kill()
        reason = f"no answer within {limit_s:g} s" if not in_time else _last_words(said, process.wait())
    return (answers + [{"error": reason}] * len(requests))[: len(requests)]


def _started(said: IO[bytes]) -> subprocess.Popen[str]:
    # On one thread and without GPUs: this may be a login node.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        program("dptrain.engine.forecast"), stdin=pipe, stdout=pipe, stderr=said, encoding="utf-8", env=env
    )


def _tell(process: subprocess.Popen[str], asked: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it may have ended already, and has said why
        process.stdin.write(json.dumps(asked))


def _answer_in(line: str) -> list[dict[str, Any]]:
    """The answer in a line, if it is one: user code may print too."""
    with suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict) and ("peaks" in value or "error" in value):
            return [value]
    return []


def _last_words(said: IO[bytes], code: int) -> str:
    said.seek(0)
    words = said.read().decode("utf-8", "replace").strip().splitlines()
    return f"its process ended without an answer: {words[-1] if words else f'exit code {code}'}"


def _steps(count: int) -> str:
    return "a step" if count == 1 else f"a step in {count} variants"


def _key(request: Request) -> str | None:
    """A name for everything that the answer depends on; None where that cannot be read here."""
    spec, physics = request.spec, request.spec.problem.physics
    try:
        marks = [weights_mark(spec)]
        if isinstance(physics, Factory):
            marks.append([module_hash(physics.factory, physics.search_path)])
    except OSError:
        return None
    value = [relevant(spec), request.task, request.max_batch_size, request.checkpoint, marks, _versions()]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def relevant(spec: Spec, besides: Sequence[str] = ()) -> dict[str, Any]:
    """The spec as plain values, without keys that do not change the memory of a step.

    :param besides: further dotted keys to leave out.
    """
    content: dict[str, Any] = plain(spec)
    for dotted in (*IRRELEVANT, *besides):
        *sections, last = dotted.split(".")
        table: Any = content
        for section in sections:
            table = table.get(section) or {}
        table.pop(last, None)
    return content


@lru_cache(maxsize=1)
def _versions() -> str:
    """Of the libraries, and of this project's own code, which changes without its version."""
    folder = Path(dptrain.__file__).parent
    source = hashlib.sha256()
    for part in SOURCES:
        for file in sorted((folder / part).rglob("*.py")):
            source.update(file.read_bytes())
    return f"{source.hexdigest()} {version('torch')} {version('deepinv')} {sys.version}"


def cache_folder() -> Path:
    """Where forecasts are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "dptrain" / "forecasts"


def _cached(key: str) -> dict[str, Any] | None:
    try:
        value = json.loads((cache_folder() / f"{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and "peaks" in value else None


def _keep(key: str, value: Mapping[str, Any]) -> None:
    path = cache_folder() / f"{key}.json"
    # A home that cannot be written costs the next plan some seconds, no more.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{key}.{os.getpid()}")
        beside.write_text(json.dumps(value), encoding="utf-8")
        beside.replace(path)
