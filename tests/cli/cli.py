"""Runs the command line tool as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TINY = """\
name: tiny
problem: {image_size: [32, 32], physics: {name: denoise, noise_std: 0.1}, data: {source: synthetic}}
denoiser: {name: identity}
algorithm: {iterations: 2}
resources: {gpus: 2}
"""
LONG = TINY.replace("tiny", "long").replace("iterations: 2", "iterations: 200000")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


class Cli:
    """The tool in one folder with runs of its own."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "DPTRAIN_", "XDG_"))}
        self.env: Mapping[str, str] = {
            **kept,
            "DPTRAIN_RUNS": str(folder / "runs"),
            "DPTRAIN_CLUSTER": "local",
            "XDG_CONFIG_HOME": str(folder / "config"),
            # One for all tests of a session: what plan works out in seconds it works out once.
            "XDG_CACHE_HOME": str(folder.parent / "cache"),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "default",
            **env,
        }

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def __call__(self, *words: object, timeout_s: float = 200) -> Done:
        done = subprocess.run(
            self.words(*words),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.env,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Without waiting for its end."""
        return subprocess.Popen(
            self.words(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=self.env
        )

    @staticmethod
    def words(*words: object) -> list[str]:
        return [sys.executable, "-m", "dptrain.cli.main", *map(str, words)]
