"""||A||^2 of the operators of a spec: asked of the engine in a process of its own, so that submitting loads no torch; kept on disk."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dptrain.errors import DptrainError, PlanRefused
from dptrain.plan import kept
from dptrain.records.process import program
from dptrain.spec.checks import deblur_kernel
from dptrain.spec.dump import plain
from dptrain.spec.load import dump_spec
from dptrain.spec.schema import Deblur, Denoiser, Factory, MultiframeSuperres, Run, SourceData, Spec, Tiling

KEPT = "norms"
"""Folder of answers."""
EDGE = 64
"""Pixels per axis of the image the norm is measured on: the built-in operators' norm hardly depends on the size."""
CPU_LIMIT_S = 60
"""Processor time of an answer."""
MEMORY_LIMIT_GIB = 0.75
"""What the process may take beyond its libraries."""
LIMIT_S = 6 * (20 + CPU_LIMIT_S)
"""Time that passes before a process that sleeps is given up."""


class NoNorm(DptrainError):
    """The engine has no answer; the message says why."""


def operator_norm_sq(spec: Spec) -> float | None:
    """||A||^2 of the stacked operator, on a small image; None for user code, which the ranks measure at full size.

    :raises PlanRefused: where the physics cannot be built.
    :raises NoNorm: where there is no answer.
    """
    if isinstance(spec.problem.physics, Factory):
        return None
    answer = _answer(_alone(spec))
    if "refused" in answer:
        raise PlanRefused(f"the physics cannot be built: {answer['refused']}")
    if "error" in answer:
        raise NoNorm(answer["error"])
    return float(answer["norm_sq"])


def _alone(spec: Spec) -> Spec:
    """The same physics on a small image whose axes the decimation divides: runs of a sweep, and rows of a table, mostly ask for it."""
    physics = spec.problem.physics
    factor = physics.factor if isinstance(physics, MultiframeSuperres) else 1
    edge = -(-EDGE // factor) * factor
    if isinstance(physics, Deblur):
        edge = max(edge, deblur_kernel(physics.blur_sigma))
    size = tuple(min(length, edge) for length in spec.problem.image_size)
    return Spec(
        name="norm",
        problem=replace(spec.problem, image_size=size, channels=1, data=SourceData(source="synthetic")),
        denoiser=Denoiser(name="identity"),
        tiling=Tiling(halo=0),
        run=Run(seed=spec.run.seed),
    )


def _answer(spec: Spec) -> dict[str, Any]:
    name = kept.name_of([plain(spec), kept.versions()])
    found = kept.read(KEPT, name)
    if found is not None:
        answer: dict[str, Any] = found
        return answer
    answer = _ask(dump_spec(spec))
    if "error" not in answer:
        kept.keep(KEPT, name, answer)
    return answer


@lru_cache(maxsize=64)
def _ask(text: str) -> dict[str, Any]:
    """The engine's answer, or {"error": why there is none}; once per process, also where it cannot be kept."""
    asked = {"spec": text, "memory_limit_gib": MEMORY_LIMIT_GIB, "cpu_limit_s": CPU_LIMIT_S}
    # On one thread and without GPUs: this may be a login node.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = program("dptrain.engine.probe")
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, check=False, env=env, timeout=LIMIT_S
        )
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {LIMIT_S:g} s"}
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": f"its process ended without an answer: {said[-1]}"}
    return answer
