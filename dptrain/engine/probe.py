"""What plan asks of the physics, in a process of its own: a question as JSON on stdin, one JSON line on stdout answers.

    {"spec": "name: ...", "memory_limit_gib": 0.75, "cpu_limit_s": 60}
    {"norm_sq": 1.0}

The spec is of a small image, see `dptrain.plan.norm`. {"refused": "..."}: the physics cannot be built from such a spec; {"error": "..."}:
why there is no answer, which the ranks may still have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from dptrain.engine.limits import OutOfTime, cpu_limit, is_out_of_memory, limit_memory
from dptrain.engine.problems import WholePhysics, build_physics, operator_norm_sq
from dptrain.errors import DptrainError
from dptrain.spec.load import parse_spec
from dptrain.spec.schema import Deblur, Spec


def norm_sq(spec: Spec) -> float:
    """||A||^2 of the stacked operator.

    :raises DptrainError: where the physics cannot be built.
    """
    device, dtype = torch.device("cpu"), torch.float64
    size = spec.problem.image_size
    physics = build_physics(spec, device, dtype)
    if isinstance(spec.problem.physics, Deblur):
        # A convolution with circular boundary is diagonal there; run as it is, a wide kernel takes gigabytes.
        kernel = physics.physics_list[0].filter[0, 0]
        return float(torch.fft.rfftn(kernel, s=size).abs().max() ** 2)
    return operator_norm_sq(WholePhysics(physics, (1, *size), device, dtype), spec.run.seed)


def answer(text: str, limit_s: float) -> dict[str, Any]:
    """The answer; whatever goes wrong is its reason.

    :param text: of a spec.
    :param limit_s: of processor time.
    """
    try:
        with cpu_limit(limit_s):
            return {"norm_sq": norm_sq(parse_spec(text, "stdin", Path.cwd(), ()).spec)}
    except OutOfTime as error:
        return {"error": str(error)}
    except DptrainError as error:
        return {"refused": str(error)}
    except Exception as error:  # libraries at the limit of memory: anything at all
        if is_out_of_memory(error):
            return {"error": "it takes more memory than a question of plan may"}
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer the question of stdin."""
    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    limit_memory(asked["memory_limit_gib"])
    print(json.dumps(answer(asked["spec"], asked["cpu_limit_s"])))


if __name__ == "__main__":
    main()
