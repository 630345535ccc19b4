"""What a run that ran out of memory may change and still have its result: each change with the memory that plan forecasts for it.

`remedies.py` looks for what fits a card before the run. Here the forecast, or what is said of the card, has been wrong already; so
the question is not what fits, but what needs how much less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dptrain.plan import ranks
from dptrain.plan.cards import Card
from dptrain.plan.fitting import BATCH_KEY, MODE_KEY, modes
from dptrain.plan.forecast import GIB, Request, forecast
from dptrain.plan.memory import Memory
from dptrain.plan.remedies import MODES
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.schema import Spec, Task

WORTH = 0.98
"""A change that leaves more than this share of the peak is not named."""


@dataclass(frozen=True, kw_only=True)
class Relief:
    """One change, as `--set` takes it."""

    change: str
    peak_gib: float | None
    """Of the most loaded rank, without allowance; None: not forecast."""


@dataclass(frozen=True, kw_only=True)
class Reliefs:
    """A step as it was planned, and lighter ones."""

    peak_gib: float | None
    """As `peak_gib` of a plan; None: not forecast."""
    terms_gib: dict[str, float]
    """What it consists of, largest first."""
    changes: tuple[Relief, ...]
    """In the order of what they cost; of those forecast only such as help."""


def reliefs(spec: Spec, task: Task, max_batch_size: int, checkpoint: str, profile: ClusterProfile | None) -> Reliefs:
    """Forecast the step and lighter ones, in one process of some seconds where they are not known yet.

    :param spec: that of a run directory: every value decided that the ranks read from it.
    :param max_batch_size: as plan decided, and so `checkpoint`.
    :param profile: says which numbers of ranks can be asked for; None: not known.
    """
    now = Request(spec=spec, task=task, max_batch_size=max_batch_size, checkpoint=checkpoint)
    able = list(_lighter(now, profile))
    answer, *others = forecast([now, *(request for _, request in able)])
    if answer.error is not None:
        return Reliefs(
            peak_gib=None,
            terms_gib={},
            changes=tuple(Relief(change=change, peak_gib=None) for change, _ in able),
        )
    peaks = [(change, other.peak_bytes) for (change, _), other in zip(able, others, strict=True) if other.error is None]
    return Reliefs(
        peak_gib=answer.peak_bytes / GIB,
        terms_gib=Memory(request=now, forecast=answer, card=Card(capacity_gib=None)).terms_gib,
        changes=tuple(
            Relief(change=change, peak_gib=peak / GIB) for change, peak in peaks if peak < WORTH * answer.peak_bytes
        ),
    )


def _lighter(now: Request, profile: ClusterProfile | None) -> Iterator[tuple[str, Request]]:
    """Changes of one key that `resume` takes."""
    spec, task = now.spec, now.task
    free = replace(spec, tiling=replace(spec.tiling, checkpoint="fit"))
    later = [mode for mode in modes(free, task) if MODES.index(mode) > MODES.index(now.checkpoint)]
    for mode in later if task == "train" else ():
        yield f"{MODE_KEY}={mode}", replace(now, checkpoint=mode)
    for size in dict.fromkeys((max(1, now.max_batch_size // 2), 1)):
        if size < now.max_batch_size:
            yield f"{BATCH_KEY}={size}", replace(now, max_batch_size=size)
    if profile is not None and spec.resources.layout == "sharded":
        gpus = next((n for n in ranks.counts(spec, profile) if n >= 2 * spec.resources.gpus), None)
        if gpus is not None:
            on = replace(spec, resources=replace(spec.resources, gpus=gpus))
            yield f"{ranks.KEY}={gpus}", replace(now, spec=on)
