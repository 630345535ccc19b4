"""The one table of SLURM's job states, and the one of its pending reasons.

Words arrive whole (`CANCELLED`), with an author (`CANCELLED by 1000`), cut short (`CANCELLED+`, `OUT_OF_ME+`), or as two-letter
codes. A word that is not in the table keeps its text and the meaning `unknown`, which counts neither as failed nor as done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Meaning = Literal[
    "queued",
    "running",
    "suspended",
    "ending",
    "completed",
    "failed",
    "cancelled",
    "timed-out",
    "preempted",
    "node-failure",
    "out-of-memory",
    "unknown",
]

FINISHED: frozenset[Meaning] = frozenset(
    {"completed", "failed", "cancelled", "timed-out", "preempted", "node-failure", "out-of-memory"}
)
"""Meanings of an attempt that is over; a requeued job then shows as queued again."""

# word, code, meaning
_TABLE: tuple[tuple[str, str, Meaning], ...] = (
    ("PENDING", "PD", "queued"),
    ("CONFIGURING", "CF", "queued"),
    ("REQUEUED", "RQ", "queued"),
    ("REQUEUE_FED", "RF", "queued"),
    ("REQUEUE_HOLD", "RH", "queued"),
    ("RESV_DEL_HOLD", "RD", "queued"),
    ("SPECIAL_EXIT", "SE", "queued"),
    ("POWER_UP_NODE", "PN", "queued"),
    ("RUNNING", "R", "running"),
    ("RESIZING", "RS", "running"),
    ("SIGNALING", "SI", "running"),
    ("EXPEDITING", "EX", "running"),
    ("SUSPENDED", "S", "suspended"),
    ("STOPPED", "ST", "suspended"),
    ("COMPLETING", "CG", "ending"),
    ("STAGE_OUT", "SO", "ending"),
    ("UPDATE_DB", "UD", "ending"),
    ("COMPLETED", "CD", "completed"),
    ("FAILED", "F", "failed"),
    ("LAUNCH_FAILED", "LF", "failed"),
    ("RECONFIG_FAIL", "RC", "failed"),
    ("CANCELLED", "CA", "cancelled"),
    ("REVOKED", "RV", "cancelled"),
    ("TIMEOUT", "TO", "timed-out"),
    ("DEADLINE", "DL", "timed-out"),
    ("PREEMPTED", "PR", "preempted"),
    ("NODE_FAIL", "NF", "node-failure"),
    ("BOOT_FAIL", "BF", "node-failure"),
    ("OUT_OF_MEMORY", "OOM", "out-of-memory"),
)
_BY_WORD: dict[str, Meaning] = {word: meaning for word, _, meaning in _TABLE}
_BY_CODE: dict[str, Meaning] = {code: meaning for _, code, meaning in _TABLE}
STATE_WORDS: tuple[str, ...] = tuple(_BY_WORD)
_SHORTEST_CUT = 3


def meaning_of(raw: str) -> Meaning:
    """The meaning of one state word as any SLURM command prints it."""
    words = raw.strip().upper().split()
    if not words:
        return "unknown"
    word = words[0].rstrip("+*")
    if word in _BY_WORD:
        return _BY_WORD[word]
    if word in _BY_CODE:
        return _BY_CODE[word]
    # Cut short: all states that begin so must agree. COMPLET may be COMPLETED or COMPLETING, so it says nothing.
    candidates = {m for w, m in _BY_WORD.items() if len(word) >= _SHORTEST_CUT and w.startswith(word)}
    return candidates.pop() if len(candidates) == 1 else "unknown"


@dataclass(frozen=True, kw_only=True)
class PendingReason:
    """Why a job does not start."""

    word: str
    """SLURM's own word."""
    kind: Literal["waiting", "blocked", "impossible"]
    """`waiting`: starts by itself. `blocked`: starts once somebody acts. `impossible`: never starts as it was asked for."""
    explanation: str
    """What it means, for the kinds that need it; else empty."""


_IMPOSSIBLE = {
    "PartitionConfig": "the partition does not allow what was asked for",
    "PartitionNodeLimit": "more (or fewer) nodes than the partition allows",
    "PartitionTimeLimit": "a longer time limit than the partition allows",
    "BadConstraints": "no node has what was asked for",
    "AccountNotAllowed": "this account may not use the partition",
    "QOSNotAllowed": "this account or partition may not use the QOS",
    "InvalidAccount": "the account does not exist",
    "InvalidQOS": "the QOS does not exist",
    "DependencyNeverSatisfied": "a job it waits for did not end as required",
    "AssociationTimeLimit": "a longer time limit than this account may ask for",
    "AssociationResourceLimit": "more than this account may ask for",
    "QOSResourceLimit": "more than the QOS allows",
    "QOSTimeLimit": "a longer time limit than the QOS allows",
    "QOSUsageThreshold": "the QOS' usage threshold is crossed",
    "DeadLine": "its deadline has passed",
}
_BLOCKED = {
    "JobHeldUser": "held by its owner: scontrol release",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "held after too many requeues: scontrol release",
    "ReqNodeNotAvail": "nodes it needs are down, drained or reserved",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReservationDeleted": "its reservation was deleted",
    "launch_failed_requeued_held": "held after its launch failed: scontrol release",
    "FrontEndDown": "no front end is available",
}


def pending_reason(raw: str) -> PendingReason:
    """Read the reason of a pending job as squeue prints it: `None`, `Resources`, `ReqNodeNotAvail, UnavailableNodes:n1`."""
    text = raw.strip()
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    word = re.split("[,(]", text)[0].strip().replace(" ", "_")
    if word in ("", "None"):
        return PendingReason(word="", kind="waiting", explanation="")
    if word in _BLOCKED:
        return PendingReason(word=text, kind="blocked", explanation=_BLOCKED[word])
    if word in _IMPOSSIBLE:
        return PendingReason(word=text, kind="impossible", explanation=_IMPOSSIBLE[word])
    # Limits of one job never pass by themselves; limits of a group, user or account pass when other jobs end.
    if word.startswith("QOSMin") or re.match("(AssocMax|QOSMax).*(PerJob|PerNode)", word):
        explanation = "outside what one job of this account or QOS may ask for"
        return PendingReason(word=text, kind="impossible", explanation=explanation)
    return PendingReason(word=text, kind="waiting", explanation="")
