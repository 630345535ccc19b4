"""Which cluster profile a command uses, and why: the reason is printed and recorded."""

from __future__ import annotations

import os

from dptrain.errors import UsageError
from dptrain.scheduler.commands import NoAnswer, run_command, says_no_slurm
from dptrain.spec.cluster import ClusterProfile
from dptrain.spec.profiles import load_profile, own_profile_names
from dptrain.spec.schema import Spec

ANSWER_TIMEOUT_S = 5.0


def choose_cluster(cli_name: str | None, spec: Spec) -> tuple[ClusterProfile, str]:
    """(profile, reason): `--cluster`, `DPTRAIN_CLUSTER`, the spec, SLURM if a controller answers, this machine.

    :raises SpecError: where the chosen profile does not exist or is wrong.
    :raises UsageError: where SLURM answers and several profiles could be meant.
    """
    if cli_name:
        return load_profile(cli_name), "--cluster names it"
    if from_environment := os.environ.get("DPTRAIN_CLUSTER"):
        return load_profile(from_environment), "DPTRAIN_CLUSTER names it"
    if spec.cluster:
        return load_profile(spec.cluster), "the spec names it"
    silent = controller_answers()
    if silent is not None:
        reason = "no SLURM on this machine" if says_no_slurm(silent) else "no SLURM controller answers"
        return load_profile("local"), reason
    return _slurm_profile()


def controller_answers() -> str | None:
    """None where a SLURM controller answers within 5 s, else why not."""
    try:
        answer = run_command(["sinfo", "--noheader", "--format=%R"], timeout_s=ANSWER_TIMEOUT_S)
    except NoAnswer as error:
        return str(error)
    if answer.exit_code == 0:
        return None
    lines = answer.words.splitlines()
    return lines[-1].strip() if lines else f"sinfo ended with exit code {answer.exit_code}"


def _slurm_profile() -> tuple[ClusterProfile, str]:
    # Somebody who wrote one profile for this site means it; of several, none can be guessed.
    own = [p for p in map(load_profile, own_profile_names()) if p.launcher == "slurm"]
    if len(own) == 1:
        return own[0], "a SLURM controller answers, and it is your only SLURM profile"
    if own:
        names = ", ".join(profile.name for profile in own)
        raise UsageError(
            f"a SLURM controller answers, and there are several SLURM profiles of your own: {names}\n"
            f"    write: --cluster {own[0].name}, or `cluster: {own[0].name}` in the spec"
        )
    return load_profile("generic-slurm"), "a SLURM controller answers"
