"""Faults injected on purpose, for tests and rehearsals: what `DPTRAIN_FAULT` may say (docs/reliability.md).

    DPTRAIN_FAULT="kill@rank=1,step=3; slow@rank=0,seconds=2" DPTRAIN_FAULT_ALLOW=1 dptrain train spec.yaml

The variable is read where a run is made, and stands in its intent.json from then on: the ranks follow the file, so that it does
not matter whether a site's scheduler passes variables on, a restart has the faults of the first start, and status can say so.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from dptrain.errors import UsageError

VARIABLE = "DPTRAIN_FAULT"
ALLOW = "DPTRAIN_FAULT_ALLOW"
EVERY = -1
"""`rank=all`, `attempt=all`."""

STEP_KINDS: dict[str, str] = {
    "raise": "raises an exception",
    "kill": "sends itself SIGKILL",
    "freeze": "sends itself SIGSTOP: not even its watchdog runs any more",
    "hang": "makes no progress any more; its watchdog runs",
    "slow": "sleeps `seconds` in this step and in every later one",
    "exit": "leaves with exit code `code`, 0 where none is given, and without a word",
    "preempt": "sends itself SIGUSR2, the scheduler's warning",
    "terminate": "sends itself SIGTERM",
    "out-of-memory": "asks its device for more memory than there can be",
    "non-finite": "fills its part of the iterate, or of the truth in training, with NaN",
}
"""Strike as the rank begins the step; 0 is the set-up."""
SAVE_KINDS: dict[str, str] = {
    "kill-during-save": "sends itself SIGKILL in a save, between its files, or `seconds` after the save began",
    "full-disk": "gets `no space left on device` from the first file operation of a save",
}
"""Strike in the first save at or after the step."""
KINDS = STEP_KINDS | SAVE_KINDS
_MORE_KEYS = {"slow": "seconds", "exit": "code", "kill-during-save": "seconds"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what happens, on which rank, when."""

    kind: str
    rank: int = 0
    step: int = 1
    """Of the whole run, as status counts them."""
    attempt: int = 1
    seconds: float | None = None
    code: int = 0

    def meant_for(self, rank: int, attempt: int) -> bool:
        """Whether it may strike this rank in this attempt."""
        return self.rank in (EVERY, rank) and self.attempt in (EVERY, attempt)

    def __str__(self) -> str:
        parts = {"rank": _word(self.rank), "step": str(self.step), "attempt": _word(self.attempt)}
        if self.seconds is not None:
            parts["seconds"] = f"{self.seconds:g}"
        if self.kind == "exit":
            parts["code"] = str(self.code)
        return f"{self.kind}@" + ",".join(f"{key}={value}" for key, value in parts.items())


def declared_faults(environ: Mapping[str, str], world_size: int) -> str | None:
    """The faults a new run is to suffer, as text; None where there are none.

    :raises UsageError: they are not allowed by the second variable, or one of them cannot be read or never strike.
    """
    text = environ.get(VARIABLE)
    if not text:
        return None
    if environ.get(ALLOW) != "1":
        raise UsageError(
            f"{VARIABLE}={text} would make this run fail on purpose, and {ALLOW}=1 does not say that this is meant\n"
            f"    write: unset {VARIABLE}"
        )
    faults = parse_faults(text)
    for fault in faults:
        if fault.rank >= world_size:
            raise _wrong(str(fault), f"the run has {world_size} ranks", f"rank={world_size - 1}, or rank=all")
    return "; ".join(str(fault) for fault in faults)


def check_restart(environ: Mapping[str, str], planned: str | None) -> None:
    """Refuse a start of a run that was made with other faults than this environment asks for: those would do nothing.

    :param planned: the run's own; an environment without any is right for every run.
    :raises UsageError: with both.
    """
    text = environ.get(VARIABLE)
    if text and parse_faults(text) != (parse_faults(planned) if planned else ()):
        raise UsageError(
            f"{VARIABLE}={text} here, but the run was made {f'with {planned}' if planned else 'without it'}\n"
            f"    write: unset {VARIABLE}, or start a new run"
        )


def parse_faults(text: str) -> tuple[Fault, ...]:
    """`kind@key=value,...` with the keys rank, step, attempt and those of the kind; several separated by `;`.

    :raises UsageError: with what was found and what may stand there.
    """
    parts = [part.strip() for part in text.split(";")]
    faults = tuple(_parse(part) for part in parts if part)
    if not faults:
        raise UsageError(f"{VARIABLE} names no fault\n    write: unset {VARIABLE}, or {VARIABLE}=kill@rank=1,step=3")
    return faults


def _parse(part: str) -> Fault:
    kind, _, rest = part.partition("@")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        raise _wrong(part, f"there is no kind {kind!r}", near[0] if near else f"one of {', '.join(KINDS)}")
    values: dict[str, int | float] = {}
    allowed = ["rank", "step", "attempt", *([_MORE_KEYS[kind]] if kind in _MORE_KEYS else [])]
    for pair in filter(None, rest.split(",")):
        key, _, word = (text.strip() for text in pair.partition("="))
        if key not in allowed or key in values:
            raise _wrong(part, f"{key!r} is not known here, or stands twice", f"keys {', '.join(allowed)}, once each")
        values[key] = _value(part, key, word)
    if kind == "slow" and "seconds" not in values:
        raise _wrong(part, "how slow is not said", f"{part}{',' if rest else '@'}seconds=2")
    return Fault(kind=kind, **values)  # type: ignore[arg-type]


def _value(part: str, key: str, word: str) -> int | float:
    if key in ("rank", "attempt") and word == "all":
        return EVERY
    least = 1 if key == "attempt" else 0
    try:
        value = float(word) if key == "seconds" else int(word)
        if least <= value <= 10**6 and not (key == "code" and value > 255):
            return value
    except ValueError:
        pass
    raise _wrong(part, f"{key} is {word!r}", f"{key}={max(least, 1)}")


def _word(number: int) -> str:
    return "all" if number == EVERY else str(number)


def _wrong(part: str, found: str, write: str) -> UsageError:
    return UsageError(f"{VARIABLE}: {part!r}: {found}\n    write: {write}")
