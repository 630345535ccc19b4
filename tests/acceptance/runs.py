"""Starting a template's run and reading what it left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dptrain.records.events import read_events
from dptrain.records.paths import RunPaths
from tests.cli.cli import Cli

TEMPLATES = Path(str(resources.files("dptrain.templates")))


@dataclass(frozen=True)
class Run:
    """A run that has ended well."""

    paths: RunPaths

    @property
    def result(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.paths.result.read_text(encoding="utf-8"))
        return value

    @property
    def psnr_db(self) -> list[float]:
        values: list[float] = self.result["psnr_db"]
        return values

    def final(self, rank: int) -> dict[str, Any]:
        """The final record of one rank."""
        return self.event(rank, "final")

    def event(self, rank: int, kind: str) -> dict[str, Any]:
        """The last record of one kind of one rank."""
        return [e for e in read_events(self.paths.attempt(1).rank_events(rank)) if e["kind"] == kind][-1]


def run(tool: Cli, task: str, template: str, *overrides: str) -> Run:
    """Run a template with overrides and wait for its end."""
    return run_spec(tool, task, TEMPLATES / f"{template}.yaml", *overrides)


def run_spec(tool: Cli, task: str, spec: Path, *overrides: str, cluster: str | None = None) -> Run:
    """Run a spec with overrides and wait for its end.

    :param cluster: another one than the tool's.
    """
    words = [word for override in overrides for word in ("--set", override)]
    words += ["--cluster", cluster] if cluster else []
    done = tool(task, spec, *words, "--wait", "--json", timeout_s=600)
    assert done.code == 0, done.err
    (entry,) = json.loads(done.out) if done.out.lstrip().startswith("[") else [json.loads(done.out)]
    assert entry["state"] == "completed", entry
    return Run(RunPaths(Path(entry["run_dir"])))
