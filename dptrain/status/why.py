"""`explain`: one paragraph that a person can act on, of a run in any state: what happened first, the lines around it, what to type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptrain.records.paths import RunPaths
from dptrain.status.advice import TABLE, row_of
from dptrain.status.case import Advice, Case
from dptrain.status.excerpt import excerpt
from dptrain.status.model import BAD, RunStatus, first_word
from dptrain.status.show import follower_lines, log_of, short


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What `status --why` says of one run."""

    run: str
    state: str
    kind: str
    """Row of the table of advice."""
    what: str
    """What happened first: who, where, when, in whose words."""
    others: tuple[str, ...]
    """Ranks that failed because of it."""
    notes: tuple[str, ...]
    """Earlier attempts, warnings, faults injected on purpose."""
    log: Path | None
    lines: tuple[str, ...]
    """Of the log, around what happened."""
    advice: tuple[Advice, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "what": self.what,
            "others": list(self.others),
            "notes": list(self.notes),
            "log": None if self.log is None else str(self.log),
            "lines": list(self.lines),
            "advice": [advice.to_json() for advice in self.advice],
        }

    def text(self) -> list[str]:
        """For people."""
        page = [f"{self.run}: {self.state}", f"first: {self.what}"]
        page += [f"also: {text}" for text in self.others]
        page += [f"note: {text}" for text in self.notes]
        if self.lines:
            page += [f"in {self.log}:", *(f"  | {line}" for line in self.lines)]
        for advice in self.advice:
            page.append(f"try: {advice.text}")
            page += [f"    {advice.command}"] if advice.command else []
        return page


def explain(paths: RunPaths, status: RunStatus) -> Explanation:
    """Reads the run's files, and for a lack of memory may take some seconds to forecast; writes nothing into the run."""
    kind = row_of(status)
    case = Case(paths=paths, status=status)
    bad = first_word(status.state) in BAD and first_word(status.state) != "never-submitted"
    log = log_of(status, paths) if bad else None
    lines = excerpt(log, stalled=kind.endswith("stalled")) if log is not None else ()
    notes = [*status.history, *status.warnings]
    notes += [f"injected on purpose: {status.faults}"] if status.faults else []
    return Explanation(
        run=status.run,
        state=status.state,
        kind=kind,
        what=_what(status, kind),
        others=tuple(follower_lines(status)),
        notes=tuple(notes),
        log=log if lines else None,
        lines=lines,
        advice=(*_own_advice(status), *TABLE[kind].advise(case)),
    )


def _what(status: RunStatus, kind: str) -> str:
    failure, says = status.failure, TABLE[kind].says
    if failure is None:
        step = f", step {status.step} of {status.steps}" if status.step else ""
        return f"the run {says}{step}" + (f": {status.reason}" if status.reason else "")
    who = "the run" if failure.rank is None else f"rank {failure.rank}"
    where = f" on {failure.host}" if failure.host else ""
    by = f" by {failure.signal}" if failure.signal else ""
    when = f" after step {failure.step} of {status.steps}" if failure.step else ""
    message = failure.message.strip().splitlines()
    return f"{who}{where} {says}{by}{when}" + (f": {short(message[0])}" if message else "")


def _own_advice(status: RunStatus) -> Iterator[Advice]:
    """What a message says itself of what to write."""
    lines = status.failure.message.splitlines() if status.failure else []
    for line in lines:
        if line.startswith("    write: "):
            yield Advice(text=line.strip())
