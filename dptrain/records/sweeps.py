"""`sweep-NAME.json` in the folder of runs: the members of a sweep, by the fingerprint of their specs.

A member's runs are found by its fingerprint, whoever started them: a sweep takes over what is done already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dptrain.records.index import find_runs, is_run, place_of
from dptrain.records.intent import read_intent, write_json
from dptrain.records.paths import RunPaths, runs_root
from dptrain.records.reading import open_file, parse_json


@dataclass(frozen=True, kw_only=True)
class SweepMember:
    """One run of a sweep, whether it was started or not."""

    name: str
    """The sweep's name and the member's values."""
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """What the newest command for the sweep of this name asked for."""

    sweep: str
    members: tuple[SweepMember, ...]


def write_sweep(root: Path, record: SweepRecord) -> None:
    """Write or replace the file."""
    write_json(_file(root, record.sweep), asdict(record))


def read_sweep(root: Path, name: str) -> SweepRecord | None:
    """The sweep of this name; None where there is none, or its file is damaged."""
    if "/" in name or not name:
        return None
    try:
        with open_file(_file(root, name)) as file:
            value = parse_json(file.read())
        members = tuple(SweepMember(name=str(m["name"]), fingerprint=str(m["fingerprint"])) for m in value["members"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return SweepRecord(sweep=name, members=members)


def sweep_names(root: Path | None = None) -> list[str]:
    """Names of the sweeps in a folder of runs."""
    folder = runs_root() if root is None else root
    return sorted(path.name[len("sweep-") : -len(".json")] for path in folder.glob("sweep-*.json"))


def candidates(fingerprints: Sequence[str], root: Path | None = None) -> dict[str, list[RunPaths]]:
    """Fingerprint -> every run that has it, oldest first, of those that have one. What was only tried dry does not count."""
    wanted = set(fingerprints)
    found: dict[str, list[RunPaths]] = {}
    for paths in find_runs(root):
        try:
            intent = read_intent(paths)
        except (OSError, ValueError):  # a damaged run is none of ours to judge; status names it
            continue
        if intent.fingerprint in wanted and intent.submission != "dry-run":
            found.setdefault(str(intent.fingerprint), []).append(paths)
    return found


def is_sweep(text: str, root: Path | None = None) -> bool:
    """Whether a text names a sweep: no run has exactly this id."""
    folder, name = place_of(text, root)
    return read_sweep(folder, name) is not None and not is_run(folder / name)


def not_started(text: str, root: Path | None = None) -> list[str]:
    """Names of the members of a sweep that have no run."""
    folder, name = place_of(text, root)
    record = read_sweep(folder, name)
    if record is None:
        return []
    found = candidates([member.fingerprint for member in record.members], folder)
    return [member.name for member in record.members if member.fingerprint not in found]


def _file(root: Path, name: str) -> Path:
    return root / f"sweep-{name}.json"
