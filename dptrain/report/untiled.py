"""Whether an untiled run of a tiled one is feasible, and the command that makes it. Asks plan; starts nothing."""

from __future__ import annotations

import shlex

from dptrain.errors import DptrainError
from dptrain.report.runs import Run

CHANGES = ("tiling.patch=none", "resources.gpus=1")


def advice(run: Run) -> str:
    """What to write to get the untiled run, with plan's opinion of it; or why plan refuses it."""
    from dptrain.plan.plan import make_plan
    from dptrain.records.intent import read_intent
    from dptrain.spec.load import load_spec
    from dptrain.spec.profiles import load_profile

    try:
        intent = read_intent(run.paths)
        loaded, cluster = load_spec(run.paths.spec, CHANGES), intent.cluster
        plan = make_plan(loaded, "infer", load_profile(cluster))
    except (DptrainError, OSError, ValueError) as error:
        return f"an untiled run cannot be planned: {error}"
    if plan.fits is False:
        return "an untiled run does not fit: " + "; ".join(plan.reasons)
    verdict = "fits" if plan.fits else "plan refuses nothing, but does not know the card's memory"
    changes = " ".join(f"--set {change}" for change in CHANGES)
    # A member's name says the values that are changed here.
    name = f"{(intent.sweep or loaded.spec.name)[:56]}-untiled"
    command = f"dptrain infer {shlex.quote(str(run.paths.spec))} --name {name} {changes} --cluster {cluster}"
    return f"there is no untiled run of this problem ({verdict}); write: {command}"
