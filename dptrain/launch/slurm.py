"""Submits runs to SLURM through submitit's pickle mechanism, with plan's own script text.

submitit brings what starts on every rank (`python -m submitit.core._submit FOLDER` loads `<job id>_submitted.pkl`); its script,
its states (only from accounting) and its arrays (no chunks) are not used.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrain.errors import StateUnknown, SubmissionRejected
from dptrain.launch import payload
from dptrain.launch.local import next_attempt
from dptrain.records.intent import update_intent
from dptrain.records.paths import RunPaths
from dptrain.scheduler.commands import NoAnswer
from dptrain.scheduler.requests import ArrayRequest, JobRequest
from dptrain.scheduler.sbatch import sbatch_script
from dptrain.scheduler.submit import array_limits, submit_script
from dptrain.spec.cluster import ClusterProfile

if TYPE_CHECKING:
    from dptrain.plan.plan import Plan


def submit_slurm(
    paths: Sequence[RunPaths],
    plan: Plan,
    profile: ClusterProfile,
    *,
    max_parallel: int | None = None,
    folder: Path | None = None,
) -> list[str]:
    """Submit runs of one shape: one run as a job, several as job arrays no larger than the controller takes.

    :param plan: its job request holds for every run; of a single run its script is what is submitted.
    :param max_parallel: at most so many runs at once, over all arrays.
    :param folder: where the arrays' own files go; needed for more than one run.
    :return: the job ids, in the order of `paths`: `12`, or `12_3`.
    :raises SubmissionRejected: with SLURM's words, and with what was already submitted.
    :raises StateUnknown: nobody answered; a job may exist.
    """
    assert plan.job is not None and plan.sbatch is not None and paths
    request = replace(plan.job, array=None)
    for run in paths:
        _prepare_restart(run, profile, request)
    if len(paths) == 1:
        script = plan.sbatch if request == plan.job else sbatch_script(profile, request)
        return _submit_part(paths, script, paths[0], [])
    assert folder is not None
    if max_parallel is None and plan.job.array is not None:
        max_parallel = plan.job.array.max_parallel
    ids: list[str] = []
    parts = split(paths, _max_count())
    heads: list[str] = []
    for number, part in enumerate(parts, start=1):
        options = _after(heads, len(parts[0]), max_parallel, profile)
        try:
            ids += _submit_several(part, request, profile, max_parallel, folder.absolute() / f"part-{number}", options)
        except (SubmissionRejected, StateUnknown) as error:
            _refuse_rest(parts[number:], str(error))
            done = f"; already submitted: {len(ids)} runs, jobs {', '.join(heads)}" if ids else ""
            raise type(error)(f"{error}\n    part {number} of {len(parts)} failed{done}") from None
        heads.append(ids[-1].split("_")[0])
    return ids


def _prepare_restart(paths: RunPaths, profile: ClusterProfile, request: JobRequest) -> None:
    """What rank 0 needs to submit the job that follows, where a job may not be requeued; nothing lies there otherwise."""
    if profile.restart == "requeue":
        for file in (paths.restart, paths.restart_call):
            file.unlink(missing_ok=True)
        return
    from submitit.core.utils import DelayedSubmission

    paths.restart.write_text(sbatch_script(profile, request), encoding="utf-8")
    DelayedSubmission(payload.run, str(paths.dir.absolute())).dump(paths.restart_call)


def split(paths: Sequence[RunPaths], max_count: int) -> list[Sequence[RunPaths]]:
    """Parts of at most `max_count` runs, in order; of one each where arrays are switched off."""
    size = max(1, max_count)
    return [paths[i : i + size] for i in range(0, len(paths), size)]


def _max_count() -> int:
    try:
        return array_limits().max_count
    except NoAnswer as error:
        raise StateUnknown(f"the SLURM controller does not answer: {error}") from None


def _after(heads: Sequence[str], size: int, max_parallel: int | None, profile: ClusterProfile) -> list[str]:
    """`--max-parallel` holds for one array only: a further one waits until the one before it is over."""
    distance = 1 if size > 1 else max_parallel
    if max_parallel is None or distance is None or len(heads) < distance:
        return []
    own = profile.extra_sbatch.get("dependency")
    return [f"--dependency={f'{own},' if own else ''}afterany:{heads[-distance]}"]


def _submit_several(
    part: Sequence[RunPaths],
    request: JobRequest,
    profile: ClusterProfile,
    max_parallel: int | None,
    folder: Path,
    options: Sequence[str],
) -> list[str]:
    if len(part) == 1:  # submitit and SLURM both treat an array of one differently
        return _submit_part(part, sbatch_script(profile, request), part[0], options)
    array = ArrayRequest(count=len(part), max_parallel=max_parallel)
    home = RunPaths(folder)
    for needed in (home.submitit, home.batch_log):
        needed.mkdir(parents=True)
    ids = _submit_part(part, sbatch_script(profile, replace(request, array=array)), home, options)
    for paths, job_id in zip(part, ids, strict=True):
        # The log appears when the member starts; until then the link points at nothing.
        paths.batch_log_of(job_id).symlink_to(os.path.relpath(home.batch_log_of(job_id), paths.batch_log))
    return ids


def _submit_part(part: Sequence[RunPaths], script: str, home: RunPaths, options: Sequence[str]) -> list[str]:
    """One call of sbatch, and the intents before and after it."""
    for paths in {home.dir: home, **{p.dir: p for p in part}}.values():
        paths.submission.write_text(script, encoding="utf-8")
    for paths in part:
        attempt = next_attempt(paths)
        update_intent(
            paths,
            submission="submitting",
            job_id=None,
            host=None,
            refusal=None,
            first_attempt=attempt,
            asked_attempt=attempt,
        )
    executor = _executor_class()(home, script, tuple(options))
    try:
        ids: list[str] = executor.submit_runs(part)
    except SubmissionRejected as error:
        for paths in part:
            update_intent(paths, submission="refused", refusal=str(error))
        raise
    for paths, job_id in zip(part, ids, strict=True):
        update_intent(paths, submission="submitted", job_id=job_id)
    return ids


def _refuse_rest(parts: Sequence[Sequence[RunPaths]], words: str) -> None:
    for part in parts:
        for paths in part:
            update_intent(paths, submission="refused", refusal=f"not tried, since an earlier part failed: {words}")


@functools.cache
def _executor_class() -> Any:
    # Here and not at the top: status and --help load this package without submitit.
    from submitit.slurm.slurm import SlurmExecutor, SlurmJob

    class PlanExecutor(SlurmExecutor):  # type: ignore[misc]
        """submitit's executor with plan's script and one careful call of sbatch."""

        def __init__(self, home: RunPaths, script: str, options: tuple[str, ...]) -> None:
            super().__init__(folder=home.submitit)
            self.home, self.script, self.options = home, script, options

        def submit_runs(self, part: Sequence[RunPaths]) -> list[str]:
            jobs = self.submit_array([functools.partial(payload.run, str(paths.dir.absolute())) for paths in part])
            return [str(job.job_id) for job in jobs]

        def _internal_process_submissions(self, delayed_submissions: Any) -> Any:
            pickles = []
            for delayed in delayed_submissions:
                pickles.append(self.folder / f"{uuid.uuid4().hex}.pkl")
                delayed.dump(pickles[-1])
            first = self._submit_command("").job_id
            ids = [first] if len(pickles) == 1 else [f"{first}_{index}" for index in range(len(pickles))]
            jobs = [SlurmJob(folder=self.folder, job_id=job_id) for job_id in ids]
            for job, path in zip(jobs, pickles, strict=True):
                # A rank that starts before this waits for its pickle, for up to a minute.
                job.paths.move_temporary_file(path, "submitted_pickle")
            return jobs

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return self.script

        def _submit_command(self, command: str) -> Any:
            comment = f"dptrain:{self.home.run_id}:{uuid.uuid4().hex[:12]}"
            chdir = self.home.dir.absolute()
            job_id = submit_script(self.home.submission, chdir=chdir, comment=comment, options=self.options)
            return SlurmJob(folder=self.folder, job_id=job_id)

    return PlanExecutor
