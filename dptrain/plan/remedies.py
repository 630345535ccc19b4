"""What to write where a step does not fit a card: the cheapest change with which it does, as `--set key=value`.

Each key is tried alone in the order of what it costs: the layout, recomputation, smaller batches, a smaller patch, more ranks, fewer
replicas. Where none is enough alone, they are taken together in the same order. A change is tried as it is printed, through the
reader of specs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dptrain.errors import DptrainError
from dptrain.geometry.tiles import tile_grid
from dptrain.plan import checks, ranks
from dptrain.plan.cards import Card, card_of
from dptrain.plan.fitting import batches, lightest, modes
from dptrain.plan.forecast import Request, forecast
from dptrain.plan.inputs import freeze_weights
from dptrain.plan.patches import decide_patch
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import dump_spec, parse_spec
from dptrain.spec.networks import smallest_window, stride
from dptrain.spec.schema import Spec, Task

LAYOUT = "resources.layout"
KEYS = (LAYOUT, "tiling.checkpoint", "tiling.max_batch_size", "tiling.patch", ranks.KEY, "resources.replicas")
"""In the order of what a change costs: the layout sharded has the same answer and costs nothing."""
MODES = ("never", "auto", "always", "stages")
"""Of recomputation, each of less memory than the one before."""
LARGEST_PATCH = 512
MOST_TILES = 4096
"""Of a rank: so small a patch costs more in halos than any other change, and its forecast takes minutes."""
DEARER = 1.1
"""Times the pixels to denoise from which on they are said."""
WIDER = (2, 4, 8, 16)
"""How many times the ranks are tried: a few numbers, so that a refusal does not wait for many forecasts."""


def cheapest_change(spec: Spec, task: Task, profile: ClusterProfile, fixed: Collection[str] = ()) -> tuple[str, ...]:
    """`key=value` of one change, or of several together, with which the step fits the profile's card; none where none is found.

    :param spec: as it was written, `fit` and all.
    :param fixed: keys that cannot be changed: a sweep's own.
    """
    assert profile.gpu_memory_gib is not None, "nothing is refused for memory on cards that are not known"
    keys, card = [key for key in KEYS if key not in fixed], card_of(profile)
    for key in keys:
        found, _ = _first(spec, task, profile, card, (), key)
        if found is not None:
            return found
    taken: tuple[str, ...] = ()
    for key in keys:
        found, last = _first(spec, task, profile, card, taken, key)
        if found is not None:
            return found
        taken = last
    return ()


def advice(changes: Sequence[str], spec: Spec) -> str:
    """The end of a refusal.

    :param spec: as it was written.
    """
    if not changes:
        return "no other layout, smaller batch or patch, other recomputation or number of ranks was found with which it fits"
    return "it fits with: " + " ".join(f"--set {change}" for change in changes) + _price(spec, changes)


def _price(spec: Spec, changes: Sequence[str]) -> str:
    """What smaller tiles cost."""
    before, after = (_work(decide_patch(each)[0]) for each in (spec, changed(spec, changes)))
    return f" ({after:.3g} instead of {before:.3g} times the pixels to denoise)" if after > DEARER * before else ""


def _work(spec: Spec) -> float:
    """Padded tile area over image area of a spec with a decided patch."""
    return tile_grid(spec.problem.image_size, spec.tiling).work_multiplier


def _first(
    spec: Spec, task: Task, profile: ClusterProfile, card: Card, taken: tuple[str, ...], key: str
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The first value of a key with which it fits, beside changes taken already; and those with the last value of the key."""
    base = spec if not taken else changed(spec, taken)
    tried: list[tuple[tuple[str, ...], Request]] = []
    for value in _values(base, task, profile, key):
        changes = (*taken, f"{key}={value}")
        request = _request(spec, task, profile, changes)
        tried += [(changes, request)] if request is not None else []
    answers = forecast([request for _, request in tried])
    for (changes, _), answer in zip(tried, answers, strict=True):
        if card.fits(answer):
            return changes, changes
    return None, tried[-1][0] if tried else taken


def _request(spec: Spec, task: Task, profile: ClusterProfile, changes: Sequence[str]) -> Request | None:
    """The step of least memory of the changed spec; None where it would be refused for something else."""
    try:
        decided, _ = decide_patch(freeze_weights(changed(spec, changes)))
    except DptrainError:
        return None
    gpus = decided.resources.gpus
    askable = gpus == spec.resources.gpus or gpus in ranks.counts(decided, profile)
    return None if not askable or any(checks.refusals(decided, task)) else lightest(decided, task)


def changed(spec: Spec, changes: Sequence[str]) -> Spec:
    """The spec with these values set. Raises SpecError where it does not take them."""
    return parse_spec(dump_spec(replace(spec, sweep={})), "the spec", Path.cwd(), changes).spec


def _values(spec: Spec, task: Task, profile: ClusterProfile, key: str) -> Iterator[int | str]:
    """Values of a key that need less memory than the spec's, the cheapest first; none where plan has decided for the least already."""
    if key == LAYOUT and spec.resources.layout == "replicated":
        yield "sharded"
    elif key == "tiling.checkpoint" and task == "train" and spec.tiling.checkpoint != "fit":
        free = replace(spec, tiling=replace(spec.tiling, checkpoint="fit"))
        at = MODES.index(spec.tiling.checkpoint)
        yield from (mode for mode in modes(free, task) if MODES.index(mode) > at)
    elif key == "tiling.max_batch_size" and spec.tiling.max_batch_size != "fit":
        decided, _ = decide_patch(spec)
        free = replace(decided, tiling=replace(decided.tiling, max_batch_size="fit"))
        yield from (size for size in batches(free) if size < batches(decided)[0])
    elif key == "tiling.patch":
        yield from _patches(spec)
    elif key == ranks.KEY and spec.resources.layout == "sharded":
        able = ranks.counts(spec, profile)
        most = max(able, default=0)
        larger = (next((n for n in able if n >= by * spec.resources.gpus), most) for by in WIDER)
        yield from dict.fromkeys(n for n in larger if n > spec.resources.gpus)
    elif key == "resources.replicas":
        fewer = range(spec.resources.replicas - 1, 0, -1)
        yield from (n for n in fewer if spec.resources.gpus % n == 0)


def _patches(spec: Spec) -> Iterator[int]:
    """Halves of the patch, down to the halo or the smallest window, cut so that windows suit the network."""
    decided = decide_patch(spec)[0].tiling.patch
    edge = decided if isinstance(decided, int) else max(spec.problem.image_size)
    around, multiple = 2 * spec.tiling.halo, stride(spec.denoiser)
    while (edge := min(edge // 2, LARGEST_PATCH)) >= max(1, spec.tiling.halo):
        suited = (edge + around) // multiple * multiple - around
        if suited < 1 or suited + around < smallest_window(spec.denoiser):
            return
        tiles = math.prod(math.ceil(n / suited) for n in spec.problem.image_size)
        if tiles > MOST_TILES * spec.resources.ranks_per_replica:
            return
        yield suited
