"""The errors a user can cause, with the exit code of each branch.

    DptrainError                     1   (never raised itself)
    |- RunFailed                     1   a run failed, was cancelled or ended incomplete
    |- UsageError                    2   a command was called with arguments that do not fit together
    |   `- SpecError                 2   the spec (or a cluster profile) is wrong: a list of Problem, all of one file at once
    |- PlanRefused                   3   the plan says it cannot work: does not fit, impossible request
    |- SubmissionRejected            4   the scheduler refused the job; its own words are quoted
    |- NoSuchRun                     5   no run of that id, directory or prefix
    |- StateUnknown                  6   no source (records, scheduler) answered
    |- WaitTimeout                 124   `--timeout` of a wait reached; the run goes on
    `- Interrupted                 130   Ctrl-C; the message says which jobs still run

These print one message and no traceback; any other exception is a bug and keeps its traceback. This module imports nothing.
"""


class DptrainError(Exception):
    """Base of every error that prints as one message."""

    exit_code = 1


class RunFailed(DptrainError):
    """A run failed, was cancelled or ended incomplete."""


class UsageError(DptrainError):
    """A command was called with arguments that do not fit together."""

    exit_code = 2


class Problem:
    """One thing wrong with a YAML file: where, what was found, what to write instead."""

    def __init__(self, where: str, found: str, write: str) -> None:
        """
        :param where: `file:line:col`, or `--set key` for an override.
        :param found: what was found there, with the full key path.
        :param write: the line to write instead, or the nearest valid name.
        """
        self.where, self.found, self.write = where, found, write

    def __str__(self) -> str:
        return f"{self.where}: {self.found}" + (f"\n    write: {self.write}" if self.write else "")


class SpecError(UsageError):
    """A spec or cluster profile is wrong. Holds every problem of the file, not the first one."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems))


class PlanRefused(DptrainError):
    """The plan says it cannot work."""

    exit_code = 3


class SubmissionRejected(DptrainError):
    """The scheduler refused the job."""

    exit_code = 4


class NoSuchRun(DptrainError):
    """No run of that id, directory or prefix."""

    exit_code = 5


class StateUnknown(DptrainError):
    """No source answered."""

    exit_code = 6


class WaitTimeout(DptrainError):
    """`--timeout` of a wait was reached; the run goes on."""

    exit_code = 124


class Interrupted(DptrainError):
    """Ctrl-C; the message says which jobs still run."""

    exit_code = 130
