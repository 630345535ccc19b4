"""Tiles per denoiser call and recomputation: as the spec says, or the fastest that the forecast finds to fit the card.

`fit` takes the fastest mode with which the smallest batch fits, then the largest batch that still fits. `auto` is never taken: it
keeps or recomputes by the number of batches of a rank, and the step waits for the busiest rank, for which it is `never` or `always`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias, TypeVar

from dptrain.geometry.tiles import tile_grid
from dptrain.plan.cards import Card
from dptrain.plan.choices import Choice
from dptrain.plan.forecast import GIB, Forecast, Request, forecast
from dptrain.plan.layouts import tiles_per_rank
from dptrain.plan.memory import gib
from dptrain.spec.networks import STAGED
from dptrain.spec.schema import Denoiser, Spec, Task

MARGIN = 0.05
"""Share of a card that `fit` leaves free: what driver and NCCL take before the first tensor. Values that a spec writes down may use
it, since they are refused only beyond the card."""
BATCH_KEY, MODE_KEY = "tiling.max_batch_size", "tiling.checkpoint"
LIKELY_MODES = 2
"""Modes asked about at first: where one of them fits the rest need not be."""
NOT_KNOWN = "the card's memory is not known (gpu_memory_gib of the profile)"
NOT_ASKED = "plan refuses this run for something else, so its memory is not forecast"


_Found = TypeVar("_Found")
_Search: TypeAlias = Generator[Sequence[Request], list[Forecast], _Found]
"""Yields requests, is sent their answers, and ends with what it looked for."""


@dataclass(frozen=True, kw_only=True)
class Decided:
    """How a step will be done."""

    batch: Choice
    mode: Choice
    request: Request
    """What plan asks about its memory."""
    forecast: Forecast | None
    """The answer, where the decision took one."""


def modes(spec: Spec, task: Task) -> tuple[str, ...]:
    """Modes of recomputation that plan may take, the fastest first and the one of least memory last."""
    if spec.tiling.checkpoint != "fit":
        return (spec.tiling.checkpoint,)
    if task == "infer":
        return ("never",)
    staged = isinstance(spec.denoiser, Denoiser) and spec.denoiser.name in STAGED and not spec.resources.compile
    return ("never", "always", "stages") if staged else ("never", "always")


def batches(spec: Spec) -> tuple[int, ...]:
    """Tiles per call that plan may take, the most first: what the busiest rank has in 1, 2, 4, ... calls of about one shape."""
    most, wanted = _most(spec), spec.tiling.max_batch_size
    if wanted != "fit":
        return (min(wanted, max(most, 1)),)
    calls = [2**n for n in range(most.bit_length() + 1)]
    return tuple(dict.fromkeys(max(1, -(-most // c)) for c in calls))


def lightest(spec: Spec, task: Task) -> Request:
    """The step of least memory that the spec leaves plan free to take."""
    return _request(spec, task, modes(spec, task)[-1], batches(spec)[-1])


def fits_with_margin(answer: Forecast, card: Card) -> bool:
    """Whether peak and allowance leave `MARGIN` of the card free; a forecast that failed does not."""
    return card.fits(answer, 1 - MARGIN) is True


def decide_step(spec: Spec, task: Task, card: Card | None) -> Decided:
    """The mode, then the batch; forecasts are asked for where there is a choice and the card is known.

    :param spec: with a decided patch.
    :param card: without a capacity `fit` is what needs the least memory (`always`, one tile); None: nothing is to be asked.
    """
    (decided,) = _together([_decide(spec, task, card)])
    return decided


def forecast_choices(specs: Sequence[Spec], task: Task, card: Card) -> None:
    """Have everything in the cache that `decide_step` and the plans of these specs ask, in few processes."""
    forecast([decided.request for decided in _together([_decide(spec, task, card) for spec in specs])])


def _together(searches: Sequence[_Search[Decided]]) -> list[Decided]:
    """Answer several searches: what they want to know at a time is asked at once."""
    ends: dict[int, Decided] = {}
    # What a search is told next; nothing at its start.
    told: dict[int, list[Forecast] | None] = dict.fromkeys(range(len(searches)))
    while told:
        asked: dict[int, Sequence[Request]] = {}
        for i, answers in told.items():
            try:
                asked[i] = next(searches[i]) if answers is None else searches[i].send(answers)
            except StopIteration as end:
                ends[i] = end.value
        fresh = iter(forecast([request for requests in asked.values() for request in requests]))
        told = {i: list(islice(fresh, len(requests))) for i, requests in asked.items()}
    return [ends[i] for i in range(len(searches))]


def _decide(spec: Spec, task: Task, card: Card | None) -> _Search[Decided]:
    if card is None or card.capacity_gib is None:
        return _least(spec, task, NOT_ASKED if card is None else NOT_KNOWN)
    mode, answer = yield from _find_mode(spec, task, card)
    if mode is None:
        mode = _only_mode(spec, task)
    elif answer is not None and answer.error is not None:
        request = lightest(spec, task)
        return Decided(batch=_batch(spec, request, ""), mode=mode, request=request, forecast=answer)
    batch, found = yield from _find_batch(spec, task, str(mode.value), card)
    size = batches(spec)[-1] if batch is None else int(batch.value)
    request = _request(spec, task, str(mode.value), size)
    reason = "fit: no rank has more than one tile"
    return Decided(
        batch=batch or _batch(spec, request, reason), mode=mode, request=request, forecast=found if batch else answer
    )


def _find_mode(spec: Spec, task: Task, card: Card) -> _Search[tuple[Choice | None, Forecast | None]]:
    """The fastest mode that fits with the smallest batch, or the last; nothing where there is one mode."""
    able = [_request(spec, task, mode, batches(spec)[-1]) for mode in modes(spec, task)]
    if len(able) == 1:
        return None, None
    answers: list[Forecast] = yield able[:LIKELY_MODES]
    if not any(fits_with_margin(answer, card) for answer in answers):
        answers = answers + (yield able[LIKELY_MODES:])
    known = dict(enumerate(answers))
    return _choice(able, known, next((i for i in known if fits_with_margin(known[i], card)), None), card, MODE_KEY)


def _find_batch(spec: Spec, task: Task, mode: str, card: Card) -> _Search[tuple[Choice | None, Forecast | None]]:
    """The largest batch that fits, or the smallest; nothing where there is one size.

    The smallest one's forecast says about which it is; what is not next to it is not asked for.
    """
    able = [_request(spec, task, mode, batch) for batch in batches(spec)]
    if len(able) == 1:
        return None, None
    known: dict[int, Forecast] = {}
    wanted = [len(able) - 1]
    while wanted:
        answers = yield [able[i] for i in wanted]
        known |= dict(zip(wanted, answers, strict=True))
        at = min((i for i, answer in known.items() if fits_with_margin(answer, card)), default=None)
        if at is None:
            break
        between = range(max((i for i in known if i < at), default=-1) + 1, at)
        if len(known) == 1:
            near = _expected_place(able, known[at], card)
            wanted = [i for i in (near - 1, near) if i in between]
        else:
            wanted = [between[len(between) // 2]] if between else []
    return _choice(able, known, at, card, BATCH_KEY)


def _expected_place(able: Sequence[Request], smallest: Forecast, card: Card) -> int:
    """Which batch should just fit if the memory of tiles grew with their number and nothing else did."""
    assert card.capacity_gib is not None, "nothing is asked without one"
    size = able[-1].max_batch_size
    each = smallest.terms[smallest.phase].get("tile_batch", 0) / size
    left = (1 - MARGIN) * card.capacity_gib * GIB / card.factor - smallest.peak_bytes
    return next((i for i, r in enumerate(able[:-1]) if (r.max_batch_size - size) * each <= left), len(able) - 2)


def _choice(
    able: Sequence[Request], known: Mapping[int, Forecast], at: int | None, card: Card, key: str
) -> tuple[Choice, Forecast]:
    """The request that fits, or the last, and why.

    :param able: from what needs the most memory on.
    :param known: by place in `able`; what stands before the first that fits too.
    :param at: the place of the first that fits; None: none does.
    """
    assert card.capacity_gib is not None, "nothing is asked without one"
    taken = len(able) - 1 if at is None else at
    limit = f"{gib((1 - MARGIN) * card.capacity_gib)} ({1 - MARGIN:.0%} of the card)"
    if at is None and known[taken].error is not None:
        reason = "fit: the least memory; it could not be forecast"
    elif at is None:
        reason = f"fit: the least memory, but {_needs(able[taken], known[taken], card, key)}, more than {limit}"
    else:
        before = f"; {_needs(able[at - 1], known[at - 1], card, key)}" if at > 0 else ""
        reason = f"fit: {_needs(able[at], known[at], card, key)}, within {limit}{before}"
    return Choice(key=key, value=_value(able[taken], key), reason=reason), known[taken]


def _needs(request: Request, answer: Forecast, card: Card, key: str) -> str:
    value = _value(request, key)
    what = f"{value} tile{'s' * (value != 1)} per call" if key == BATCH_KEY else str(value)
    verb = "need" if key == BATCH_KEY and value != 1 else "needs"
    if answer.error is not None:
        return f"{what} could not be forecast"
    return f"{what} {verb} {gib(card.needs_gib(answer))}, allowance included"


def _value(request: Request, key: str) -> int | str:
    return request.max_batch_size if key == BATCH_KEY else request.checkpoint


def _least(spec: Spec, task: Task, why: str) -> Decided:
    """Without a card: `always`, which every network can, and the smallest batch."""
    mode = "always" if spec.tiling.checkpoint == "fit" and task == "train" else modes(spec, task)[-1]
    request = _request(spec, task, mode, batches(spec)[-1])
    chosen = _only_mode(spec, task)
    if spec.tiling.checkpoint == "fit" and task == "train":
        chosen = Choice(key=MODE_KEY, value=mode, reason=f"fit: recomputing needs little memory; {why}")
    batch = _batch(spec, request, f"fit: one tile per call needs the least memory; {why}")
    return Decided(batch=batch, mode=chosen, request=request, forecast=None)


def _batch(spec: Spec, request: Request, why: str) -> Choice:
    """A batch that no forecast decides."""
    wanted, value = spec.tiling.max_batch_size, request.max_batch_size
    if wanted == "fit":
        reason = why or "fit: the least memory; it could not be forecast"
    elif wanted > value:
        reason = f"{wanted} asked for, a rank has at most {value} tiles"
    else:
        reason = "as the spec says"
    return Choice(key=BATCH_KEY, value=value, reason=reason)


def _only_mode(spec: Spec, task: Task) -> Choice:
    """The mode where there is nothing to choose."""
    wanted = spec.tiling.checkpoint
    reason = "as the spec says" if wanted != "fit" else "fit: without gradients there is nothing to recompute"
    return Choice(key=MODE_KEY, value=modes(spec, task)[-1], reason=reason)


def _most(spec: Spec) -> int:
    return tiles_per_rank(spec, tile_grid(spec.problem.image_size, spec.tiling)).most


def _request(spec: Spec, task: Task, mode: str, batch: int) -> Request:
    return Request(spec=spec, task=task, max_batch_size=batch, checkpoint=mode)
