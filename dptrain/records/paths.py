"""RunPaths: the only place that knows a file name under a run directory or beside them (docs/run-directory.md draws the tree)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,6})\.jsonl")
_ATTEMPT = re.compile(r"[1-9][0-9]{0,6}")


def runs_root(configured: str | None = None) -> Path:
    """The folder that holds run directories: that of a cluster profile, `DPTRAIN_RUNS`, or `./runs`.

    :param configured: `runs` of the profile.
    """
    return Path(configured or os.environ.get("DPTRAIN_RUNS") or "runs").expanduser().absolute()


def calibration_file(root: Path) -> Path:
    """What runs have needed beside what was forecast of them (`calibration.py`).

    :param root: folder of runs.
    """
    return root / "calibration.jsonl"


@dataclass(frozen=True)
class AttemptPaths:
    """Files of one attempt: the first start is attempt 1, each restart one more."""

    dir: Path

    def rank_events(self, rank: int) -> Path:
        """JSON lines of one rank (`events.py`)."""
        return self.dir / f"rank-{rank}.jsonl"

    def rank_log(self, rank: int) -> Path:
        """stdout and stderr of one rank; the first line holds job id, attempt, host, rank."""
        return self.dir / f"rank-{rank}.log"

    def rank_trace(self, rank: int) -> Path:
        """Chrome trace of one rank's measured steps (`run.measure: torch`)."""
        return self.dir / f"rank-{rank}.trace.json.gz"

    def rank_operators(self, rank: int) -> Path:
        """Table of the operators of one rank's measured steps (`run.measure: torch`)."""
        return self.dir / f"rank-{rank}.operators.txt"

    def rank_room(self, rank: int) -> Path:
        """Room on the disk for the rank's last words, while it runs."""
        return self.dir / f".rank-{rank}.room"

    @property
    def launcher_events(self) -> Path:
        """JSON lines of what started the ranks: start, exit codes or signals per rank, cancel requests."""
        return self.dir / "launcher.jsonl"

    @property
    def launcher_log(self) -> Path:
        """stdout and stderr of the launcher itself: what a rank prints before its own log is open ends here."""
        return self.dir / "launcher.log"

    @property
    def nccl_trace(self) -> Path:
        """Where NCCL's flight recorder writes the newest collectives of a rank after a time-out; torch appends the rank."""
        return self.dir / "nccl-"

    @property
    def rendezvous(self) -> Path:
        """Where rank 0 listens: JSON {job_id, attempt, hosts, port}."""
        return self.dir / "rendezvous.json"

    def frozen(self, file: Path) -> Path:
        """Where a resumed run keeps a file of the run as it was up to this attempt: spec, plan, environment, submission."""
        return self.dir / file.name

    def ranks(self) -> list[int]:
        """Ranks that have written events, ascending."""
        found = (_RANK.fullmatch(path.name) for path in self.dir.glob("rank-*.jsonl"))
        return sorted(int(match[1]) for match in found if match is not None)


@dataclass(frozen=True)
class RunPaths:
    """Every path of one run."""

    dir: Path

    @property
    def run_id(self) -> str:
        """A run id is its folder's name."""
        return self.dir.name

    @property
    def spec(self) -> Path:
        """The resolved spec, defaults written out; what the ranks read."""
        return self.dir / "spec.yaml"

    @property
    def plan(self) -> Path:
        return self.dir / "plan.json"

    @property
    def environment(self) -> Path:
        """Versions, git commit and dirty flag, host; never values of environment variables."""
        return self.dir / "environment.json"

    @property
    def submission(self) -> Path:
        """The sbatch text that was submitted; absent for a local run."""
        return self.dir / "submission.sh"

    @property
    def restart(self) -> Path:
        """Script of the job that follows one whose time is over; only where the profile says `restart: resubmit`."""
        return self.dir / "restart.sh"

    @property
    def lock(self) -> Path:
        """Held by a command while it changes what the run is to do."""
        return self.dir / ".lock"

    @property
    def intent(self) -> Path:
        """What was asked for and how far submission got (`intent.py`)."""
        return self.dir / "intent.json"

    @property
    def submitit(self) -> Path:
        """submitit's own folder: the pickled call, which holds only the run directory."""
        return self.dir / "submitit"

    def submitted_call(self, job_id: str) -> Path:
        """Where submitit looks for the pickled call of a job."""
        return self.submitit / f"{job_id}_submitted.pkl"

    @property
    def restart_call(self) -> Path:
        """The call that goes with `restart`."""
        return self.submitit / "restart.pkl"

    @property
    def batch_log(self) -> Path:
        """Folder of the batch script's own output."""
        return self.dir / "batch"

    def batch_log_of(self, job_id: str) -> Path:
        """Output of one job, all its starts; for a member of an array a link to the array's folder."""
        return self.batch_log / f"batch-{job_id}.log"

    @property
    def saves(self) -> Path:
        return self.dir / "saves"

    def save(self, step: int) -> Path:
        """One save: complete or absent (written beside, then renamed)."""
        return self.saves / f"step-{step}"

    def partial_save(self, step: int) -> Path:
        """A save while it is written; one that is still there when no rank runs was interrupted."""
        return self.saves / f".step-{step}.partial"

    @property
    def result(self) -> Path:
        return self.dir / "result.json"

    @property
    def output(self) -> Path:
        """Reconstructions and pictures."""
        return self.dir / "output"

    @property
    def attempts_dir(self) -> Path:
        return self.dir / "attempts"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.attempts_dir / str(number))

    def attempts(self) -> list[int]:
        """Numbers of the attempts that exist, ascending. Raises OSError where something else is in the folder's place."""
        try:
            names = [path.name for path in self.attempts_dir.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if _ATTEMPT.fullmatch(name))

    def create(self) -> None:
        """Make every folder; all exist before submission. Raises FileExistsError for a run that exists."""
        self.dir.mkdir(parents=True)
        for folder in (self.attempt(1).dir, self.submitit, self.batch_log, self.saves, self.output):
            folder.mkdir(parents=True)
