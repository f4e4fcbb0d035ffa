"""Which groups of a stream are hot, judged by a sketch's counts in its batches.

A hash of its values identifies a group.  The stream is asked for the values once: when the group
becomes hot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from millpond.errors import RequestError
from millpond.schema.definition.hot_keys import HotKey, parse_key
from millpond.schema.types import SparkType
from millpond.schema.values import decode_json

# The weight of earlier batches in each new one: a group that was hot is forgotten within some ten
# batches.
_KEPT = 0.8
# Fewer rows than this, of all that count, aren't enough to judge.
_FEWEST_ROWS = 1000
# A hot group stays hot until its share falls below this part of `share`, so that no group
# alternates.
_STAYS = 0.5
# How many counts to keep for each group that can be hot at once.
_REMEMBERED = 8
# Shares are written again when one has changed by this.
_MOVED = 0.1


class HotList:
    """The hot groups after each batch.

    share:  a group is hot if it gets at least this share of the rows, above 0 and at most 1
    columns: the types of the columns that distinguish groups
    hot:    the groups on the list of an earlier run
    """

    def __init__(self, share: float, columns: Mapping[str, SparkType], hot: Iterable[HotKey] = ()) -> None:
        self.columns = dict(columns)
        self.naming_error: str | None = None
        self._share = share
        self._rows = 0.0
        self._counts: dict[int, float] = {}
        self._hot = {key.hash: key for key in hot}
        self._written = dict(self._hot)

    @property
    def keys(self) -> list[HotKey]:
        """The hot groups, largest share first."""
        return sorted(self._hot.values(), key=lambda key: (-key.share, key.hash))

    def take(self, batch: int, rows: int, counted: Iterable[tuple[int, int]], named: Iterable[str]) -> bool:
        """Judge by one more batch; returns whether the list should be written.

        rows:     how many the batch has
        counted:  (hash, rows) of the sketch's most frequent groups
        named:    `<hash> <values as JSON>` of hot groups that had no name

        A group whose values can't be read stays without a name, and `naming_error` says why.
        """
        if not rows:
            return False
        self._rows = self._rows * _KEPT + rows
        self._counts = {group: count * _KEPT for group, count in self._counts.items()}
        for group, count in counted:
            self._counts[group] = self._counts.get(group, 0.0) + count
        most = sorted(self._counts, key=self._counts.__getitem__, reverse=True)[: int(_REMEMBERED / self._share)]
        self._counts = {group: self._counts[group] for group in most}
        if self._rows >= _FEWEST_ROWS:
            self._judge(batch)
        for text in named:
            digits, _, values = text.partition(" ")
            if (group := int(digits)) not in self._hot:
                continue
            try:
                self._hot[group] = replace(self._hot[group], key=parse_key(decode_json(values), self.columns))
                self.naming_error = None
            except (RequestError, ValueError) as wrong:
                self.naming_error = f"{type(wrong).__name__}: {wrong}"
        return self._differs()

    def written(self) -> None:
        """Called after the list was written."""
        self._written = dict(self._hot)

    def _judge(self, batch: int) -> None:
        shares = {group: min(1.0, count / self._rows) for group, count in self._counts.items()}
        judged = {}
        for group, share in shares.items():
            known = self._hot.get(group)
            if known is not None and share >= self._share * _STAYS:
                judged[group] = replace(known, share=share)
            elif known is None and share >= self._share:
                judged[group] = HotKey(group, None, share, batch)
        self._hot = judged

    def _differs(self) -> bool:
        """Whether the list differs from the one that was last written."""
        return self._hot.keys() != self._written.keys() or any(
            key.key != self._written[group].key or abs(key.share - self._written[group].share) >= _MOVED
            for group, key in self._hot.items()
        )
