"""Fetches on this machine what compute nodes cannot: the engine does it in a process of its own, so that no torch is loaded here."""

from __future__ import annotations

import subprocess

from dptrain.errors import PlanRefused
from dptrain.records.process import program
from dptrain.spec.load import LoadedSpec, dump_spec
from dptrain.spec.pretrained import pretrained_file

FETCHER = "dptrain.engine.fetch"


def prepare(loaded: LoadedSpec) -> list[str]:
    """Fetch what is missing; one line per thing that is needed, empty where nothing is.

    :raises PlanRefused: where it cannot be fetched, with the reason and what to do instead.
    """
    path = pretrained_file(loaded.spec)
    if path is None:
        return []
    if path.is_file():
        return [f"there already: {path}"]
    done = subprocess.run(program(FETCHER), input=dump_spec(loaded.spec), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PlanRefused(done.stderr.strip() or f"{FETCHER} ended with exit code {done.returncode}")
    return [f"fetched: {path}"]
