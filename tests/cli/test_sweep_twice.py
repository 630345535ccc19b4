"""The same sweep from two terminals at once: no member runs twice."""

from __future__ import annotations

from collections import Counter

import pytest

from dptrain.records.index import find_runs
from dptrain.records.intent import read_intent
from dptrain.status.state import run_status
from tests.cli.cli import TINY, Cli


@pytest.mark.acceptance
def test_two_sweeps_at_once_share_their_runs(cli: Cli) -> None:
    spec = cli.write("tiny.yaml", TINY + "sweep: {algorithm.iterations: [1, 2]}\n")
    commands = [cli.start("sweep", spec) for _ in range(2)]
    answers = [command.communicate(timeout=200) for command in commands]
    assert [command.returncode for command in commands] == [0, 0], answers
    runs = find_runs(cli.folder / "runs")
    assert set(Counter(read_intent(paths).fingerprint for paths in runs).values()) == {1} and len(runs) == 2
    assert {status.state for status in run_status(runs)} == {"completed"}
    assert all("2 of 2 completed" in out for out, _ in answers)
    assert sum("waiting for it" in err for _, err in answers) == 1


def test_the_wait_for_another_sweep_has_a_limit(cli: Cli) -> None:
    from dptrain.launch.locks import sweep_lock

    spec = cli.write("tiny.yaml", TINY + "sweep: {algorithm.iterations: [1, 2]}\n")
    with sweep_lock(cli.folder / "runs", "tiny", lambda words: None):
        done = cli("sweep", spec, "--timeout", "1")
    assert done.code == 124 and "another command" in done.err and find_runs(cli.folder / "runs") == []
