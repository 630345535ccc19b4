"""The memory that a step will need, before the queue: asked of the engine in a process of its own, kept on disk.

The answer is that of the engine's storage tracker, which sees tensors alone. What a card needs beside them is an allowance, see
`cards.py`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from dptrain.plan import kept
from dptrain.plan.receptive import weights_mark
from dptrain.plan.user_code import factory_mark
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
KEPT = "forecasts"
"""Folder of answers."""


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
    marks: dict[str, list[Any] | None] = {}
    keys = [_key(request, marks) for request in requests]
    answers = {key: found for key in keys if key is not None and (found := kept.read(KEPT, key)) is not None}
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
            kept.keep(KEPT, key, value)
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
    answers: dict[int, dict[str, Any]] = {}
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
                answers |= _answer_in(line)
                if answers and time.monotonic() - told_s > TELL_AGAIN_S and len(answers) < len(requests):
                    told_s = time.monotonic()
                    _LOG.info("  %d of %d", len(answers), len(requests))
        finally:
            in_time = late.is_alive()
            late.cancel()
            process.kill()
        reason = f"no answer within {limit_s:g} s" if not in_time else _last_words(said, process.wait())
    return [answers.get(number, {"error": reason}) for number in range(len(requests))]


def _started(said: IO[bytes]) -> subprocess.Popen[str]:
    # On one thread and without GPUs: this may be a login node.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        program("dptrain.engine.forecast"),
        stdin=pipe,
        stdout=pipe,
        stderr=said,
        encoding="utf-8",
        errors="replace",
        env=env,
    )


def _tell(process: subprocess.Popen[str], asked: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it may have ended already, and has said why
        process.stdin.write(json.dumps(asked))


def _answer_in(line: str) -> dict[int, dict[str, Any]]:
    """The answer in a line by the number of its request, if it is one: user code may print too."""
    with suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict) and ("peaks" in value or "error" in value) and isinstance(value.get("request"), int):
            return {value.pop("request"): value}
    return {}


def _last_words(said: IO[bytes], code: int) -> str:
    said.seek(0)
    words = said.read().decode("utf-8", "replace").strip().splitlines()
    return f"its process ended without an answer: {words[-1] if words else f'exit code {code}'}"


def _steps(count: int) -> str:
    return "a step" if count == 1 else f"a step in {count} variants"


def _key(request: Request, made: dict[str, list[Any] | None] | None = None) -> str | None:
    """A name for everything that the answer depends on; None where that cannot be read here.

    :param made: marks of user code that were read already, for the other requests of a call.
    """
    spec, made = request.spec, {} if made is None else made
    content = repr((spec.denoiser, spec.problem.physics))
    if content not in made:
        made[content] = _marks(spec)
    marks = made[content]
    if marks is None:
        return None
    return kept.name_of(
        [relevant(spec), request.task, request.max_batch_size, request.checkpoint, marks, kept.versions()]
    )


def _marks(spec: Spec) -> list[Any] | None:
    """Of weights and user code; None where they cannot be read here."""
    physics = spec.problem.physics
    try:
        return [weights_mark(spec), *([factory_mark(physics)] if isinstance(physics, Factory) else [])]
    except OSError:
        return None


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
