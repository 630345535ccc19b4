"""The one table from a state to what to do about it: every state of `decide` and every class of failure has a row."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dptrain.records.reading import whole_number
from dptrain.spec.schema import PROXIMAL, Denoiser, Spec
from dptrain.status import memory_advice
from dptrain.status.case import Advice, Case
from dptrain.status.model import IMPOSSIBLE_MARK, RunStatus, first_word
from dptrain.status.show import seconds, size

LONGER = 1.25
"""A time limit that is advised is so many times what the steps that are left should take."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row."""

    says: str
    """What happened, after `rank 1 on n2` or `the run`."""
    advise: Callable[[Case], Iterator[Advice]]


def row_of(status: RunStatus) -> str:
    """The key of a run's row: `failed: <class>`, or the first word of its state; a class nobody knows counts as unknown."""
    if status.failure is not None and status.state.startswith("failed"):
        return next((k for k in (f"failed: {status.failure.kind}", status.state) if k in TABLE), "failed: unknown")
    word = first_word(status.state)
    return word if word in TABLE else "unknown"


def _completed(case: Case) -> Iterator[Advice]:
    yield Advice(text=f"nothing to do; the output is in {case.paths.output}", command=f"dptrain report {case.name}")


def _queued(case: Case) -> Iterator[Advice]:
    reason = case.status.reason
    if case.status.impossible:
        said = (reason or "").removeprefix(IMPOSSIBLE_MARK)
        yield Advice(text=f"it will never start as it was asked for: {said}", command=f"dptrain cancel {case.name}")
        yield Advice(
            text="then resume it with what the partition and account allow: a shorter --set resources.time_min, fewer --set "
            "resources.gpus, or another partition in the profile; the limits of partitions:",
            command="sinfo --format='%P %l %D'",
        )
    elif reason and reason.startswith("blocked: "):
        yield Advice(text=f"somebody has to act: {reason.removeprefix('blocked: ')}")
    else:
        yield Advice(
            text=f"nothing to do: it waits for its turn ({reason or 'no reason given'})",
            command=f"squeue --start --jobs={case.status.job_id}" if case.status.launcher == "slurm" else None,
        )


def _submitting(case: Case) -> Iterator[Advice]:
    yield Advice(
        text="if the command that submits it is gone: see whether the scheduler has the job", command="squeue --me"
    )


def _never_submitted(case: Case) -> Iterator[Advice]:
    if case.status.reason == "dry run":
        yield Advice(text="it was a dry run; start it with", command=case.resume())
    else:
        yield Advice(text="change what is refused in the cluster profile or the spec, then", command=case.resume())


def _going(case: Case) -> Iterator[Advice]:
    status = case.status
    silent = [str(rank.rank) for rank in status.ranks if rank.state == "never-reported"]
    if silent:
        yield Advice(text=f"wait: no word yet of rank {', '.join(silent)}; the set-up has a limit, run.setup_timeout_s")
    left = f", {seconds(status.eta_s)} left" if status.eta_s is not None else ""
    yield Advice(
        text=f"nothing to do: step {status.step} of {status.steps}{left}", command=f"dptrain logs {case.name} -f"
    )


def _incomplete(case: Case) -> Iterator[Advice]:
    yield Advice(text=f"the job ended as if all were well; its log may say why. {case.goes_on}", command=case.resume())


def _exception(case: Case) -> Iterator[Advice]:
    yield Advice(text="the traceback names the line", command=f"dptrain logs {case.name} --failed")
    yield Advice(text=f"once its cause is removed, resume: {case.goes_on}", command=case.resume())


def _killed(case: Case) -> Iterator[Advice]:
    signal = case.status.failure.signal if case.status.failure else None
    if signal == "SIGKILL":
        yield from memory_advice.likely_host(case)
    elif signal == "SIGBUS":
        yield Advice(
            text=f"SIGBUS: mostly a full disk or /dev/shm under a mapped file; {case.goes_on}", command=case.resume()
        )
    elif signal is not None:
        yield Advice(
            text=f"{signal}: compiled code crashed; its log may say where. {case.goes_on}", command=case.resume()
        )
    else:
        yield Advice(text=f"the machine, or what started the ranks, was ended; {case.goes_on}", command=case.resume())


def _node_failure(case: Case) -> Iterator[Advice]:
    host = case.status.failure.host if case.status.failure else None
    yield Advice(text=f"the node is the site's to repair; on others {case.goes_on}", command=case.resume())
    if host:
        yield Advice(text=f"if it is given to you again: `extra_sbatch: {{exclude: {host}}}` in the cluster profile")


def _never_started(case: Case) -> Iterator[Advice]:
    yield Advice(
        text=f"the ranks were to run {case.interpreter}: on their nodes this must be a Python that has dptrain (`python` and `setup` "
        "of the cluster profile); the log's last lines say what was missing. A job that scancel ended in the queue looks the same once "
        "SLURM has forgotten it; `dptrain cancel` leaves a note",
        command=f"dptrain logs {case.name}",
    )
    yield Advice(text="then", command=case.resume())


def _setup(case: Case) -> Iterator[Advice]:
    failure = case.status.failure
    if failure is not None and failure.rank is None:
        yield Advice(
            text="change `setup` of the cluster profile; `dptrain doctor` checks it. Then", command=case.resume()
        )
    else:
        yield Advice(
            text="it failed before the first step: a file, weights, user code or the device", command=case.resume()
        )


def _stalled(case: Case) -> Iterator[Advice]:
    failure, spec = case.status.failure, case.spec
    # A rank that went silent wrote no stack; those that waited for it did.
    told = [
        rank.rank for rank in case.status.ranks if rank.state.startswith("failed: stalled") and rank.message is not None
    ]
    at = failure.rank if failure is not None and (failure.rank in told or not told) else min(told, default=None)
    rank = "" if at is None else f" --rank {at}"
    yield Advice(text="the stacks in the log show where the rank was", command=f"dptrain logs {case.name}{rank}")
    if not case.status.over:
        yield Advice(
            text="it is not over yet: its watchdogs should end it; if they do not",
            command=f"dptrain cancel {case.name}",
        )
    in_setup = failure is not None and "set-up made no progress" in failure.message
    key, what = ("setup_timeout_s", "set-up") if in_setup else ("stall_timeout_s", "a step")
    limit_s = getattr(spec.run, key) if spec is not None else 600
    yield Advice(
        text=f"if {what} may take longer than {limit_s} s, allow it; {case.goes_on}",
        command=case.resume(f"run.{key}={2 * limit_s}"),
    )
    if case.status.step == 0:
        yield Advice(
            text="if it stalls in its first collective again, ranks on different nodes do not reach each other: name one network "
            "interface that all nodes have (`interface` of the cluster profile; `ip -brief addr` on a node lists them)"
        )


def _diverged(case: Case) -> Iterator[Advice]:
    good = sorted(path.name for path in case.paths.output.glob("last-good*.npy"))
    if good:
        yield Advice(text=f"the last good iterate is kept: {case.paths.output / good[0]}")
    changes = [] if case.spec is None else list(_calmer(case.spec, case.status.task))
    for text, change in changes:
        yield Advice(text=f"{text}; another result, hence another run", command=case.again(change))
    if not changes:
        yield Advice(text="another run with a smaller step size or a larger sigma", command=case.again())


def _calmer(spec: Spec, task: str) -> Iterator[tuple[str, str]]:
    """(why, change) with which the numbers are less likely to run away."""
    algorithm = spec.algorithm
    if task == "train" and spec.train is not None:
        yield "smaller steps of the optimiser", f"train.learning_rate={spec.train.learning_rate / 10:.3g}"
    if isinstance(spec.denoiser, Denoiser) and spec.denoiser.weights == "random" and task != "train":
        yield "the denoiser has random weights: take trained ones", "denoiser.weights=builtin"
    if algorithm.step_size != "auto":
        stable = "0.99 / ||A||^2" if algorithm.name not in PROXIMAL else "what suits the operator"
        yield f"step size {algorithm.step_size:g}: `auto` is {stable}", "algorithm.step_size=auto"
    if algorithm.sigma != "noise":
        yield "a stronger denoiser pulls the iterate back", f"algorithm.sigma={2 * algorithm.sigma:.3g}"


def _disk_full(case: Case) -> Iterator[Advice]:
    disk = case.plan.get("disk")
    needs = (
        [whole_number(disk.get(key), most=10**18) or 0 for key in ("saves_bytes", "output_bytes")]
        if isinstance(disk, dict)
        else []
    )
    need = f"; plan counts {size(sum(needs))} of saves and output" if any(needs) else ""
    free = shutil.disk_usage(case.paths.dir).free
    yield Advice(
        text=f"{size(free)} are free now in {case.paths.dir.parent} (a quota may leave less){need}; make room",
        command="dptrain clean --all-completed",
    )
    yield Advice(text=f"then {case.goes_on}", command=case.resume())


def _world_mismatch(case: Case) -> Iterator[Advice]:
    yield Advice(
        text="the ranks were not started as planned: a line of `setup` or `env` in the cluster profile changes RANK, WORLD_SIZE or "
        "SLURM_ variables, or a `command_prefix` hides them from the ranks. Then",
        command=case.resume(),
    )


def _unknown_failure(case: Case) -> Iterator[Advice]:
    yield Advice(
        text="nobody said why; code of yours that calls exit(), or a library, ends a rank like that",
        command=f"dptrain logs {case.name} --failed",
    )
    yield Advice(text=f"then {case.goes_on}", command=case.resume())


def _timed_out(case: Case) -> Iterator[Advice]:
    status = case.status
    yield Advice(text=f"resume with the same limit: {case.goes_on}", command=case.resume())
    left = status.steps - (case.save or 0)
    if status.step_time_s is not None and left > 0:
        minutes = math.ceil(LONGER * left * status.step_time_s / 60) + 2
        yield Advice(
            text=f"{left} steps of {seconds(status.step_time_s)} are left: in one go with",
            command=case.resume(f"resources.time_min={minutes}"),
        )


def _stopped(case: Case) -> Iterator[Advice]:
    yield Advice(text=case.goes_on, command=case.resume())


def _no_answer(case: Case) -> Iterator[Advice]:
    where = "ask the scheduler" if case.status.launcher == "slurm" else "look on the host that started it"
    yield Advice(text=f"{where}; nothing here says that it has ended", command=f"dptrain status {case.name} --ranks")


TABLE: Mapping[str, Entry] = {
    "submitting": Entry(says="is being submitted", advise=_submitting),
    "never-submitted": Entry(says="was never submitted", advise=_never_submitted),
    "queued": Entry(says="waits in the queue", advise=_queued),
    "requeued": Entry(says="has saved and waits to be started again", advise=_queued),
    "starting": Entry(says="is starting", advise=_going),
    "running": Entry(says="runs", advise=_going),
    "stalled": Entry(says="makes no progress", advise=_stalled),
    "completed": Entry(says="did all it was asked for", advise=_completed),
    "incomplete": Entry(says="ended without an error and without its last records", advise=_incomplete),
    "failed: out-of-memory (device)": Entry(says="ran out of the memory of its GPU", advise=memory_advice.device),
    "failed: out-of-memory (host)": Entry(says="was refused memory of its host", advise=memory_advice.host),
    "failed: out-of-memory": Entry(
        says="was ended for the memory of its host, likely all of it that the job may have", advise=memory_advice.host
    ),
    "failed: exception": Entry(says="raised an exception", advise=_exception),
    "failed: killed": Entry(says="was killed", advise=_killed),
    "failed: node-failure": Entry(says="was lost with its node", advise=_node_failure),
    "failed: never-started": Entry(says="never reported", advise=_never_started),
    "failed: setup": Entry(says="failed in its set-up", advise=_setup),
    "failed: stalled": Entry(says="made no progress within its limit", advise=_stalled),
    "failed: diverged": Entry(says="diverged", advise=_diverged),
    "failed: disk-full": Entry(says="found the disk full", advise=_disk_full),
    "failed: world-mismatch": Entry(says="was one of another number of ranks than was planned", advise=_world_mismatch),
    "failed: unknown": Entry(says="ended without saying why", advise=_unknown_failure),
    "timed-out": Entry(says="reached its time limit", advise=_timed_out),
    "preempted": Entry(says="was preempted and not started again", advise=_stopped),
    "cancelled": Entry(says="was cancelled", advise=_stopped),
    "unknown": Entry(says="is in a state that nobody can tell", advise=_no_answer),
}
