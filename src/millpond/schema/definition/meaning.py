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
    """

    grouping: tuple[str, ...]
    aggregates: tuple[str, ...]

    def to_json(self) -> Json:
        return {"grouping": list(self.grouping), "aggregates": list(self.aggregates)}

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
    return Meaning(tuple(data["grouping"]), tuple(data["aggregates"]))
