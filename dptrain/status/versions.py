"""Whether the ranks of a run are the same program: interpreter, Python and libraries, as each recorded them at its start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dptrain.status.collect import RankRecord


def mismatches(ranks: Sequence[RankRecord]) -> Iterator[str]:
    """One sentence per thing of which ranks have different ones, the one that most have first; a rank that said nothing has none."""
    for name in dict.fromkeys(name for rank in ranks for name in rank.versions):
        holders: defaultdict[str, list[RankRecord]] = defaultdict(list)
        for rank in ranks:
            if name in rank.versions:
                holders[rank.versions[name]].append(rank)
        if len(holders) > 1:
            by_size = sorted(holders.items(), key=lambda item: -len(item[1]))
            said = "; ".join(f"{version} on {_who(who)}" for version, who in by_size)
            yield f"the ranks do not have the same {name}: {said}"


def _who(ranks: Sequence[RankRecord]) -> str:
    hosts = list(dict.fromkeys(rank.host for rank in ranks if rank.host))
    where = f" ({', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''})" if hosts else ""
    return f"rank{'s' * (len(ranks) > 1)} {ranges([rank.rank for rank in ranks])}{where}"


def ranges(numbers: Sequence[int]) -> str:
    """`0-2, 5` of 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
