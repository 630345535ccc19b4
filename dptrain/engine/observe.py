"""Who looks on while a rank works: told of sections, of calls to other ranks and of bytes sent, in the steps that are measured.

There is one observer per process, as there is one default process group: calls to other ranks come from everywhere, autograd's own
threads included. Outside the measured steps there is none, and asking costs nothing that can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dptrain.engine.split import Seen

Range = AbstractContextManager[Any]
"""Something with a beginning and an end; may be entered again after it was left."""
NOTHING: Range = nullcontext()


class Observer:
    """Looks at nothing: the base of those that do."""

    files: Sequence[Path] = ()
    """What it writes, there when the measured steps are over."""
    note: str | None = None
    """What whoever asked for it must know."""

    @property
    def seen(self) -> Seen | None:
        """Times of this rank; None: it takes none."""
        return None

    def prepare(self, warm_up_steps: int, active_steps: int) -> None:
        """The first step of the attempt is about to begin."""

    def open(self) -> None:
        """The measured steps begin."""

    def after_step(self) -> None:
        """A step is over, from the first of the attempt to the last that is measured."""

    def close(self) -> None:
        """The measured steps are over."""

    def step(self, number: int) -> Range:
        """Around a step."""
        return NOTHING

    def section(self, name: str) -> Range:
        """Around a part of a step."""
        return NOTHING

    def call(self, name: str, key: str) -> Range:
        """Around the time that an exchange or collective takes this rank; one of several parts is entered several times.

        :param key: tells it from calls between other ranks or of other boxes: the n-th call of a key is the n-th on every rank that
            takes part.
        """
        return NOTHING

    def sent(self, bytes_sent: int) -> None:
        """This rank has sent so much."""


_observer: Observer | None = None


def observed_by(observer: Observer | None) -> None:
    """From now on tell this one; None: nobody."""
    global _observer
    _observer = observer


def anyone() -> bool:
    """Whether somebody observes."""
    return _observer is not None


def step(number: int) -> Range:
    """Around a step."""
    return NOTHING if _observer is None else _observer.step(number)


def section(name: str) -> Range:
    """Around a part of a step."""
    return NOTHING if _observer is None else _observer.section(name)


def communicating(name: str, group: dist.ProcessGroup | None = None, key: Callable[[], str] = str) -> Range:
    """Around an exchange or a collective, entered once for each part of it.

    :param group: the ranks that may take part; None: all.
    :param key: what else tells it from others of its name and group.
    """
    if _observer is None:
        return NOTHING
    ranks = "" if group is None else ",".join(map(str, dist.get_process_group_ranks(group)))
    return _observer.call(name, f"{name} {ranks} {key()}")


def sent(bytes_sent: int) -> None:
    """This rank has sent so much."""
    if _observer is not None:
        _observer.sent(bytes_sent)
