"""Commands that act on runs and on this machine: cancel, doctor."""

from __future__ import annotations

from dptrain.cli.options import AsJson, Cluster, Runs


def cancel(runs: Runs) -> None:
    """End runs."""
    raise NotImplementedError


def doctor(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Check this machine and the cluster profile before the first submission."""
    raise NotImplementedError
