"""Submits runs to SLURM through submitit's pickle mechanism, with plan's own script text.

submitit brings what starts on every rank (`python -m submitit.core._submit FOLDER` loads `<job id>_submitted.pkl`); its script,
its states (only from accounting), its arrays (no chunks) and its executor (which forgets what it submitted when it is killed) are
not used.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrain.errors import StateUnknown, SubmissionRejected
from dptrain.launch import payload
from dptrain.launch.local import next_attempt
from dptrain.launch.locks import held_locks
from dptrain.records.intent import read_intent, update_intent
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
    heads: list[str] | None = None,
    after: Sequence[str] = (),
    lane: str | None = None,
) -> list[str]:
    """Submit runs of one shape: one run as a job, several as job arrays no larger than the controller takes.

    :param plan: its job request holds for every run; of a single run its script is what is submitted.
    :param max_parallel: at most so many runs at once, over all arrays, those of `heads` too.
    :param heads: jobs submitted before that share the limit; those of this call are added.
    :param after: jobs that must be over before these begin, where there is a limit: they take all of it.
    :param lane: what to call the share of the limit, in the runs' intents.
    :param folder: where the arrays' own files go; needed for more than one run.
    :return: the job ids, in the order of `paths`: `12`, or `12_3`.
    :raises SubmissionRejected: with SLURM's words, and with what was already submitted.
    :raises StateUnknown: nobody answered; a job may exist.
    """
    assert plan.job is not None and plan.sbatch is not None and paths
    request = replace(plan.job, array=None)
    heads = [] if heads is None else heads
    for run in paths:
        _prepare_restart(run, profile, request)
        update_intent(run, lane=lane, lane_share=None if lane is None else max_parallel)
    if len(paths) == 1:
        script = plan.sbatch if request == plan.job else sbatch_script(profile, request)
        ids = _submit_part(paths, script, paths[0], _after(heads, 1, max_parallel, profile, after))
        heads += ids
        return ids
    assert folder is not None
    if max_parallel is None and plan.job.array is not None:
        max_parallel = plan.job.array.max_parallel
    ids = []
    parts = split(paths, _max_count())
    for number, part in enumerate(parts, start=1):
        options = _after(heads, len(parts[0]), max_parallel, profile, after)
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
    paths.restart.write_text(sbatch_script(profile, request), encoding="utf-8")
    _call_of(paths).dump(paths.restart_call)


def split(paths: Sequence[RunPaths], max_count: int) -> list[Sequence[RunPaths]]:
    """Parts of at most `max_count` runs, in order; of one each where arrays are switched off."""
    size = max(1, max_count)
    return [paths[i : i + size] for i in range(0, len(paths), size)]


def _max_count() -> int:
    try:
        return array_limits().max_count
    except NoAnswer as error:
        raise StateUnknown(f"the SLURM controller does not answer: {error}") from None


def _after(
    heads: Sequence[str], size: int, max_parallel: int | None, profile: ClusterProfile, after: Sequence[str]
) -> list[str]:
    """`--max-parallel` holds for one array only: a further one waits until the one before it is over."""
    distance = 1 if size > 1 else max_parallel
    if max_parallel is None or distance is None:
        return []
    waited = [heads[-distance]] if len(heads) >= distance else list(after)
    if not waited:
        return []
    own = profile.extra_sbatch.get("dependency")
    return [f"--dependency={f'{own},' if own else ''}afterany:{':'.join(waited)}"]


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
    return _submit_part(part, sbatch_script(profile, replace(request, array=array)), home, options)


def _submit_part(part: Sequence[RunPaths], script: str, home: RunPaths, options: Sequence[str]) -> list[str]:
    """One call of sbatch, and the intents before and after it."""
    for paths in {home.dir: home, **{p.dir: p for p in part}}.values():
        paths.submission.write_text(script, encoding="utf-8")
    comment = f"dptrain:{home.run_id}:{uuid.uuid4().hex[:12]}"
    array = os.path.relpath(home.dir, part[0].dir.parent) if len(part) > 1 else None
    for index, paths in enumerate(part):
        attempt = next_attempt(paths)
        update_intent(
            paths,
            submission="submitting",
            job_id=None,
            host=None,
            refusal=None,
            comment=comment,
            array=array,
            array_index=None if array is None else index,
            first_attempt=attempt,
            asked_attempt=attempt,
        )
    try:
        # A command that is killed leaves its sbatch behind, which may still be given a job: nobody is to look for it before.
        kept = held_locks()
        job_id = submit_script(home.submission, chdir=home.dir.absolute(), comment=comment, options=options, fds=kept)
    except SubmissionRejected as error:
        for paths in part:
            update_intent(paths, submission="refused", refusal=str(error))
        raise
    # A rank that starts before this waits for its call, for up to a minute.
    return [note_job(paths, job_id) for paths in part]


def note_job(paths: RunPaths, job_id: str) -> str:
    """Give the run what belongs to its job: the call that its ranks look for, a link to the batch log, the id in the intent.

    Safe to repeat where a command was killed halfway.

    :param job_id: as sbatch printed it; of the whole array where the run is a member of one.
    :return: the id of the run's own job, `12` or `12_3`.
    """
    intent = read_intent(paths)
    home = paths if intent.array is None else RunPaths(paths.dir.parent / intent.array)
    own_id = job_id if intent.array_index is None else f"{job_id}_{intent.array_index}"
    if not (call := home.submitted_call(own_id)).exists():
        beside = call.with_name(f".{call.name}.{os.getpid()}")
        _call_of(paths).dump(beside)
        beside.replace(call)
    link = paths.batch_log_of(own_id)
    if home != paths and not link.is_symlink():
        # The log appears when the member starts; until then the link points at nothing.
        with suppress(FileExistsError):  # another command notes it too
            link.symlink_to(os.path.relpath(home.batch_log_of(own_id), paths.batch_log))
    update_intent(paths, submission="submitted", job_id=own_id)
    return own_id


def _call_of(paths: RunPaths) -> Any:
    # Here and not at the top: status and --help load this package without submitit.
    from submitit.core.utils import DelayedSubmission

    return DelayedSubmission(payload.run, str(paths.dir.absolute()))


def _refuse_rest(parts: Sequence[Sequence[RunPaths]], words: str) -> None:
    for part in parts:
        for paths in part:
            update_intent(paths, submission="refused", refusal=f"not tried, since an earlier part failed: {words}")
