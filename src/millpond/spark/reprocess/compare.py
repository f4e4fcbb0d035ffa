"""The rows of a state beside those that were computed anew: what differs, and by how much.

1. Partition by partition: Spark has put both under the same hash.  The new rows of a partition are in
   memory, the old ones aren't.
2. A bucket is in the part or not; what isn't stays as it is.
3. Buffers are compared, and not only the values of them: an average of 2 may be of one event or of
   two.  Floats may differ by rounding, since their sum depends on the order of the events, and sets
   may have another order.
4. A dead letter goes whose event counts now.
"""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from millpond.checkpoint.files.records import DELETE, PUT, Record
from millpond.checkpoint.log import CommittedBatch
from millpond.checkpoint.state import partitions_of
from millpond.checkpoint.whole.rows import FamilyCodec, StoreCodec
from millpond.checkpoint.whole.store import WholeStore
from millpond.savepoint.rewrite.form import check_strict
from millpond.savepoint.rewrite.rewrite import open_state
from millpond.scalar.function import Evaluate
from millpond.scalar.time.zones import parse_zone
from millpond.schema.definition.resolutions import FUTURE, LATE, LETTER, RESOLUTION
from millpond.schema.definition.table import TableDefinition
from millpond.spark.aggregate.declaration import Declaration
from millpond.spark.reprocess.part import Part, Row
from millpond.spark.reprocess.recompute import Recomputed
from millpond.storage import Storage
from millpond.tables.finish.definition import compile_definition, compile_expression
from millpond.tables.kept.calendar import Calendar

_SAMPLES = 5
# Sums of the same floats in another order.
_ROUNDING = 1e-9
_COLLECTED = ("collect_list", "collect_set")
Values = dict[str, Any]


@dataclass(slots=True)
class ColumnChange:
    """What becomes of one value column in the rows that change.

    rows:           in which it differs
    before, after:  its sums over all rows that differ; None if it isn't a number
    most:           the greatest change of one row
    """

    rows: int = 0
    before: Any = None
    after: Any = None
    most: Any = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One row that differs: its key, and its values before and after; None if there was or is none."""

    key: Values
    before: Values | None
    after: Values | None


@dataclass(slots=True)
class ResolutionChange:
    """What differs in the buckets of one resolution.

    same, added, removed, changed:  rows
    rebuilt:  rows with the same values whose buffers differ, such as a sketch of other items
    columns:  by name
    """

    same: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    rebuilt: int = 0
    columns: dict[str, ColumnChange] = field(default_factory=dict)

    @property
    def differs(self) -> int:
        """Rows that a repair writes."""
        return self.added + self.removed + self.changed + self.rebuilt


class Comparison:
    """What a repair would change.

    each:     by resolution, from the shortest buckets to the longest
    letters:  dead letters that go, by reason
    samples:  the rows that change most
    changes:  by partition, for `write_patch`
    """

    def __init__(self, part: Part) -> None:
        definition = part.definition
        assert definition.resolutions is not None, "the caller has checked it"
        self.each = {str(r): ResolutionChange() for r in definition.resolutions.each}
        self.letters: Counter[str] = Counter()
        self.changes: dict[int, list[Record]] = {}
        self.part = part
        self._keys = {column.name for column in definition.key}
        self._names = [column.name for column in definition.values]
        self._finish = compile_definition(definition)
        self._resolution = [each.name for each in definition.key_fields].index(RESOLUTION)
        self._heap: list[tuple[float, int, Sample]] = []
        self._numbers = itertools.count()

    @property
    def differs(self) -> int:
        """Rows that a repair writes or removes."""
        return sum(each.differs for each in self.each.values()) + self.letters.total()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """A few rows, those that change most first."""
        return tuple(sample for _, _, sample in sorted(self._heap, key=lambda each: (-each[0], each[1])))

    def note(self, key: Row, before: Row | None, after: Row | None, *, buffers_differ: bool) -> bool:
        """Count one row of the part; returns whether it is to be written."""
        each = self.each[key[self._resolution]]
        if not buffers_differ:
            each.same += 1
            return False
        old, new = (None if row is None else self._finish(key, row) for row in (before, after))
        each.added += before is None
        each.removed += after is None
        differ = [n for n in self._names if not _is_same_value((old or {}).get(n), (new or {}).get(n))]
        if before is not None and after is not None:
            each.changed += bool(differ)
            each.rebuilt += not differ
        weight = 0.0
        for name in differ:
            column = each.columns.setdefault(name, ColumnChange())
            weight = max(weight, _note_column(column, (old or {}).get(name), (new or {}).get(name)))
        if differ:
            shown = {n: v for n, v in (old or new or {}).items() if n in self._keys}
            item = (weight, -next(self._numbers), Sample(shown, _values(old, self._names), _values(new, self._names)))
            (heapq.heappush if len(self._heap) < _SAMPLES else heapq.heappushpop)(self._heap, item)
        return True


def compare(
    storage: Storage,
    batch: CommittedBatch,
    store: WholeStore,
    anew: Recomputed,
    part: Part,
    declared: Declaration,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare the state of a batch with what was computed anew up to it.

    store:   that has the table
    Raises:  what reading the states raises.
    """
    check_strict(batch)
    found = Comparison(part)
    old, new = open_state(storage, batch, store), anew.open((store.operator.operator, store.name))
    codec = StoreCodec(store, batch.settings, old.numbers).of(store.name)
    has_bucket, goes = part.has_bucket(), _letters(part, declared, batch, anew.now_ms)
    partitions = partitions_of(batch, store.files)
    for partition in partitions:  # 1
        rows = {key: value for key, value in new.iter_rows(partition) if has_bucket(codec.read_key(key))}
        changes = list(_changes(old.iter_rows(partition), rows, codec, found, has_bucket, goes))
        if changes:
            found.changes[partition] = changes
        if progress is not None:
            progress(partition + 1, len(partitions))
    return found


def _changes(
    old: Iterator[tuple[bytes, bytes]],
    new: dict[bytes, bytes],
    codec: FamilyCodec,
    found: Comparison,
    has_bucket: Callable[[Row], bool],
    goes: Callable[[Row], str | None],
) -> Iterator[Record]:
    is_same = _buffers(found.part.definition)
    for key, value in old:
        columns = codec.read_key(key)
        if not has_bucket(columns):  # 2
            if reason := goes(columns):  # 4
                found.letters[reason] += 1
                yield DELETE, key, b""
            continue
        after = new.pop(key, None)
        before = codec.read_row(value)
        if after is None:
            found.note(columns, before, None, buffers_differ=True)
            yield DELETE, key, b""
            continue
        now = before if after == value else codec.read_row(after)
        if found.note(columns, before, now, buffers_differ=after != value and not is_same(before, now)):
            yield PUT, key, after
    for key, value in new.items():
        found.note(codec.read_key(key), None, codec.read_row(value), buffers_differ=True)
        yield PUT, key, value


def _buffers(definition: TableDefinition) -> Callable[[Row, Row], bool]:  # 3
    """Whether two rows of buffers stand for the same events."""
    assert definition.resolutions is not None, "the caller has checked it"
    each: list[Callable[[Row, Row], bool]] = []
    for merge in definition.resolutions.merges:
        if merge.options["function"] in _COLLECTED:
            each.append(_same_elements(compile_expression(merge, definition.key_fields)))
        else:
            each += [_same_buffer(place) for place in merge.options["buffers"]]
    return lambda before, after: all(same(before, after) for same in each)


def _same_elements(elements: Evaluate) -> Callable[[Row, Row], bool]:
    return lambda before, after: _is_same_value(elements((), before), elements((), after))


def _same_buffer(place: int) -> Callable[[Row, Row], bool]:
    return lambda before, after: _is_same(before[place], after[place])


def _is_same_value(before: Any, after: Any) -> bool:
    """Whether two values are equal; the order of a list may differ."""
    if isinstance(before, list) and isinstance(after, list) and before != after:
        return len(before) == len(after) and Counter(map(repr, before)) == Counter(map(repr, after))
    return _is_same(before, after)


def _is_same(before: Any, after: Any) -> bool:
    if isinstance(before, float) and isinstance(after, float):
        return before == after or (math.isnan(before) and math.isnan(after)) or math.isclose(before, after, rel_tol=_ROUNDING)
    return bool(before == after)


def _note_column(column: ColumnChange, before: Any, after: Any) -> float:
    """Add a row's change; returns how large it is."""
    column.rows += 1
    numbers = [0 if value is None else value for value in (before, after)]
    if not all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in numbers):
        return 0.0
    if any(isinstance(value, float) and not math.isfinite(value) for value in numbers):
        return math.inf
    change = numbers[1] - numbers[0]
    column.before = numbers[0] if column.before is None else column.before + numbers[0]
    column.after = numbers[1] if column.after is None else column.after + numbers[1]
    if column.most is None or abs(change) > abs(column.most):
        column.most = change
    return float(abs(change))


def _values(row: Values | None, names: list[str]) -> Values | None:
    return None if row is None else {name: row[name] for name in names}


def _letters(part: Part, declared: Declaration, batch: CommittedBatch, now_ms: int) -> Callable[[Row], str | None]:
    """The reason of a dead letter whose event counts now in all buckets for which it is one, else None.

    Source:  `aggregate.compile`
    """
    definition = part.definition
    names = [each.name for each in definition.key_fields]
    if LETTER not in names:
        return lambda _: None
    assert definition.resolutions is not None, "the caller has checked it"
    zone, watermark = parse_zone(definition.resolutions.zone), batch.planned_watermark_ms * 1000
    calendars = {str(each): Calendar(each, zone) for each in definition.resolutions.each}
    letter, resolution, has_key = names.index(LETTER), names.index(RESOLUTION), part.has_key()
    skew = declared.skew_seconds

    def goes(columns: Row) -> str | None:
        reason, event = columns[resolution], columns[letter]
        if event is None or not has_key(columns) or not (reason == FUTURE or reason.startswith(LATE)):
            return None
        try:
            micros = _micros(json.loads(event)[declared.event_time])
        except (ValueError, KeyError, TypeError, OverflowError):
            return None
        if not part.has_time(micros):
            return None
        if reason == FUTURE:
            return reason if skew is None or micros <= now_ms * 1000 + skew * 1_000_000 else None
        calendar = calendars.get(reason.removeprefix(LATE))
        if calendar is None:
            return None
        expires = calendar.expires(calendar.start(micros))
        return reason if expires is None or expires > watermark else None

    return goes


def _micros(text: str) -> int:
    """The time of an event in a dead letter."""
    time = dt.datetime.fromisoformat(text)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (time - epoch) // dt.timedelta(microseconds=1)
