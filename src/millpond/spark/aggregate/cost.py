"""What a declared aggregate will have in its state, before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.schema.definition.resolutions import words_of_seconds
from millpond.spark.aggregate.declaration import Declaration

_YEAR_SECONDS = 365 * 86_400
# The shortest of each unit; a change of the clocks takes an hour of it.
_LEAST_DAYS = {"day": 1, "week": 7, "month": 28, "quarter": 90, "year": 365}


def describe_state(declared: Declaration) -> str:
    """The rows of a group that has an event in every bucket, a line for each resolution."""
    group = "group" if declared.key else "aggregate"
    return "\n".join([f"millpond: {declared.name}: the state of a {group} with events all the time:", *_lines(declared)])


def _lines(declared: Declaration) -> Iterator[str]:
    for resolution in declared.resolutions:
        seconds = _LEAST_DAYS[resolution.unit] * 86_400 - 3600 if resolution.unit in _LEAST_DAYS else resolution.most_seconds
        if resolution.keep_seconds is None:
            yield f"  {resolution}: {_YEAR_SECONDS // seconds:,} rows more in each year, kept for ever"
        else:
            # With the bucket that is being filled, and one that only partly lies within the retention.
            most = -(-resolution.keep_seconds // seconds) + 2
            yield f"  {resolution}: {most:,} rows at most, each kept for {resolution.keep_words}"
    if declared.dedupe is not None:
        column, seconds = declared.dedupe
        yield f"  and each {column} for {words_of_seconds(seconds)}, in an operator of its own"
    if declared.letters_seconds is not None:
        yield f"  and each dead letter for {words_of_seconds(declared.letters_seconds)}"
