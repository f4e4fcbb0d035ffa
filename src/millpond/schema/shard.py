"""A shard: some partitions of a job, which one replica follows.

1/3      the first of three shards, each of neighbouring partitions
0-31     partitions by number; also 7, and 0-3,8,12-15
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millpond.errors import RequestError

_SHARE = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")
_RANGES = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?){0,999}")


@dataclass(frozen=True, slots=True)
class Shard:
    """Which partitions it has depends on how many there are, so that a job may be rescaled.

    text:  as it is written; two shards are the same if these are equal
    """

    text: str
    _share: tuple[int, int] | None
    _ranges: tuple[tuple[int, int], ...] = ()

    def partitions(self, of: int) -> tuple[int, ...]:
        """Its partitions, ascending, if a store has `of` of them; none if there are fewer partitions than shards."""
        if self._share is not None:
            number, shards = self._share
            return tuple(range((number - 1) * of // shards, number * of // shards))
        return tuple(p for first, last in self._ranges for p in range(first, min(last + 1, of)))

    def has(self, partition: int, of: int) -> bool:
        """Whether a partition, of `of`, is one of its own."""
        if self._share is not None:
            number, shards = self._share
            return (number - 1) * of // shards <= partition < number * of // shards
        return any(first <= partition <= last for first, last in self._ranges)

    def __str__(self) -> str:
        return self.text


def parse_shard(text: str) -> Shard:
    """A shard by its text, which gets the one form that this shard has: `3,1-2` becomes `1-3`.

    Raises:  INVALID_REQUEST.
    """
    if (share := _SHARE.fullmatch(text)) is not None:
        number, shards = int(share[1]), int(share[2])
        if number <= shards:
            return Shard(f"{number}/{shards}", (number, shards))
    elif _RANGES.fullmatch(text) is not None:
        found = [tuple(map(int, part.split("-"))) for part in text.split(",")]
        ranges = _joined(sorted((part[0], part[-1]) for part in found))
        if all(first <= last for first, last in ranges):
            return Shard(",".join(str(f) if f == last else f"{f}-{last}" for f, last in ranges), None, tuple(ranges))
    raise RequestError(
        "INVALID_REQUEST",
        f"{text!r:.80} isn't a shard.",
        hint="Write 1/3 for the first of three shards, or numbers of partitions: 0-31.",
        shard=text[:80],
    )


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same partitions, ranges that touch or overlap as one."""
    out: list[tuple[int, int]] = []
    for first, last in ranges:
        if out and first <= last and out[-1][0] <= out[-1][1] and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return out
