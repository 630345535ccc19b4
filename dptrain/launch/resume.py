"""The files of a run that is started again: as the new plan says, with the old ones kept beside the attempts they were used for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dptrain.errors import SubmissionRejected, UsageError
from dptrain.launch.local import next_attempt
from dptrain.launch.snapshot import write_plan
from dptrain.records.faults import check_restart
from dptrain.records.intent import read_intent, update_intent
from dptrain.records.paths import RunPaths
from dptrain.records.places import writing
from dptrain.spec.changes import fingerprint_after
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.load import LoadedSpec
from dptrain.spec.schema import Spec

if TYPE_CHECKING:
    from dptrain.plan.plan import Plan


@contextmanager
def renewed(paths: RunPaths, plan: Plan, loaded: LoadedSpec, profile: ClusterProfile, old: Spec) -> Iterator[None]:
    """Around the launch of the run's next attempt: its files are the new plan's.

    Where the launch is refused, a run that has made attempts gets its files back: nothing has changed then.

    :param old: the spec so far.
    :raises UsageError: where the folder cannot be written, or where other faults are asked for than the run was made with.
    """
    intent, last = read_intent(paths), next_attempt(paths) - 1
    check_restart(os.environ, intent.faults)
    files = (paths.spec, paths.plan, paths.environment, paths.submission)
    before = {file: _content(file) for file in (*files, paths.restart, paths.intent)}
    with writing("the run folder", paths.dir, "a run of your own, in a folder that is not full"):
        if last:
            _keep(files, paths, last)
        # As for the first attempt, all folders are there before anything is submitted.
        paths.attempt(last + 1).dir.mkdir(exist_ok=True)
        write_plan(paths, plan, loaded)
        update_intent(
            paths,
            launcher=profile.launcher,
            cluster=profile.name,
            world_size=plan.world_size,
            steps=plan.steps,
            fingerprint=fingerprint_after(intent.fingerprint, old, loaded.spec, plan.task),
        )
    try:
        yield
    except (SubmissionRejected, UsageError):
        if last:
            for file, content in before.items():
                _put_back(file, content)
        raise


def _keep(files: tuple[Path, ...], paths: RunPaths, attempt: int) -> None:
    for file in files:
        if file.exists():
            shutil.copyfile(file, paths.attempt(attempt).frozen(file))


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _put_back(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(content)
