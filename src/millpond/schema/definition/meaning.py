"""The meaning of an aggregation's state in words, for comparison with the checkpoint's next definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = Any


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a state's columns, in words that are the same in every run.

    See `spark.derive.state_words`.

    grouping:    for each column of the key
    aggregates:  for each aggregate function, in the order of their buffers
    buffers:     how many columns of the value each of these has; empty if nobody noted it
    """

    grouping: tuple[str, ...]
    aggregates: tuple[str, ...]
    buffers: tuple[int, ...] = ()

    def to_json(self) -> Json:
        return {"grouping": list(self.grouping), "aggregates": list(self.aggregates), "buffers": list(self.buffers)}

    def describe(self) -> list[str]:
        """Lines that a person can compare."""
        return [f"grouped by {words}" for words in self.grouping] + [f"aggregated: {words}" for words in self.aggregates]


def parse_meaning(data: Json) -> Meaning | None:
    """Turn the JSON form back.  Raises ValueError, KeyError or TypeError if it is invalid."""
    if data is None:
        return None
    words = [*data["grouping"], *data["aggregates"]]
    if not all(isinstance(word, str) for word in words):
        raise ValueError("the words for the state aren't text")
    buffers = data.get("buffers", ())
    if (buffers and len(buffers) != len(data["aggregates"])) or not all(type(count) is int and count >= 0 for count in buffers):
        raise ValueError("the numbers of buffers aren't one for each aggregate")
    return Meaning(tuple(data["grouping"]), tuple(data["aggregates"]), tuple(buffers))
