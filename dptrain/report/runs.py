"""One run as the report sees it: its records, read once, and the numbers that every table and figure asks for.

Records are other processes' words: what is absent or of a wrong type is None here, and never stops the other runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dptrain.records.events import Event, read_events
from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.records.reading import open_file, parse_json, real_number, whole_number
from dptrain.status.model import RunStatus, first_word
from dptrain.status.show import read_result

Row = dict[str, Any]
GIB = 2**30
SHORTEST_STEP_S = 1e-9
NOT_MEASURED = ("name", "cluster", "resources.time_min", "train.save_every_steps")
"""Keys of a spec that change neither the result of a run nor how long its steps take; so are all of `run` but seed and measure."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run and what it has left behind."""

    paths: RunPaths
    status: RunStatus
    spec: Row = field(default_factory=dict)
    """The frozen spec, flattened: `algorithm.iterations` -> 10."""
    plan: Row = field(default_factory=dict)
    """plan.json."""
    environment: Row = field(default_factory=dict)
    """environment.json."""
    result: Row = field(default_factory=dict)
    """result.json."""
    cluster: str | None = None
    """Name of the profile that it ran on."""
    asked_attempt: int = 1
    """The attempt that a user's last command began with; what went before may have run on other resources."""

    @property
    def name(self) -> str:
        """The run id."""
        return self.status.run

    @property
    def completed(self) -> bool:
        """Only such runs are in figures."""
        return self.status.state == "completed"

    @property
    def ranks(self) -> int:
        """Ranks of the newest attempt."""
        return self.status.world_size

    @property
    def image_size(self) -> tuple[int, ...] | None:
        """Pixels per axis."""
        value = self.spec.get("problem.image_size")
        sides = [whole_number(v, 1) for v in value] if isinstance(value, list) else []
        known = tuple(side for side in sides if side is not None)
        return known if known and len(known) == len(sides) else None

    @property
    def untiled(self) -> bool:
        """The denoiser sees the whole image at once."""
        patch, size = self.spec.get("tiling.patch"), self.image_size
        number = whole_number(patch, 1)
        return patch == "none" or (number is not None and size is not None and number >= max(size))

    @property
    def work(self) -> float | None:
        """Pixels that the denoiser is given over those of the image; an untiled run is the measure and has 1."""
        return 1.0 if self.untiled else real_number(self.plan.get("work_multiplier"))

    def decided(self, key: str) -> Any:
        """`max_batch_size` or `checkpoint` as plan has decided it; the spec may say `fit`."""
        value = self.plan.get(key)
        return self.spec.get(f"tiling.{key}") if value is None else value

    def forecast(self, key: str) -> float | None:
        """A number of the plan's `memory`, GiB."""
        memory = self.plan.get("memory")
        return real_number(memory.get(key)) if isinstance(memory, dict) else None

    @property
    def recomputation(self) -> str:
        """What a step recomputes: `never`, `always` or `stages` of `tiling.checkpoint`; without a backward pass nothing is."""
        if self.status.task != "train":
            return "never"
        mode = str(self.decided("checkpoint"))
        tiles = whole_number(self.plan.get("tiles_per_rank_max"), 1)
        batch = whole_number(self.decided("max_batch_size"), 1)
        if mode != "auto" or tiles is None or batch is None:
            return mode
        return "never" if tiles <= batch else "always"

    def entries(self, key: str) -> list[float | None]:
        """A list of result.json, each entry in its place and None where it is no number; empty where there is no list."""
        value = self.result.get(key)
        return [real_number(v) for v in value] if isinstance(value, list) else []

    def numbers(self, key: str) -> list[float]:
        """The numbers among `entries`, for sums and maxima: places are lost."""
        return [n for n in self.entries(key) if n is not None]

    @property
    def sections(self) -> dict[str, float]:
        """Median seconds of a step per section, of rank 0."""
        value = self.result.get("sections")
        known = {k: real_number(v) for k, v in value.items()} if isinstance(value, dict) else {}
        return {k: v for k, v in known.items() if v is not None}

    @property
    def psnr_at(self) -> dict[float, float | None]:
        """Step -> PSNR: after each iteration (0: the first iterate), or where held-out images were measured in training."""
        values = self.entries("psnr_db")
        training = self.status.task == "train"
        steps = self.entries("psnr_steps") if training else [float(k) for k in range(len(values))]
        pairs = zip(steps, values, strict=True) if len(steps) == len(values) else ()
        return {step: value for step, value in pairs if step is not None}

    @property
    def peak_bytes(self) -> int | None:
        """Measured: of the rank with the highest, in the attempts since the run was last asked for: the last one, of which result.json
        tells, may have had no step left."""
        known = [*self.numbers("peak_memory_bytes"), self.status.peak_memory_bytes]
        most = max((n for n in known if n is not None), default=None)
        return None if most is None else int(most)

    @property
    def peak_gib(self) -> float | None:
        """`peak_bytes` in GiB."""
        return None if self.peak_bytes is None else self.peak_bytes / GIB

    @property
    def sent_per_step_bytes(self) -> float | None:
        """Measured: by the rank that sends most, over the steps of the newest attempt, from which `bytes_sent` counts."""
        begin = max((n for n, event in enumerate(self._events) if event["kind"] == "start"), default=0)
        steps = sum(event["kind"] == "step" for event in self._events[begin:])
        sent = self.numbers("bytes_sent")
        return max(sent) / steps if sent and steps else None

    @cached_property
    def start(self) -> Event:
        """The newest start event of rank 0."""
        return next((e for e in reversed(self._events) if e["kind"] == "start"), {})

    @cached_property
    def steps_s(self) -> tuple[float, ...]:
        """Seconds of every step of rank 0 since the run was last asked for; without the first of each attempt, which pays for warming
        up, where there are more."""
        kept: dict[int, float] = {}
        warming: dict[int, float] = {}
        fresh = True
        for event in self._events:
            step, seconds = whole_number(event.get("step"), 1), real_number(event.get("seconds"))
            if event["kind"] == "start":
                fresh = True
            elif event["kind"] == "step" and step is not None and seconds is not None and seconds > 0:
                (warming if fresh else kept)[step] = seconds
                fresh = False
        return tuple((kept or warming).values())

    @cached_property
    def spans_s(self) -> tuple[tuple[float, float], ...]:
        """From when to when rank 0 was there, once per attempt: seconds since the epoch."""
        spans: list[list[float]] = []
        for event in self._events:
            t = real_number(event.get("t"))
            if event["kind"] == "start":
                spans.append([])
            if spans and t is not None:
                spans[-1].append(t)
        return tuple((min(times), max(times)) for times in spans if times)

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step; None also for a time that no step takes."""
        value = statistics.median(self.steps_s) if self.steps_s else self.status.step_time_s
        return value if value is not None and value >= SHORTEST_STEP_S else None

    @cached_property
    def _events(self) -> list[Event]:
        try:
            numbers = [k for k in self.paths.attempts() if k >= self.asked_attempt]
            return [e for k in numbers for e in read_events(self.paths.attempt(k).rank_events(0))]
        except (OSError, ValueError):  # a damaged run is status' to name
            return []

    @property
    def asked(self) -> Row:
        """The spec as it was asked for: a patch that plan has fitted is `fit` again, whatever number it became."""
        choices = self.plan.get("choices")
        made = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
        fitted = [c for c in made if c.get("key") == "tiling.patch" and str(c.get("reason")).startswith("fit:")]
        return {**self.spec, "tiling.patch": "fit"} if fitted else self.spec

    def setting(self, without: Collection[str] = (), *, asked: bool = False) -> str:
        """What two runs must share to be compared, as one text: task, spec, cluster, device, card and injected faults.

        :param without: keys of the spec that may differ; `tiling.` stands for all of the section.
        :param asked: compare what was asked for, so that patches fitted to different ranks are alike; results need not be equal.
        """
        spec = self.asked if asked else self.spec
        kept = {key: value for key, value in sorted(spec.items()) if not _left_out(key, without)}
        where = [self.status.task, self.start.get("device"), self.result.get("card"), self.cluster, self.status.faults]
        return json.dumps([where, kept], default=str)


def psnr_of_both(a: Run, b: Run) -> tuple[list[float | None], list[float | None]]:
    """The PSNR of two runs of one task, entry by entry; of training at the steps after which both were measured."""
    if a.status.task != "train":
        return a.entries("psnr_db"), b.entries("psnr_db")
    common = sorted(a.psnr_at.keys() & b.psnr_at.keys())
    return [a.psnr_at[step] for step in common], [b.psnr_at[step] for step in common]


def _left_out(key: str, without: Collection[str]) -> bool:
    runs_own = key.startswith("run.") and key not in ("run.seed", "run.measure")
    given = any(key == name or (name.endswith(".") and key.startswith(name)) for name in without)
    return runs_own or given or key in NOT_MEASURED


def load_runs(runs: Sequence[RunPaths], statuses: Sequence[RunStatus]) -> list[Run]:
    """Read the records of the runs, in the order given."""
    return [
        Run(
            paths=paths,
            status=status,
            spec=read_spec(paths),
            plan=_read_json(paths, "plan"),
            environment=_read_json(paths, "environment"),
            result=read_result(paths),
            **_intent(paths),
        )
        for paths, status in zip(runs, statuses, strict=True)
    ]


def _intent(paths: RunPaths) -> dict[str, Any]:
    try:
        intent = read_intent(paths)
    except (OSError, ValueError):  # a damaged run is status' to name
        return {}
    return {"cluster": intent.cluster, "asked_attempt": intent.asked_attempt}


def reason_of(run: Run) -> str | None:
    """Why a run has not done what it was asked for, in one line; None for one that has, or still may."""
    failure, state = run.status.failure, run.status.state
    if failure is not None:
        said = failure.message.strip().splitlines()
        return f"{failure.kind}: {said[0]}" if said else failure.kind
    if first_word(state) in ("completed", "running", "queued", "starting", "submitting", "requeued"):
        return None
    return run.status.reason or state


def plan_refuses(run: Run) -> list[str]:
    """Why plan found that the run does not fit; empty where it did not."""
    reasons = run.plan.get("reasons")
    refused = run.plan.get("fits") is False
    return [str(r) for r in reasons] if refused and isinstance(reasons, list) else []


def flatten(value: Any, prefix: str = "") -> Row:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`; lists stay whole."""
    return dict(_flat(value, prefix))


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))


def read_spec(paths: RunPaths) -> Row:
    """The keys of the frozen spec; none where it cannot be read."""
    import yaml

    try:
        with open_file(paths.spec) as file:
            value = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        spec = value if isinstance(value, dict) else {}
        return flatten({str(key): plain(inner) for key, inner in spec.items() if key != "sweep"})
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}


def plain(value: Any) -> Any:
    """What JSON has a word for; anything else, as a date or an infinite number, as text."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    known = value is None or isinstance(value, (bool, str)) or real_number(value) is not None
    return value if known else str(value)


def _read_json(paths: RunPaths, name: str) -> Row:
    try:
        with open_file(getattr(paths, name)) as file:
            value = parse_json(file.read())
        return plain(value) if isinstance(value, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}
