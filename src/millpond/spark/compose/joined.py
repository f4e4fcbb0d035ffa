"""State that holds the rows of two tables with equal joined columns, and their joined rows.

    left, right  the other key columns -> the values of a row
    result       the other key columns of both -> the values of both; NULL on the side that an outer
                 join has no row for

1. Of each changed row the last change counts: that of the latest batch, and there the new row.
   PySpark hands over a large group in several calls, so changes are remembered until the next group.
2. Read the rows of the other side, and of this side those that changed.  All rows of a side are
   needed too if the other side is kept by an outer join, to know whether it matches any.
3. Joined rows of which a part changed are written or removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from millpond.spark.buffered import times_in_utc
from millpond.spark.source.columns import BATCH, SIGN

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

SIDE = "_side"
_ONE = StructType([StructField("_one", LongType())])
Values = tuple[Any, ...]
Held = dict[Values, Values]


@dataclass(frozen=True, slots=True)
class SideShape:
    """The columns of one table besides the joined ones."""

    key: StructType
    values: StructType


def input_name(side: int, place: int) -> str:
    """The name of an input column."""
    return f"_{side}_{place}"


class JoinedRows(StatefulProcessor):  # type: ignore[misc]
    """Spark's processor of all groups of a task.

    outer:  whether all rows of the left, the right table are in the result; not both, as then two
            rows could have one key: those without a match whose joined columns are NULL
    """

    def __init__(self, shapes: tuple[SideShape, SideShape], outer: tuple[bool, bool], output: StructType) -> None:
        self._shapes, self._outer, self._output = shapes, outer, Row(*output.names)
        self._inputs = [
            [input_name(side, place) for place in range(len(shape.key) + len(shape.values))] for side, shape in enumerate(shapes)
        ]

    def init(self, handle: StatefulProcessorHandle) -> None:
        left, right = self._shapes
        self._sides = [
            _Rows(handle, name, each.key, each.values) for name, each in zip(("left", "right"), self._shapes, strict=True)
        ]
        key, values = [*left.key, *right.key], [*left.values, *right.values]
        self._result = _Rows(handle, "result", StructType(key), StructType(values))
        self._group: Any = None
        self._seen: list[dict[Values, tuple[int, int]]] = [{}, {}]

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: ARG002
        group = tuple(key)
        changed = self._changed(group, rows)
        matches = None not in group
        old: list[Held] = []
        for side in (0, 1):  # 2
            other = 1 - side
            needs_all = bool(changed[other]) or (self._outer[other] and bool(changed[side]))
            old.append(self._sides[side].all() if needs_all else self._sides[side].some(changed[side]))
        new = [self._apply(side, old[side], changed[side]) for side in (0, 1)]
        shown = tuple(map(_in_utc, group))
        for joined, values in self._joined(matches, old, new, changed).items():  # 3
            if values is None:
                self._result.remove(joined)
            else:
                self._result.put(joined, values)
                yield self._output(*shown, *joined, *values)

    def close(self) -> None:
        pass

    def _changed(self, group: Values, rows: Iterator[Row]) -> list[dict[Values, Values | None]]:  # 1
        """The changed rows of each side; None for one that is gone."""
        if group != self._group:
            self._group, self._seen = group, [{}, {}]
        changed: list[dict[Values, Values | None]] = [{}, {}]
        for row in rows:
            side, when = row[SIDE], (row[BATCH], row[SIGN])
            found = tuple(_in_utc(row[name]) for name in self._inputs[side])
            width = len(self._shapes[side].key)
            key = found[:width]
            if when > self._seen[side].get(key, (-1, 0)):
                self._seen[side][key] = when
                changed[side][key] = found[width:] if row[SIGN] > 0 else None
        return changed

    def _apply(self, side: int, old: Held, changed: dict[Values, Values | None]) -> Held:
        new = dict(old)
        for key, values in changed.items():
            if values is not None:
                new[key] = values
                self._sides[side].put(key, values)
            elif new.pop(key, None) is not None:
                self._sides[side].remove(key)
        return new

    def _joined(
        self, matches: bool, old: list[Held], new: list[Held], changed: list[dict[Values, Values | None]]
    ) -> dict[Values, Values | None]:
        """The joined rows that changed; None for one that is gone."""
        gone: dict[Values, Values | None] = {}
        there: dict[Values, Values | None] = {}

        def note(pair: Sequence[Values | None], *, was: bool, now: bool) -> None:
            joined = self._side_values(pair, 0)
            if now:
                there[joined] = self._side_values([None if key is None else new[side][key] for side, key in enumerate(pair)], 1)
            elif was:
                gone[joined] = None

        keys = [dict.fromkeys([*old[side], *new[side]]) for side in (0, 1)]
        if matches:
            for left in keys[0]:
                for right in keys[1] if left in changed[0] else changed[1]:
                    was = left in old[0] and right in old[1]
                    note((left, right), was=was, now=left in new[0] and right in new[1])
        for side in (0, 1):
            if not self._outer[side]:
                continue
            alone_before, alone = not (matches and old[1 - side]), not (matches and new[1 - side])
            for key in keys[side]:
                if key in changed[side] or alone != alone_before:
                    was, now = alone_before and key in old[side], alone and key in new[side]
                    note((key, None) if side == 0 else (None, key), was=was, now=now)
        # A row without a match may have the key of one with a match: a side whose own key is empty or
        # NULL looks like one that isn't there.
        return {**gone, **there}

    def _side_values(self, pair: Sequence[Values | None], part: int) -> Values:
        """Both sides' columns side by side; NULL for the side that isn't there."""
        both: Values = ()
        for values, shape in zip(pair, self._shapes, strict=True):
            both += (None,) * len((shape.key, shape.values)[part]) if values is None else values
        return both


class _Rows:
    """A group's rows in a state variable: a map, or one value if their key has no columns."""

    def __init__(self, handle: StatefulProcessorHandle, name: str, key: StructType, values: StructType) -> None:
        self._is_one, self._has_values = not key.fields, bool(values.fields)
        stored = values if values.fields else _ONE
        self._state = handle.getValueState(name, stored) if self._is_one else handle.getMapState(name, key, stored)

    def all(self) -> Held:
        with times_in_utc():
            if self._is_one:
                found = self._state.get()
                return {} if found is None else {(): self._loaded(found)}
            return {_exact(key): self._loaded(values) for key, values in self._state.iterator()}

    def some(self, keys: dict[Values, Any]) -> Held:
        """Those of these keys that are there."""
        if self._is_one:
            return self.all() if keys else {}
        with times_in_utc():
            found = {key: self._state.getValue(key) for key in keys if self._state.containsKey(key)}
        return {key: self._loaded(values) for key, values in found.items()}

    def put(self, key: Values, values: Values) -> None:
        stored = values if self._has_values else (1,)
        if self._is_one:
            self._state.update(stored)
        else:
            self._state.updateValue(key, stored)

    def remove(self, key: Values) -> None:
        if self._is_one:
            self._state.clear()
        else:
            self._state.removeKey(key)

    def _loaded(self, values: Any) -> Values:
        return _exact(values) if self._has_values else ()


def _exact(values: Any) -> Values:
    return tuple(bytes(value) if isinstance(value, bytearray) else value for value in values)


def _in_utc(value: Any) -> Any:
    """A value as the state takes it."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value
