"""Two runs side by side: the same result? the same speed? what differs in spec and environment?

Output arrays are compared slab by slab, so that images of any size need little memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dptrain.errors import UsageError
from dptrain.records.saves import save_steps
from dptrain.report.derive import FEWEST_FOR_INTERVAL, Ratio, quartiles, ratio_of_medians
from dptrain.report.runs import Run, flatten, psnr_of_both

if TYPE_CHECKING:
    from numpy.typing import NDArray

Verdict = Literal["identical", "equal up to rounding", "different", "not comparable"]
ROUNDING = {"float64": 1e-9, "float32": 1e-4, "bf16": 3e-2}
"""`resources.precision` -> largest difference, relative to the larger of the two, that is taken for rounding. Sums over ranks are
made in another order than on one rank, and iterations carry that on: within 1e-4 in float32 is what the layouts are tested for."""
SLAB_ELEMENTS = 4_000_000
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that both runs have."""

    what: str
    verdict: Verdict
    largest: float | None = None
    """Largest absolute difference."""
    rms: float | None = None
    """Root mean square of the difference; of lists that of their entries."""
    relative: float | None = None
    """`largest` over the largest absolute value of either."""
    first: int | None = None
    """Of lists: the first entry that differs; of PSNR in training counted over the steps at which both runs were measured."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Steps of B against those of A."""

    a_s: float
    b_s: float
    """Medians, seconds."""
    a_quartiles_s: tuple[float, float]
    b_quartiles_s: tuple[float, float]
    a_steps: int
    b_steps: int
    ratio: Ratio
    """B over A, with the 95 % intervals of both medians."""

    @property
    def verdict(self) -> str:
        """In words."""
        if min(self.a_steps, self.b_steps) < FEWEST_FOR_INTERVAL:
            return f"fewer than {FEWEST_FOR_INTERVAL} timed steps: the ends are the fastest and the slowest of them"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "no difference that these steps could show"
        return "B is slower" if self.ratio.value > 1 else "B is faster"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything about two runs."""

    a: str
    b: str
    result: Verdict
    """The worst of `differences`; not comparable where there are none."""
    differences: tuple[Difference, ...]
    absent: tuple[str, ...]
    """What could not be compared, and why."""
    speed: Speed | None
    spec: tuple[tuple[str, Any, Any], ...]
    """(key, of A, of B)."""
    environment: tuple[tuple[str, Any, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """For other programs."""
        value = asdict(self)
        if self.speed is not None:
            value["speed"]["verdict"] = self.speed.verdict
        for key in ("spec", "environment"):
            value[key] = [{"key": k, "a": a, "b": b} for k, a, b in getattr(self, key)]
        return value


def compare(a: Run, b: Run) -> Comparison:
    """Compare two runs.

    :raises UsageError: where one of them trains and the other reconstructs.
    """
    if a.status.task != b.status.task:
        raise UsageError(
            f"{a.name} is of task {a.status.task} and {b.name} of {b.status.task}: they have nothing to compare\n"
            "    write: two runs of one task"
        )
    limit = max(ROUNDING.get(str(run.spec.get("resources.precision")), ROUNDING["float32"]) for run in (a, b))
    found: list[Difference] = []
    absent: list[str] = []
    for key, name in (("psnr_db", "PSNR path"), ("ssim", "SSIM path"), ("loss", "losses")):
        has = [bool(run.numbers(key)) for run in (a, b)]
        lists = psnr_of_both(a, b) if key == "psnr_db" else (a.entries(key), b.entries(key))
        if all(has) and any(lists):
            of_training = key == "psnr_db" and a.status.task == "train"
            what = f"PSNR after {len(lists[0])} steps that both measured" if of_training else name
            found.append(of_lists(what, *lists, limit))
        elif all(has):
            absent.append(f"{name}: it was never measured after the same step")
        elif any(has):
            absent.append(f"{name}: only {(a if has[0] else b).name} has it")
    for one in (*_outputs(a, b, limit), *_weights(a, b, limit)):
        absent.append(one) if isinstance(one, str) else found.append(one)
    if a.status.task == "train":
        absent.append("gradients: runs do not save them; losses and weights show what they have done")
    return Comparison(
        a=a.name,
        b=b.name,
        result=worst([d.verdict for d in found]),
        differences=tuple(found),
        absent=tuple(absent),
        speed=speed(a, b),
        spec=_unequal(a.spec, b.spec, skip=("name",)),
        environment=_unequal(flatten(a.environment), flatten(b.environment), skip=()),
    )


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """One word for all."""
    order: tuple[Verdict, ...] = ("different", "not comparable", "equal up to rounding", "identical")
    return min(verdicts, key=order.index, default="not comparable")


def of_lists(what: str, a: Sequence[float | None], b: Sequence[float | None], limit: float) -> Difference:
    """Two lists of numbers, entry by entry as far as both go; entries that are a number in neither are alike."""
    pairs = {i: (x, y) for i, (x, y) in enumerate(zip(a, b, strict=False)) if x is not None and y is not None}
    torn = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if (x is None) != (y is None)]
    notes = [] if len(a) == len(b) else [f"{len(a)} and {len(b)} entries; the first {min(len(a), len(b))} are compared"]
    notes += [f"{len(torn)} entries are a number in one only, the first of them {torn[0]}"] if torn else []
    apart = {i: abs(x - y) for i, (x, y) in pairs.items()}
    largest = max(apart.values(), default=None)
    scale = max((abs(v) for pair in pairs.values() for v in pair), default=0.0) or 1.0
    return Difference(
        what=what,
        verdict="different" if notes else _verdict(largest or 0.0, scale, limit),
        largest=largest,
        rms=math.sqrt(sum(d * d for d in apart.values()) / len(apart)) if apart else None,
        relative=None if largest is None else largest / scale,
        first=next((i for i in range(min(len(a), len(b))) if i in torn or apart.get(i)), None),
        note="; ".join(notes),
    )


def of_arrays(what: str, a: NDArray[Any], b: NDArray[Any], limit: float) -> Difference:
    """Two arrays, a part at a time."""
    import numpy as np

    if a.shape != b.shape:
        note = f"shapes {a.shape} and {b.shape}"
        return Difference(what=what, verdict="not comparable", note=note)
    largest, squares, scale = 0.0, 0.0, 0.0
    for part_a, part_b in _parts(a, b):
        x, y = part_a.astype(np.float64), part_b.astype(np.float64)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            return Difference(what=what, verdict="not comparable", note="holds numbers that are not finite")
        apart = np.abs(x - y)
        largest = max(largest, float(apart.max(initial=0)))
        squares += float(np.sum(apart**2))
        scale = max(scale, float(np.abs(x).max(initial=0)), float(np.abs(y).max(initial=0)))
    verdict = _verdict(largest, scale or 1.0, limit)
    rms = math.sqrt(squares / max(1, a.size))
    return Difference(what=what, verdict=verdict, largest=largest, rms=rms, relative=largest / (scale or 1.0))


def _verdict(largest: float, scale: float, limit: float) -> Verdict:
    if largest == 0:
        return "identical"
    return "equal up to rounding" if largest <= limit * scale else "different"


def _parts(a: NDArray[Any], b: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Rows of the second axis, so that a file mapped into memory is read in order; arrays of fewer axes whole."""
    if a.ndim < 3:
        yield a, b
        return
    rows = max(1, SLAB_ELEMENTS * a.shape[1] // max(1, a.size))
    for start in range(0, a.shape[1], rows):
        yield a[:, start : start + rows], b[:, start : start + rows]


def _outputs(a: Run, b: Run, limit: float) -> Iterator[Difference | str]:
    if a.status.task == "train":
        return
    names = [sorted(p.name for p in run.paths.output.glob("reconstruction*.npy")) for run in (a, b)]
    for name in names[0]:
        if name in names[1]:
            arrays = [open_array(run.paths.output / name) for run in (a, b)]
            yield of_arrays(f"output/{name}", arrays[0], arrays[1], limit)
    lonely = sorted(set(names[0]) ^ set(names[1]))
    if lonely:
        yield f"output: only one of the two has {', '.join(lonely[:4])}"
    if not any(names):
        yield "output: neither has a reconstruction"


def open_array(path: Path) -> NDArray[Any]:
    """An array mapped into memory.

    :raises UsageError: where the file is not an array of numbers.
    """
    import numpy as np

    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not an array: {error}\n    write: a run whose output is whole") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
        raise UsageError(f"{path} does not hold one array of real numbers\n    write: a run whose output is whole")
    return found


def _weights(a: Run, b: Run, limit: float) -> Iterator[Difference | str]:
    """Weights of the newest save of both, where they are of the same step."""
    if a.status.task != "train":
        return
    steps = [save_steps(run.paths) for run in (a, b)]
    common = sorted(set(steps[0]) & set(steps[1]))
    if not common:
        yield "weights: the runs have no saves of the same step"
        return
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = [load_file(run.paths.save(common[-1]) / WEIGHTS) for run in (a, b)]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        yield f"weights: those of step {common[-1]} cannot be read: {error}"
        return
    if tensors[0].keys() != tensors[1].keys():
        yield f"weights: the saves of step {common[-1]} hold other tensors"
        return
    if not tensors[0]:
        yield f"weights: the saves of step {common[-1]} hold no tensor"
        return
    every = [of_arrays(name, tensors[0][name], tensors[1][name], limit) for name in tensors[0]]
    most = max(every, key=lambda d: d.relative or 0.0)
    yield Difference(
        what=f"weights after step {common[-1]}",
        verdict=worst([d.verdict for d in every]),
        largest=max((d.largest or 0.0 for d in every), default=None),
        relative=most.relative,
        note=f"{len(every)} tensors" + (f"; relative to its largest value most in {most.what}" if most.largest else ""),
    )


def speed(a: Run, b: Run) -> Speed | None:
    """Step times of both; None where one has recorded none."""
    if not a.steps_s or not b.steps_s or a.step_s is None or b.step_s is None:
        return None
    return Speed(
        a_s=a.step_s,
        b_s=b.step_s,
        a_quartiles_s=quartiles(a.steps_s),
        b_quartiles_s=quartiles(b.steps_s),
        a_steps=len(a.steps_s),
        b_steps=len(b.steps_s),
        ratio=ratio_of_medians(b.steps_s, a.steps_s),
    )


def _unequal(a: dict[str, Any], b: dict[str, Any], skip: Sequence[str]) -> tuple[tuple[str, Any, Any], ...]:
    keys = dict.fromkeys([*a, *b])
    return tuple((key, a.get(key), b.get(key)) for key in keys if key not in skip and a.get(key) != b.get(key))
