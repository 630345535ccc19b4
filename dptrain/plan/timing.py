"""How long a step takes and a run costs: as earlier runs of the same step took, or as a pilot of one call predicts.

Both leave out what is not in a step: waiting in the queue, loading libraries, evaluation on held-out images, saves, and the images of a
reconstruction. A measured step of training has the making of its batch, a predicted one has not.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from dataclasses import dataclass

from dptrain.plan.cards import runs_on
from dptrain.plan.forecast import relevant
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.dump import plain
from dptrain.spec.schema import Spec, Task

NEWEST = 5
"""Runs whose median is taken."""
LEFT_OUT = "without queue, start, evaluation and saves"
ROOM = 1.2
"""Of the predicted time, what plan advises to ask for."""
UNTIMED = ("problem.physics.noise_std", "algorithm.step_size", "algorithm.sigma", "algorithm.init")
"""Keys that do not change the time of a step, beside those that do not change its memory."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step, and who says so."""

    seconds: float
    source: str
    elsewhere: str | None = None
    """Why it says nothing of the cluster: it was timed on a machine of another kind."""

    def gpu_hours(self, steps: int, ranks: int) -> float | None:
        """Of all ranks, for all steps; None: not known of the cluster."""
        return None if self.elsewhere else self.seconds * steps * ranks / 3600


def step_key(spec: Spec, task: Task, max_batch_size: int, checkpoint: str) -> str:
    """Twelve hex digits of what the time of a step depends on, but for the machine.

    :param spec: as the ranks read it.
    """
    content = relevant(spec, UNTIMED if task == "train" else (*UNTIMED, "algorithm.iterations", "train"))
    # A profiler slows the steps down; the images of a batch are made within its step, small sets of them only once.
    images = [plain(spec)["problem"]["data"], spec.train.images] if task == "train" and spec.train else []
    value = [content, task, max_batch_size, checkpoint, spec.run.measure, images]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def recorded(key: str, profile: ClusterProfile) -> StepTime | None:
    """What runs of this step on the newest kind of card of this cluster took; None: there was none.

    :param key: of `step_key`.
    """
    same = [
        m for m in runs_on(profile) if m.cluster == profile.name and m.step_key == key and m.step_time_s is not None
    ]
    times = [m.step_time_s for m in same if m.card == same[-1].card and m.step_time_s is not None][-NEWEST:]
    if not times:
        return None
    runs = "1 run" if len(times) == 1 else f"the median of {len(times)} runs"
    return StepTime(
        seconds=statistics.median(times), source=f"measured: {runs} on {same[-1].card}, the newest {same[-1].run}"
    )


def time_line(step: StepTime | None, steps: int, ranks: int) -> str:
    """For the page."""
    if step is None:
        return "time of a step: not known; dptrain plan --pilot times one call of the denoiser on this machine"
    hours = step.gpu_hours(steps, ranks)
    if hours is None:
        return f"time of a step: {step.seconds:.3g} s here ({step.source}); {step.elsewhere}"
    return (
        f"time: {steps} steps of {step.seconds:.3g} s are {_span(steps * step.seconds)} and {hours:.3g} GPU hours "
        f"({LEFT_OUT}); {step.source}"
    )


def walltime_note(step: StepTime | None, steps: int, spec: Spec) -> str | None:
    """What a user must know where the steps take longer than the job may."""
    if step is None or step.elsewhere is not None:
        return None
    needed_s, asked_min = steps * step.seconds, spec.resources.time_min
    if needed_s <= 60 * asked_min:
        return None
    return (
        f"{steps} steps of {step.seconds:.3g} s take {_span(needed_s)}, longer than resources.time_min {asked_min}: the run is "
        f"stopped and goes on as often as run.max_timeouts ({spec.run.max_timeouts}) lets it; "
        f"with {ROOM - 1:.0%} to spare, write: --set resources.time_min={math.ceil(ROOM * needed_s / 60)}"
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
