"""What to try after memory ran out: what plan says the memory is, and changes of the same run with which it is less."""

from __future__ import annotations

from collections.abc import Iterator

from dptrain.plan.fitting import BATCH_KEY, MODE_KEY
from dptrain.plan.forecast import GIB
from dptrain.plan.memory import LABELS
from dptrain.plan.relief import Relief, Reliefs, reliefs
from dptrain.plan.remedies import MODES
from dptrain.records.reading import real_number, whole_number
from dptrain.status.case import Advice, Case
from dptrain.status.show import size

MOST_GIB = 1e9
"""A larger number in a plan is damage."""
WORDS = {
    MODE_KEY: "recompute in the backward pass instead of keeping",
    BATCH_KEY: "fewer tiles per call of the denoiser",
    "resources.gpus": "more ranks, each with a smaller part of the image",
}


def device(case: Case) -> Iterator[Advice]:
    """Memory of the GPU, or of the host where tensors live there: what plan forecasts, and what needs less."""
    asked = _reliefs(case)
    yield Advice(text=_forecast(case, asked))
    for relief in asked.changes if asked else ():
        yield Advice(text=_saving(relief, asked), command=case.resume(relief.change))
    if asked is None:
        yield Advice(text="smaller batches of tiles need less", command=case.resume(f"{BATCH_KEY}=1"))
    elif not asked.changes and case.spec is not None and isinstance(patch := case.spec.tiling.patch, int):
        text = "no lighter step of this run is known; with smaller tiles it is another run, whose result may differ at their seams"
        yield Advice(text=text, command=case.again(f"tiling.patch={max(1, patch // 2)}"))


def host(case: Case) -> Iterator[Advice]:
    """Memory of the host, refused for certain."""
    if case.on_gpu:
        yield Advice(text="the tensors are on the GPU: the host's memory went to data, files or libraries")
        yield from _more_memory(case)
    else:
        yield from device(case)
        yield from _more_memory(case)


def likely_host(case: Case) -> Iterator[Advice]:
    """SIGKILL, whose sender nobody names: most often it is the kernel."""
    failure = case.status.failure
    on = f" on {failure.host}" if failure and failure.host else ""
    yield Advice(
        text="likely, but not certain: the host's memory ran out and the kernel killed the rank; a person or the site's limits "
        f"send the same signal. `dmesg | grep -i 'killed process'`{on} says whether it was the kernel"
    )
    yield Advice(text=_forecast(case, None))
    yield from _more_memory(case)
    if not case.on_gpu and (whole_number(case.plan.get("max_batch_size"), 1) or 2) > 1:
        yield Advice(text="smaller batches of tiles need less", command=case.resume(f"{BATCH_KEY}=1"))


def _reliefs(case: Case) -> Reliefs | None:
    batch, mode = whole_number(case.plan.get("max_batch_size"), 1), case.plan.get("checkpoint")
    if case.spec is None or batch is None or mode not in MODES:
        return None
    return reliefs(case.spec, "train" if case.status.task == "train" else "infer", batch, mode, case.profile)


def _forecast(case: Case, asked: Reliefs | None) -> str:
    """Both sides: what plan forecast, term by term, and what the rank had."""
    memory = case.plan.get("memory")
    kept = memory if isinstance(memory, dict) else {}
    peak = asked.peak_gib if asked and asked.peak_gib is not None else real_number(kept.get("peak_gib"), MOST_GIB)
    terms = asked.terms_gib if asked and asked.terms_gib else kept.get("terms")
    parts = []
    if peak is None:
        parts.append("plan was not asked for a forecast of its memory")
    else:
        parts.append(f"plan forecasts {_gib(peak)} for the rank with the most")
        sizes = (
            {name: gib for name, gib in terms.items() if real_number(gib, MOST_GIB)} if isinstance(terms, dict) else {}
        )
        if sizes:
            term = max(sizes, key=lambda name: sizes[name])
            parts.append(f"the largest term is {term}, {LABELS.get(term, term)}: {_gib(sizes[term])}")
    failure = case.status.failure
    rank = next((r for r in case.status.ranks if failure is not None and r.rank == failure.rank), None)
    if rank is not None and rank.peak_memory_bytes:
        parts.append(f"rank {rank.rank} had up to {size(rank.peak_memory_bytes)}")
    card = real_number(kept.get("capacity_gib"), MOST_GIB)
    if card:
        parts.append(f"the card has {card:g} GiB by the profile")
    return "; ".join(parts)


def _saving(relief: Relief, asked: Reliefs | None) -> str:
    key, _, value = relief.change.partition("=")
    what = f"{WORDS[key]} ({value})"
    if relief.peak_gib is None or asked is None or asked.peak_gib is None:
        return what
    return f"{what}: forecast {_gib(relief.peak_gib)}, {_gib(asked.peak_gib - relief.peak_gib)} less"


def _gib(value: float) -> str:
    return size(round(value * GIB))


def _more_memory(case: Case) -> Iterator[Advice]:
    if case.status.launcher == "local":
        yield Advice(
            text="this machine's memory is shared with whatever else runs on it: see `free -h`", command=case.resume()
        )
        return
    profile = case.profile
    now = "" if profile is None else f"; now: {_asked_memory(profile.mem_per_node_gib, profile.mem_per_cpu_gib)}"
    name = "the profile" if profile is None else f"profile {profile.name}"
    yield Advice(
        text=f"ask for more memory (mem_per_node_gib of {name}, 0 for all of the node{now}), or for fewer ranks per node",
        command=case.resume(),
    )


def _asked_memory(node_gib: float | None, cpu_gib: float | None) -> str:
    if node_gib is not None:
        return f"mem_per_node_gib: {node_gib:g}"
    return f"mem_per_cpu_gib: {cpu_gib:g}" if cpu_gib is not None else "no line, hence the site's default"
