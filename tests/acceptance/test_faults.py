"""Every fault, locally and on SLURM, in training and reconstruction: over in time, released, named; a table of the seconds.

With `DPTRAIN_WRITE_TABLE=1` the rows measured here replace those of docs/reliability.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dptrain.records.intent import read_intent
from dptrain.records.paths import RunPaths
from dptrain.spec.schema import Task
from tests.fault_runs import Expected, check, faults, local_left, released_s, status_of, struck_run, until_over
from tests.local_runs import wait_for
from tests.slurm_cluster import SmallSlurm
from tests.slurm_fixtures import PROFILE

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
HEADER = "| fault | where | task | layout | state | first rank | seconds |"
TASKS: tuple[Task, ...] = ("train", "infer")
CASES = [
    (place, task, expected, ("sharded", "replicated")[(index + (place == "slurm") + (task == "infer")) % 2])
    for place in ("local", "slurm")
    for task in TASKS
    for index, expected in enumerate(faults(task))
]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Rows are added by the tests, printed and written at the end."""
    rows: list[str] = []
    yield rows
    print("\n".join(["", HEADER, *rows]))
    if os.environ.get("DPTRAIN_WRITE_TABLE") == "1":
        PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


def with_rows(page: str, rows: list[str]) -> str:
    """The page with these rows in place of the ones of the same fault, place and task; in the order of the matrix."""
    before, rest = page.split(HEADER + "\n")
    lines = rest.splitlines(keepends=True)
    count = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    known = {_key(line): line.rstrip("\n") for line in [*lines[1:count], *rows]}
    order = [f"| {e.kind} | {place} | {task} " for place, task, e, _ in CASES]
    kept = [known[key] for key in order if key in known]
    return before + HEADER + "\n" + "\n".join([lines[0].rstrip("\n"), *kept]) + "\n" + "".join(lines[count:])


def _key(row: str) -> str:
    found = re.match(r"\| [^|]+ \| [^|]+ \| [^|]+ ", row)
    assert found is not None, row
    return found[0]


def held(slurm: SmallSlurm, paths: RunPaths, *more: str) -> bool:
    """Whether the job still has its nodes."""
    states = ",".join(("RUNNING", "COMPLETING", *more))
    job = read_intent(paths).job_id
    return job in slurm.command("squeue", "--noheader", f"--states={states}", "--format=%i").split()


@pytest.mark.parametrize(
    ("place", "task", "expected", "layout"), CASES, ids=[f"{e.kind}-{place}-{task}" for place, task, e, _ in CASES]
)
def test_fault(
    place: str,
    task: Task,
    expected: Expected,
    layout: str,
    table: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("DPTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    slurm: SmallSlurm | None = None
    if place == "slurm":
        slurm = request.getfixturevalue("slurm")
        # Two nodes with a rank each.
        profile = PROFILE.replace("gpus_per_node: 2", "gpus_per_node: 1")
        (tmp_path / "config" / "dptrain" / "clusters" / "spread.yaml").write_text(profile)
    with struck_run(task, expected.text, f"resources.layout={layout}", profile="spread" if slurm else "local") as paths:
        again = expected.attempts > 1
        seconds = released_s(paths, lambda: not again and (held(slurm, paths) if slurm else local_left(paths)))
        until_over(paths)
        wait_for(lambda: not (held(slurm, paths, "PENDING") if slurm else local_left(paths)), "the end of it all")
        entry = status_of(paths)
    check(entry, expected)
    assert seconds <= expected.limit_s or expected.kind == "slow"
    named = "-" if expected.rank is None else str(expected.rank)
    table.append(f"| {expected.kind} | {place} | {task} | {layout} | {entry['state']} | {named} | {seconds:.1f} |")
