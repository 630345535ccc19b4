"""What a resumed run may do differently: where and how it computes, not what it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dptrain.spec.dump import flow, plain
from dptrain.spec.schema import Spec, Task
from dptrain.spec.sweep import fingerprint

FREE = (
    "resources.gpus",
    "resources.layout",
    "resources.time_min",
    "resources.compile",
    "tiling.max_batch_size",
    "tiling.checkpoint",
    "train.save_every_steps",
    "run.stall_timeout_s",
    "run.setup_timeout_s",
    "run.keep_saves",
    "run.signal_lead_s",
    "run.max_preempts",
    "run.max_timeouts",
    "run.measure",
    "run.measure_warmup_steps",
    "run.measure_steps",
)
"""Keys that leave the result as it is, to rounding. A few more are free under conditions, see `refusals`."""


def changed(old: Spec, new: Spec) -> dict[str, tuple[Any, Any]]:
    """Key -> (old value, new value) of every key that differs."""
    before, after = dict(_leaves(plain(old))), dict(_leaves(plain(new)))
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def refusals(old: Spec, new: Spec) -> list[str]:
    """One sentence per change with which the result would be another one."""
    return [text for key, (a, b) in changed(old, new).items() if (text := _refusal(old, new, key, a, b)) is not None]


def longer(old: Spec, new: Spec, task: Task) -> bool:
    """Whether a run that is done has more to do."""
    return task == "train" and old.train is not None and new.train is not None and new.train.steps > old.train.steps


def fingerprint_after(kept: str | None, old: Spec, new: Spec, task: Task) -> str | None:
    """What a sweep knows the resumed run by: it stays the member it was where only memory was saved or time added.

    :param kept: the run's so far.
    """
    memory = replace(new.tiling, max_batch_size=old.tiling.max_batch_size, checkpoint=old.tiling.checkpoint)
    same = fingerprint(old, task) == fingerprint(replace(new, tiling=memory), task)
    return kept if same or kept is None else fingerprint(new, task)


def _refusal(old: Spec, new: Spec, key: str, before: Any, after: Any) -> str | None:
    said = f"{key}: {flow(before)} -> {flow(after)}"
    if key in FREE:
        return None
    if key == "train.steps" and old.train is not None and new.train is not None:
        if new.train.steps < old.train.steps:
            return f"{said}: only more steps can be asked for"
        if old.train.schedule != "constant":
            return f"{said}: the learning rate has followed the schedule {old.train.schedule} over {before} steps"
        return None
    if key in ("resources.replicas", "train.batch_size"):
        return _other_batches(old, new, said)
    if key == "cluster":
        return f"{said}: write --cluster NAME"
    return f"{said}: the result would be another one, which is another run"


def _other_batches(old: Spec, new: Spec, said: str) -> str | None:
    """Replicas and batch size together make the images of a step, which must stay the same ones."""
    if old.train is None or new.train is None:
        return f"{said}: replicas are for training"
    images = old.resources.replicas * old.train.batch_size
    if new.resources.replicas * new.train.batch_size == images:
        return None
    if images % new.resources.replicas == 0:
        write = f"train.batch_size={images // new.resources.replicas}"
    else:
        write = f"a resources.replicas that divides {images}"
    return f"{said}: every step has {images} images (resources.replicas x train.batch_size), and must keep them; write: {write}"


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        path = f"{above}.{key}" if above else key
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, path)
        else:
            yield path, inner
