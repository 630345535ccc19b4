"""What DPTRAIN_FAULT may say, and that nothing in it is ignored."""

from __future__ import annotations

import pytest

from dptrain.errors import UsageError
from dptrain.records.faults import EVERY, KINDS, Fault, declared_faults, parse_faults


def test_several_faults_with_what_each_leaves_out() -> None:
    text = "kill@rank=1,step=3; slow@rank=all,seconds=0.5,attempt=2 ;exit@code=7,attempt=all"
    assert parse_faults(text) == (
        Fault(kind="kill", rank=1, step=3),
        Fault(kind="slow", rank=EVERY, seconds=0.5, attempt=2),
        Fault(kind="exit", code=7, attempt=EVERY),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_reads_as_the_same_fault(kind: str) -> None:
    (fault,) = parse_faults(f"{kind}@rank=3{',seconds=2' if kind == 'slow' else ''}")
    assert parse_faults(str(fault)) == (fault,)


def test_the_first_attempt_alone_unless_another_is_named() -> None:
    (fault,) = parse_faults("kill@rank=1")
    assert fault.meant_for(1, 1)
    assert not fault.meant_for(1, 2) and not fault.meant_for(0, 1)
    (fault,) = parse_faults("kill@rank=all,attempt=all")
    assert fault.meant_for(0, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kil@rank=1", "write: kill"),
        ("@rank=1", "there is no kind ''"),
        ("kill@node=1", "'node' is not known"),
        ("kill@rank=1,rank=2", "stands twice"),
        ("kill@rank", "rank is ''"),
        ("kill@rank=-1", "rank is '-1'"),
        ("kill@attempt=0", "attempt=1"),
        ("kill@step=1.5", "step is '1.5'"),
        ("kill@seconds=1", "'seconds' is not known"),
        ("exit@code=256", "code is '256'"),
        ("slow@rank=0", "write: slow@rank=0,seconds=2"),
        ("slow@seconds=nan", "seconds is 'nan'"),
        ("raise;kil", "'kil'"),
        (" ; ", "names no fault"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_faults(text)
    assert said in str(error.value)


def test_a_forgotten_variable_stops_the_run() -> None:
    assert declared_faults({}, 2) is None
    assert declared_faults({"DPTRAIN_FAULT": "", "DPTRAIN_FAULT_ALLOW": "1"}, 2) is None
    for allow in ({}, {"DPTRAIN_FAULT_ALLOW": "0"}, {"DPTRAIN_FAULT_ALLOW": ""}):
        with pytest.raises(UsageError, match="DPTRAIN_FAULT_ALLOW=1 does not say that this is meant"):
            declared_faults({"DPTRAIN_FAULT": "raise", **allow}, 2)


def test_a_rank_that_the_run_lacks_is_refused() -> None:
    allowed = {"DPTRAIN_FAULT_ALLOW": "1"}
    assert declared_faults({"DPTRAIN_FAULT": "raise@rank=1", **allowed}, 2) == "raise@rank=1,step=1,attempt=1"
    with pytest.raises(UsageError, match="the run has 2 ranks"):
        declared_faults({"DPTRAIN_FAULT": "raise@rank=2", **allowed}, 2)
