"""Tiles per denoiser call and recomputation: as the spec says, or the fastest that the forecast finds to fit the card.

`fit` takes the fastest mode with which the smallest batch fits, then the largest batch that still fits. `auto` is never taken: it
keeps or recomputes by the number of batches of a rank, and the step waits for the busiest rank, for which it is `never` or `always`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dptrain.geometry.tiles import tile_grid
from dptrain.plan.cards import Card
from dptrain.plan.choices import Choice
from dptrain.plan.forecast import Forecast, Request, forecast
from dptrain.plan.layouts import tiles_per_rank
from dptrain.spec.networks import STAGED
from dptrain.spec.schema import Denoiser, Spec, Task

MARGIN = 0.05
"""Share of a card that `fit` leaves free: what driver and NCCL take before the first tensor. Values that a spec writes down may use
it, since they are refused only beyond the card."""
BATCH_KEY, MODE_KEY = "tiling.max_batch_size", "tiling.checkpoint"
NOT_ASKED = "the card's memory is not known (gpu_memory_gib of the profile)"


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


def mode_requests(spec: Spec, task: Task) -> list[Request]:
    """What deciding the mode takes: each with the smallest batch; nothing where there is one mode."""
    able = modes(spec, task)
    return [_request(spec, task, mode, batches(spec)[-1]) for mode in able] if len(able) > 1 else []


def batch_requests(spec: Spec, task: Task, mode: str) -> list[Request]:
    """What deciding the batch takes, once the mode is; nothing where there is one size."""
    able = batches(spec)
    return [_request(spec, task, mode, batch) for batch in able] if len(able) > 1 else []


def decide_step(spec: Spec, task: Task, card: Card) -> Decided:
    """The mode, then the batch; forecasts are asked for where there is a choice and the card is known.

    :param spec: with a decided patch.
    :param card: without a capacity `fit` is what needs the least memory (`always`, one tile).
    """
    if card.capacity_gib is None:
        return _least(spec, task)
    mode, answer = _first(mode_requests(spec, task), card, MODE_KEY)
    if mode is None:
        mode = _only_mode(spec, task)
    elif answer is not None and answer.error is not None:
        request = lightest(spec, task)
        return Decided(batch=_batch(spec, request, ""), mode=mode, request=request, forecast=answer)
    batch, found = _first(batch_requests(spec, task, str(mode.value)), card, BATCH_KEY)
    size = batches(spec)[-1] if batch is None else int(batch.value)
    request = _request(spec, task, str(mode.value), size)
    reason = "fit: no rank has more than one tile"
    return Decided(
        batch=batch or _batch(spec, request, reason), mode=mode, request=request, forecast=found if batch else answer
    )


def forecast_choices(specs: Sequence[Spec], task: Task, card: Card) -> None:
    """Have everything in the cache that `decide_step` and the plans of these specs ask, in few processes."""
    if card.capacity_gib is not None:
        forecast([request for spec in specs for request in mode_requests(spec, task)])
        modes_taken = [
            str(mode.value) if mode is not None else modes(spec, task)[-1]
            for spec in specs
            for mode, _ in [_first(mode_requests(spec, task), card, MODE_KEY)]
        ]
        forecast([r for spec, mode in zip(specs, modes_taken, strict=True) for r in batch_requests(spec, task, mode)])
    forecast([decide_step(spec, task, card).request for spec in specs])


def _first(requests: Sequence[Request], card: Card, key: str) -> tuple[Choice | None, Forecast | None]:
    """The first request that fits, or the last, and why; nothing of no requests."""
    if not requests:
        return None, None
    answers = forecast(requests)
    fitting = (i for i, answer in enumerate(answers) if fits_with_margin(answer, card))
    at = next(fitting, None)
    taken = len(requests) - 1 if at is None else at
    request, answer = requests[taken], answers[taken]
    reason = _reason(requests, answers, at, card, key)
    return Choice(key=key, value=_value(request, key), reason=reason), answer


def _reason(requests: Sequence[Request], answers: Sequence[Forecast], at: int | None, card: Card, key: str) -> str:
    assert card.capacity_gib is not None, "nothing is asked without one"
    limit = f"{(1 - MARGIN) * card.capacity_gib:.2f} GiB ({1 - MARGIN:.0%} of the card)"
    if answers[-1].error is not None and at is None:
        return "fit: the least memory; it could not be forecast"
    needs = [_needs(request, answer, card, key) for request, answer in zip(requests, answers, strict=True)]
    if at is None:
        return f"fit: the least memory, but {needs[-1]}, more than {limit}"
    before = f"; {needs[at - 1]}" if at > 0 else ""
    return f"fit: {needs[at]} of {limit}{before}"


def _needs(request: Request, answer: Forecast, card: Card, key: str) -> str:
    value = _value(request, key)
    what = f"{value} tile{'s' * (value != 1)} per call" if key == BATCH_KEY else str(value)
    verb = "need" if key == BATCH_KEY and value != 1 else "needs"
    if answer.error is not None:
        return f"{what} could not be forecast"
    return f"{what} {verb} {card.needs_gib(answer):.2f} GiB with allowance"


def _value(request: Request, key: str) -> int | str:
    return request.max_batch_size if key == BATCH_KEY else request.checkpoint


def _least(spec: Spec, task: Task) -> Decided:
    """Without a card: `always`, which every network can, and the smallest batch."""
    mode = "always" if spec.tiling.checkpoint == "fit" and task == "train" else modes(spec, task)[-1]
    request = _request(spec, task, mode, batches(spec)[-1])
    chosen = _only_mode(spec, task)
    if spec.tiling.checkpoint == "fit" and task == "train":
        chosen = Choice(key=MODE_KEY, value=mode, reason=f"fit: recomputing needs little memory; {NOT_ASKED}")
    batch = _batch(spec, request, f"fit: one tile per call needs the least memory; {NOT_ASKED}")
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
