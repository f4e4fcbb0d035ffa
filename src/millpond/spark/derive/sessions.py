"""Session windows: one row for each open session, under its keys and its start.

A session's end moves with every event, so it isn't part of the state's key.  The value row begins
with all grouping columns in grouping order, the session's window among them; the buffers follow.

Source:  StreamingSessionWindowStateManagerImplV1, Spark 4.3, checked in
         tests/spark/derive/test_derive_sessions.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.schema.definition.expression import Expression, buffer_column, key_column
from millpond.schema.types import Field, SparkType, atomic
from millpond.spark.derive.columns import Output
from millpond.spark.derive.plan import Java, fields_of

SESSIONS = "sessionWindowStateStoreSaveExec"
"""Spark's name of the operator in checkpoints."""
# Spark's name of the column, unless the user names it.
_DEFAULT_NAME = "session_window"


@dataclass(frozen=True, slots=True)
class Sessions:
    """An aggregation over session windows.

    grouping:  the grouping columns, as the value row begins with them
    place:     which of them is the session
    """

    grouping: tuple[Field, ...]
    place: int

    @property
    def key_schema(self) -> tuple[Field, ...]:
        """The columns of the state's key: the other grouping columns, and the session's start."""
        others = [field for i, field in enumerate(self.grouping) if i != self.place]
        # Spark stores the start as a timestamp, with any type of the session's times.
        return (*others, Field("sessionStartTime", atomic("timestamp"), False))

    @property
    def time(self) -> SparkType:
        """The type of the session's start and end."""
        return self.grouping[self.place].type.fields[0].type

    def column(self, index: int) -> Expression:
        """The expression of a grouping column: a column of the key, or the session in the value row."""
        if index == self.place:
            return buffer_column(index, self.grouping[index].type)
        return key_column(index - (index > self.place), self.grouping[index].type)

    def with_bounds(self, outputs: list[Output]) -> list[Output]:
        """The output columns, with the session's start, which names the key, and its end before all others.

        With the user's name of the session they are `<name>_start` and `<name>_end`; without one
        `session_start` and `session_end`, or `session_window_start` and `session_window_end` if a
        user's column has that name.
        """
        whole = self.column(self.place)
        start = Expression("get_field", self.time, (whole,), {"ordinal": 0})
        end = Expression("get_field", self.time, (whole,), {"ordinal": 1})
        word = start_name = end_name = None
        others: list[Output] = []
        for output in outputs:
            if output.value == whole and word is None:
                word = output.name
            elif output.value == start and start_name is None:
                start_name = output.name
            elif output.value == end and end_name is None:
                end_name = output.name
            else:
                others.append(output)
        if word in (None, _DEFAULT_NAME):
            taken = {output.name for output in others}
            word = "session" if taken.isdisjoint({"session_start", "session_end"}) else _DEFAULT_NAME
        key = key_column(len(self.grouping) - 1, self.time)
        bounds = [
            Output(start_name or f"{word}_start", key, is_ours=start_name is None),
            Output(end_name or f"{word}_end", end, is_ours=end_name is None),
        ]
        return [*bounds, *others]


def session_of(grouping: list[Java]) -> Sessions | None:
    """The session window among grouping columns, None if there is none."""
    places = [i for i, column in enumerate(grouping) if column.metadata().contains("spark.sessionWindow")]
    return Sessions(fields_of(grouping), places[0]) if places else None
