"""Every state word SLURM knows, in every form in which it arrives."""

from __future__ import annotations

import pytest

from dptrain.scheduler.states import FINISHED, STATE_WORDS, Meaning, meaning_of, pending_reason

BASE_STATES: dict[str, Meaning] = {
    "BOOT_FAIL": "node-failure",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "CONFIGURING": "queued",
    "COMPLETING": "ending",
    "DEADLINE": "timed-out",
    "FAILED": "failed",
    "NODE_FAIL": "node-failure",
    "OUT_OF_MEMORY": "out-of-memory",
    "PENDING": "queued",
    "PREEMPTED": "preempted",
    "RUNNING": "running",
    "RESV_DEL_HOLD": "queued",
    "REQUEUE_FED": "queued",
    "REQUEUE_HOLD": "queued",
    "REQUEUED": "queued",
    "RESIZING": "running",
    "REVOKED": "cancelled",
    "SIGNALING": "running",
    "SPECIAL_EXIT": "queued",
    "STAGE_OUT": "ending",
    "STOPPED": "suspended",
    "SUSPENDED": "suspended",
    "TIMEOUT": "timed-out",
}
"""The list of squeue's manual."""
CODES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING", "DL": "DEADLINE",
    "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING",
    "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED", "RS": "RESIZING", "RV": "REVOKED",
    "SI": "SIGNALING", "SE": "SPECIAL_EXIT", "SO": "STAGE_OUT", "ST": "STOPPED", "S": "SUSPENDED", "TO": "TIMEOUT",
}  # fmt: skip


@pytest.mark.parametrize(("word", "meaning"), BASE_STATES.items())
def test_every_word(word: str, meaning: Meaning) -> None:
    assert meaning_of(word) == meaning
    assert meaning_of(word.lower()) == meaning


@pytest.mark.parametrize(("code", "word"), CODES.items())
def test_every_code(code: str, word: str) -> None:
    assert meaning_of(code) == BASE_STATES[word]


@pytest.mark.parametrize("word", STATE_WORDS)
def test_a_word_cut_short_means_the_same_or_nothing(word: str) -> None:
    for length in range(3, len(word)):
        for cut in (word[:length], word[:length] + "+"):
            assert meaning_of(cut) in (meaning_of(word), "unknown"), cut


@pytest.mark.parametrize(
    ("raw", "meaning"),
    [
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("CANCELLE", "cancelled"),
        ("OUT_OF_ME+", "out-of-memory"),
        ("OUT_OF_M", "out-of-memory"),
        ("NODE_FAI", "node-failure"),
        ("COMPLETI", "ending"),
        ("COMPLETE", "completed"),
        ("COMPLET", "unknown"),
        ("REQUEUE+", "queued"),
        ("PREEMPTE", "preempted"),
        ("  RUNNING ", "running"),
    ],
)
def test_words_as_commands_print_them(raw: str, meaning: Meaning) -> None:
    assert meaning_of(raw) == meaning


@pytest.mark.parametrize("raw", ["", " ", "HIBERNATING", "X", "+", "CANCELLEDISH", "RU"])
def test_an_unknown_word_counts_neither_as_failed_nor_as_done(raw: str) -> None:
    assert meaning_of(raw) == "unknown"
    assert meaning_of(raw) not in FINISHED


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ("None", "waiting"),
        ("", "waiting"),
        ("Priority", "waiting"),
        ("Resources", "waiting"),
        ("(Resources)", "waiting"),
        ("BeginTime", "waiting"),
        ("Dependency", "waiting"),
        ("QOSMaxJobsPerUserLimit", "waiting"),
        ("AssocMaxJobsLimit", "waiting"),
        ("AssocGrpGRES", "waiting"),
        ("SomethingNew", "waiting"),
        ("JobHeldUser", "blocked"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "blocked"),
        ("PartitionDown", "blocked"),
        ("launch failed requeued held", "blocked"),
        ("PartitionConfig", "impossible"),
        ("PartitionTimeLimit", "impossible"),
        ("PartitionNodeLimit", "impossible"),
        ("BadConstraints", "impossible"),
        ("InvalidAccount", "impossible"),
        ("DependencyNeverSatisfied", "impossible"),
        ("QOSMaxWallDurationPerJobLimit", "impossible"),
        ("AssocMaxNodePerJobLimit", "impossible"),
        ("QOSMinGRES", "impossible"),
        ("QOSMinCpuNotSatisfied", "impossible"),
        ("QOSMaxGRESPerNode", "impossible"),
    ],
)
def test_pending_reasons(raw: str, kind: str) -> None:
    reason = pending_reason(raw)
    assert reason.kind == kind
    assert bool(reason.explanation) == (kind != "waiting")
    if raw.strip("()") not in ("", "None"):
        assert reason.word == raw.strip("()")
