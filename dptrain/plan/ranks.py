"""`resources.gpus: fit`: the fewest ranks on which a step fits the card, found with few forecasts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dptrain.errors import PlanRefused
from dptrain.plan import checks
from dptrain.plan.cards import Card, card_of
from dptrain.plan.choices import Choice
from dptrain.plan.fitting import MARGIN, lightest
from dptrain.plan.forecast import GIB, Forecast, Request, forecast
from dptrain.plan.inputs import freeze_weights
from dptrain.plan.memory import Memory, gib
from dptrain.plan.patches import decide_patch
from dptrain.scheduler.requests import nodes_and_tasks
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec
from dptrain.spec.schema import Spec, Task

KEY = "resources.gpus"
MOST_RANKS = 1024
"""More are not looked at."""
WIDER = (2, 4, 8)
"""How many times the ranks are looked at where the terms of the forecast do not say how many it takes."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What forecasts said about numbers of ranks."""

    count: int | None
    """The fewest with which a step fits, the next smaller number does not; None: none was found."""
    answers: Mapping[int, Forecast]
    """By number of ranks."""


def counts(spec: Spec, profile: ClusterProfile) -> list[int]:
    """Numbers of ranks that can be asked for with these replicas and this patch, ascending."""
    each = spec.resources.replicas
    if spec.tiling.patch == "none":
        return [each]
    most = profile.gpus_per_node if profile.launcher == "local" else MOST_RANKS
    return [n for n in range(each, most + 1, each) if _can_be_asked(n, profile)]


def decide_gpus(loaded: LoadedSpec, task: Task, profile: ClusterProfile) -> tuple[LoadedSpec, tuple[Choice, ...]]:
    """The spec with a number of ranks, and why; as it is where it says a number itself.

    :raises PlanRefused: where the card is not known, the memory cannot be forecast, or no number of ranks can be asked for.
    """
    if not loaded.fit_gpus:
        return loaded, ()
    capacity_gib = profile.gpu_memory_gib
    if capacity_gib is None:
        raise PlanRefused(
            f"resources.gpus: fit needs the memory of a card, and profile {profile.name} does not say it\n"
            f"    write: gpu_memory_gib: 32 in the profile, or --set resources.gpus=1"
        )
    spec, able = freeze_weights(loaded.spec), counts(loaded.spec, profile)
    if any(checks.refusals(decide_patch(spec)[0], task)):
        return loaded, ()  # it is refused for that, on however many ranks
    # With the margin taken off.
    card = replace(card_of(profile), capacity_gib=(1 - MARGIN) * capacity_gib)
    found = fewest(spec, task, able, card)
    if not found.answers:
        raise PlanRefused(
            "resources.gpus: fit: the profile can give no number of ranks that resources.replicas divides"
        )
    if found.count is None:
        return _beyond(loaded, found, card, fewest(spec, task, able, card_of(profile)))
    decided = replace(loaded.spec, resources=replace(loaded.spec.resources, gpus=found.count))
    reason = (
        f"fit: {_needs(found, found.count, card)}, within {gib(card.capacity_gib or 0)} ({1 - MARGIN:.0%} of the card)"
    )
    below = max((n for n in found.answers if n < found.count), default=None)
    reason += f"; {_needs(found, below, card)}" if below is not None else ""
    return replace(loaded, spec=decided, fit_gpus=False), (Choice(key=KEY, value=found.count, reason=reason),)


def _beyond(loaded: LoadedSpec, found: Search, card: Card, whole: Search) -> tuple[LoadedSpec, tuple[Choice, ...]]:
    """The fewest ranks with which it fits the whole card, or else the most: plan refuses those, and says what to change.

    :param found: where no number fits.
    :param whole: the same without a margin.
    """
    gpus = whole.count or max(found.answers)
    reason = f"fit: {_why_none(found, card)}"
    reason += f"; {_needs(whole, gpus, card)}, within the whole card" if whole.count else ""
    decided = replace(loaded.spec, resources=replace(loaded.spec.resources, gpus=gpus))
    return replace(loaded, spec=decided, fit_gpus=False), (Choice(key=KEY, value=gpus, reason=reason),)


def fewest(spec: Spec, task: Task, able: Sequence[int], card: Card) -> Search:
    """Where the step of least memory fits on so many ranks and not on the next smaller number of `able`.

    The terms of one forecast say about where to look; from there on the range is cut into four at a time.

    :param able: numbers of ranks, ascending.
    :param card: what peak and allowance are to fit.
    :raises PlanRefused: where a forecast fails.
    """
    if not able:
        return Search(count=None, answers={})
    answers: dict[int, Forecast] = {}
    wanted = {0}
    while wanted:
        _ask(spec, task, {able[i] for i in wanted}, answers)
        fitting = [i for i, n in enumerate(able) if n in answers and card.fits(answers[n])]
        high = min(fitting, default=len(able))
        low = max((i for i, n in enumerate(able[:high]) if n in answers), default=-1)
        wanted = _next(spec, task, able, answers, low, high, card)
    return Search(count=able[high] if high < len(able) else None, answers=answers)


def _next(
    spec: Spec,
    task: Task,
    able: Sequence[int],
    answers: Mapping[int, Forecast],
    low: int,
    high: int,
    card: Card,
) -> set[int]:
    """Positions to look at next, between `low`, which does not fit, and `high`, which does; none where they are neighbours."""
    between = range(low + 1, high)
    if high < len(able):
        return {between[len(between) * part // 4] for part in (1, 2, 3)} if between else set()
    if not between:
        return set()
    expected = _expected(request_on(spec, task, able[low]), answers[able[low]], card)
    if expected is not None:
        at = next((i for i in between if able[i] >= expected * able[low]), between[-1])
        return {i for i in (at - 1, at, at + 1) if i in between}
    tries = (next((i for i in between if able[i] >= factor * able[low]), between[-1]) for factor in WIDER)
    return set(tries)


def _expected(request: Request, answer: Forecast, card: Card) -> float | None:
    """How many times the ranks it should take if what shrinks did so ideally; None: what stays is too large by itself."""
    assert card.capacity_gib is not None, "nothing is asked without one"
    memory = Memory(request=request, forecast=answer, card=card)
    shrinking = sum(memory.terms_gib[term] for term in memory.shrinking)
    left = card.capacity_gib / card.factor - (answer.peak_bytes / GIB - shrinking)
    return shrinking / left if left > 0 else None


def _ask(spec: Spec, task: Task, ranks: Iterable[int], answers: dict[int, Forecast]) -> None:
    new = sorted(set(ranks) - answers.keys())
    made = forecast([request_on(spec, task, n) for n in new])
    for n, answer in zip(new, made, strict=True):
        if answer.error is not None:
            raise PlanRefused(f"resources.gpus: memory on {n} ranks could not be forecast: {answer.error}")
        answers[n] = answer


def request_on(spec: Spec, task: Task, gpus: int) -> Request:
    """The step of least memory on so many ranks."""
    on = replace(spec, resources=replace(spec.resources, gpus=gpus))
    return lightest(decide_patch(on)[0], task)


def _needs(found: Search, gpus: int, card: Card) -> str:
    words = "1 rank needs" if gpus == 1 else f"{gpus} ranks need"
    return f"{words} at least {gib(card.needs_gib(found.answers[gpus]))}, allowance included"


def _why_none(found: Search, card: Card) -> str:
    return f"no number of ranks fits {gib(card.capacity_gib or 0)}; {_needs(found, max(found.answers), card)}"


def _can_be_asked(gpus: int, profile: ClusterProfile) -> bool:
    if profile.launcher == "local":
        return True
    try:
        nodes_and_tasks(gpus, profile)
    except ValueError:
        return False
    return True
