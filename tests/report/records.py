"""Small runs for tests of the report, written by the project's own record writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dptrain.records.intent import write_json
from dptrain.report.runs import Run, load_runs
from dptrain.spec.dump import dump_spec
from dptrain.spec.load import parse_spec
from dptrain.status.state import run_status
from tests.status.helpers import WrittenRun

BASE = "name: demo\nproblem: {image_size: [64, 64], channels: 1}\ntiling: {patch: 16, halo: 4}\n"


class ReportedRun(WrittenRun):
    """A completed run of a real spec."""

    def __init__(
        self, root: Path, name: str, *overrides: str, steps_s: tuple[float, ...] = (9.0, 0.5, 0.5), **intent: Any
    ) -> None:
        spec = parse_spec(BASE, "demo.yaml", root, overrides).spec
        super().__init__(root, name, world_size=spec.resources.gpus, steps=len(steps_s), **intent)
        self.paths.spec.write_text(dump_spec(spec))
        self.task = self.intent.task
        for rank in range(self.world_size):
            self.start(rank)
            for number, seconds in enumerate(steps_s, start=1):
                self.step(rank, number, seconds=seconds)
            self.final(rank)

    def result(self, **numbers: Any) -> None:
        """Write result.json."""
        write_json(self.paths.result, {"state": "completed", "task": self.task, "steps": self.steps, **numbers})

    def plan(self, **numbers: Any) -> None:
        """Write plan.json."""
        write_json(self.paths.plan, numbers)


def reported(*runs: WrittenRun) -> list[Run]:
    """The runs as the report reads them."""
    paths = [run.paths for run in runs]
    return load_runs(paths, run_status(paths))
