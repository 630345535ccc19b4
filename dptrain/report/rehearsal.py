"""Two runs of one spec, one of them stopped and continued: whether they ended with the same numbers, and where the time went.

On a CPU the same means to the bit. On a GPU two runs of one program differ in their last digits, so that there it means closer
than `CLOSE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrain.records.events import Event, read_events
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.reading import real_number
from dptrain.records.saves import digest, save_steps
from dptrain.status.show import read_result

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLOSE = {"float64": 1e-6, "float32": 1e-3, "bf16": 5e-2}
"""By precision: how far two runs on GPUs may be apart, relative to the largest value. Adam's first steps are of the size of the
learning rate whatever the gradient, so that rounding can show in weights."""
NUMBERS = ("lr", "loss", "psnr_db")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One thing that both runs have."""

    what: str
    same_bits: bool
    apart: float | None
    """Largest difference over largest value; None: they cannot be compared, or nothing is apart."""
    problem: str | None = None
    """Why they cannot be compared."""

    def line(self) -> str:
        """For people."""
        if self.problem is not None:
            return f"{self.what}: {self.problem}"
        return f"{self.what}: " + (
            "equal to the bit" if self.same_bits else f"at most {self.apart:.1e} apart, relative"
        )


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run's time."""

    run: str
    """`uninterrupted` or `preempted`."""
    phase: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a rehearsal has found."""

    items: tuple[Compared, ...]
    tolerance: float
    """0: to the bit."""

    @property
    def same_bits(self) -> bool:
        return all(item.same_bits for item in self.items)

    @property
    def equal(self) -> bool:
        """Whether every item is as close as it has to be."""
        return all(
            item.same_bits or (item.problem is None and item.apart is not None and item.apart <= self.tolerance)
            for item in self.items
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "to_the_bit": self.same_bits,
            "tolerance": self.tolerance,
            "compared": [asdict(item) for item in self.items],
        }


def compare(whole: RunPaths, stopped: RunPaths, precision: str) -> Comparison:
    """Every number of two runs that have ended well.

    :param whole: made without a stop.
    :param precision: of both.
    """
    on_gpu = any(event.get("device") == "cuda" for event in _events(whole, 0, "start"))
    items = [_steps(whole, stopped), *_results(whole, stopped), *_arrays(whole, stopped)]
    return Comparison(items=tuple(items), tolerance=CLOSE[precision] if on_gpu else 0.0)


def phases(paths: RunPaths, run: str, asked_s: float, warned_s: float | None = None) -> list[Phase]:
    """Where the time of a run went, by the clocks of its ranks; attempts that did not end in order are left out.

    :param run: what to call it.
    :param asked_s: when it was submitted, seconds since the epoch.
    :param warned_s: when the warning was sent.
    """
    found: list[tuple[str, float]] = []
    before = asked_s
    for number in paths.attempts():
        every = [list(read_events(paths.attempt(number).rank_events(r))) for r in paths.attempt(number).ranks()]
        start, runs = _times(every, "start"), _times(every, "phase", phase="run")
        ends = _times(every, "final") + _times(every, "requeue")
        if not start or not runs or not ends:
            continue
        again = f" of attempt {number}" if number > 1 else ""
        found += [(f"until the ranks start{again}", min(start) - before), (f"set-up{again}", max(runs) - min(start))]
        steps = sum(event["kind"] == "step" for event in every[0])
        if warned_s is not None and _times(every, "requeue"):
            found.append(("until warned", max(0.0, warned_s - max(runs))))
            found.append(("from the warning until step and save are done", max(ends) - warned_s))
        else:
            found.append((f"{steps} steps{again}", max(ends) - max(runs)))
        before = max(ends)
    return [Phase(run=run, phase=phase, seconds=round(seconds, 3)) for phase, seconds in found]


def save_seconds(paths: RunPaths) -> float | None:
    """How long the save took that the run was continued from, or, where it was not continued, the longest; None: there was none."""
    asked = [event["step"] for event in _events(paths, 0, "requeue")]
    took = [event["seconds"] for event in _events(paths, 0, "save") if not asked or event["step"] in asked]
    return max(took, default=None)


def was_warned(paths: RunPaths) -> bool:
    """Whether any rank has seen the warning."""
    ranks = read_intent(paths).world_size
    return any(event["signal"] == "SIGUSR2" for rank in range(ranks) for event in _events(paths, rank, "signal"))


def _steps(whole: RunPaths, stopped: RunPaths) -> Compared:
    """The list of steps with their learning rate, loss and PSNR: every step once, whatever the number of attempts."""
    logs = [[(e["step"], *(e.get(name) for name in NUMBERS)) for e in _events(p, 0, "step")] for p in (whole, stopped)]
    what = f"{len(logs[0])} steps with their learning rate, loss and PSNR"
    numbers = [[step for step, *_ in log] for log in logs]
    if numbers[0] != numbers[1]:
        return Compared(what=what, same_bits=False, apart=None, problem=f"the other run logged the steps {numbers[1]}")
    return _numbers(what, [v for row in logs[0] for v in row], [v for row in logs[1] for v in row])


def _results(whole: RunPaths, stopped: RunPaths) -> Iterator[Compared]:
    first, second = read_result(whole), read_result(stopped)
    for key in ("psnr_db", "ssim", "loss", "step_size", "sigma"):
        a, b = first.get(key), second.get(key)
        if isinstance(a, list) and isinstance(b, list):
            yield _numbers(f"{key} of result.json, {len(a)} values", a, b)
        elif a != b:
            yield Compared(what=f"{key} of result.json", same_bits=False, apart=None, problem=f"{a} and {b}")


def _numbers(what: str, a: Sequence[float | None], b: Sequence[float | None]) -> Compared:
    if list(a) == list(b):
        return Compared(what=what, same_bits=True, apart=None)
    if len(a) != len(b) or any((x is None) != (y is None) for x, y in zip(a, b, strict=True)):
        return Compared(
            what=what, same_bits=False, apart=None, problem=f"{len(a)} and {len(b)} values, not of the same places"
        )
    # Each against its own size: a list may hold a learning rate beside a PSNR.
    apart = max(abs(x - y) / max(abs(x), 1e-300) for x, y in zip(a, b, strict=True) if x is not None and y is not None)
    return Compared(what=what, same_bits=False, apart=apart)


def _arrays(whole: RunPaths, stopped: RunPaths) -> Iterator[Compared]:
    """Reconstructions, and the weights of the last save."""
    pairs = [(file, stopped.output / file.name) for file in sorted(whole.output.glob("*.npy"))]
    if steps := save_steps(whole):
        weights = [paths.save(steps[-1]) / "model.safetensors" for paths in (whole, stopped)]
        pairs += [(weights[0], weights[1])] if weights[0].exists() else []
    for a, b in pairs:
        what = f"{a.relative_to(whole.dir)}"
        if not b.exists():
            yield Compared(what=what, same_bits=False, apart=None, problem="the other run does not have it")
        elif digest(a) == digest(b):
            yield Compared(what=what, same_bits=True, apart=None)
        else:
            apart = _apart(a, b)
            problem = "of another shape, or not finite" if apart is None else None
            yield Compared(what=what, same_bits=False, apart=apart, problem=problem)


def _apart(a: Path, b: Path) -> float | None:
    """Largest difference over largest value, over all arrays of two files; None where that is no number."""
    import numpy as np

    first, second = _read(a), _read(b)
    if first.keys() != second.keys() or any(first[name].shape != second[name].shape for name in first):
        return None
    apart = [
        float(np.abs(x.astype(np.float64) - second[name]).max() / max(float(np.abs(x).max()), 1e-300))
        for name, x in first.items()
        if x.size
    ]
    return max(apart, default=0.0) if all(real_number(value) is not None for value in apart) else None


def _read(path: Path) -> dict[str, NDArray[Any]]:
    import numpy as np

    if path.suffix == ".npy":
        return {"": np.load(path, allow_pickle=False)}
    from safetensors.numpy import load_file

    tensors: dict[str, NDArray[Any]] = load_file(path)
    return tensors


def _events(paths: RunPaths, rank: int, kind: str) -> list[Event]:
    """Of one rank over all attempts, in their order."""
    return [
        event
        for number in paths.attempts()
        for event in read_events(paths.attempt(number).rank_events(rank))
        if event["kind"] == kind
    ]


def _times(every: Sequence[Sequence[Event]], kind: str, **fields: str) -> list[float]:
    return [
        event["t"]
        for events in every
        for event in events
        if event["kind"] == kind and all(event.get(key) == value for key, value in fields.items())
    ]
