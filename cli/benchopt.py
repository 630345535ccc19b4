"""Specs made from benchopt experiment files: read for `sweep`, or written by `init`."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from dptrain.cli import scaffold
from dptrain.cli.output import note
from dptrain.errors import UsageError

if TYPE_CHECKING:
    from dptrain.spec.benchopt.convert import Converted


def read(path: Path, parallel_config: Path | None, cluster: str | None, dry_run: bool) -> Converted:
    """The spec, with every key that it does not have said on stderr; the profile of the parallel-config is installed.

    Runs name their profile and are resumed with it, so that it has to be a file. Another profile that is asked for wins.

    :param dry_run: say what would be written instead.
    """
    converted = _convert(path, parallel_config)
    other = cluster or os.environ.get("DPTRAIN_CLUSTER")
    if converted.profile is not None and other:
        note(f"note: cluster {other} is asked for: the profile of {parallel_config} is not used")
        return converted.without_cluster()
    if converted.profile is not None:
        _install(converted, dry_run)
    return converted


def write(name: str | None, path: Path, parallel_config: Path | None, folder: Path) -> list[Path]:
    """Write NAME.yaml, by default called after the experiment, and the profile of the parallel-config.

    :return: the files written.
    """
    converted = _convert(path, parallel_config)
    converted.load()
    name = scaffold.checked_name(name) if name is not None else converted.name
    written = scaffold.write_new([(folder / f"{name}.yaml", converted.spec_text(name))])
    return written + ([_install(converted)] if converted.profile is not None else [])


def _convert(path: Path, parallel_config: Path | None) -> Converted:
    from dptrain.spec.benchopt.convert import convert

    converted = convert(path, parallel_config)
    for remark in converted.remarks:
        note(f"note: {remark}")
    return converted


def _install(converted: Converted, dry_run: bool = False) -> Path:
    """The profile as one of the user's own; one that says the same is there already."""
    from dptrain.spec.profiles import user_folder

    name, text = converted.profile_name, converted.profile_text()
    path = user_folder() / f"{name}.yaml"
    if path.is_file():
        if path.read_text(encoding="utf-8") != text:
            raise UsageError(
                f"{path} says something else than the parallel-config does\n"
                f"    write: --cluster {name} for the profile as it is, or remove it"
            )
        return path
    if dry_run:
        note(f"would write the cluster profile {path}:\n" + textwrap.indent(text.rstrip("\n"), "    "))
        return path
    (written,) = scaffold.write_new([(path, text)])
    note(f"wrote the cluster profile {written}: add gpu_memory_gib, and plan says what fits")
    return written
