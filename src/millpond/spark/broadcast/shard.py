"""One shard of a broadcast: a copy of the control state in Spark's state, and its events.

Rows of a batch come in no order: control records, and chunks of events (`chunks`).

1. Read all of them, and put the control records aside; the events wait in memory, packed.
2. Sort the records by the control stream's order, and apply them to the copy of the previous batch.
3. Pass the events to the function, a chunk at a time, with the new control state.

State variables, with one row for each key of Spark's map state; `names` gives the names of the
first three:

    control    key -> version, columns, since, since_batch, replaced
    versions   version -> key, action, removed, columns, since, since_batch, replaced
    errors     number -> key, reason, record, since, since_batch
    layout     shards, version, refused
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from millpond.errors import DefinitionError
from millpond.spark.broadcast.chunks import EVENTS, iter_together, unpack
from millpond.spark.broadcast.control import Change, Control, Draft, Key, Records, Refused, Row, values_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle, TimerValues

# Without underscores in front: columns with these come with other names.
CONTROL_COLUMN, ORDER_COLUMN, TIME_COLUMN = "millpond_control", "millpond_order", "millpond_time"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH_PROPERTY, _RUN_PROPERTY = "streaming.sql.batchId", "spark.jobGroup.id"
_SINCE = (StructField("since", TimestampType()), StructField("since_batch", LongType()))


class Names(NamedTuple):
    """The names of the state variables."""

    control: str = "control"
    versions: str = "versions"
    errors: str = "errors"


NAMES = Names()


class TaskBatch(NamedTuple):
    """The batch of this worker's task.

    run:  the query's run, which is another one after each start
    """

    run: str
    batch: int


def task_batch() -> TaskBatch:
    """The batch of this worker's task."""
    context = TaskContext.get()
    assert context is not None, "a processor runs in a task"
    return TaskBatch(f"{context.getLocalProperty(_RUN_PROPERTY)}", int(context.getLocalProperty(_BATCH_PROPERTY) or 0))


class Work(Protocol):
    """The work on the events of a shard."""

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Make state variables of its own, before the first batch of a task."""

    def changed(self, changes: list[Change]) -> None:
        """Called before `run` with the changes by the batch's records."""

    def run(self, events: Iterable[pa.Table], control: Control) -> Iterator[pd.DataFrame]:
        """The output for a batch's events, which all meet this control state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """What a shard knows of its broadcast.

    key:        the control stream's key column
    columns:    the control stream's columns
    shards:     how many there are
    keep_versions:  how many changes, and how many refused records, are kept
    identity:   tells this broadcast from others of the query
    reason:     the control stream's column that says why a record is refused already, see
                `control.Records`
    """

    key: str
    columns: tuple[StructField, ...]
    shards: int
    keep_versions: int
    identity: str
    names: Names = NAMES
    reason: str | None = None

    @property
    def _values(self) -> list[StructField]:
        return [StructField(c.name, c.dataType) for c in values_of(self.key, self.columns, self.reason)]

    @property
    def _key(self) -> StructField:
        return next(StructField(self.key, c.dataType) for c in self.columns if c.name == self.key)

    @property
    def control_schemas(self) -> tuple[StructType, StructType]:
        """Of key and value of the control state."""
        rest = [*self._values, *_SINCE, StructField("replaced", LongType())]
        return StructType([self._key]), StructType([StructField("version", LongType()), *rest])

    @property
    def version_schemas(self) -> tuple[StructType, StructType]:
        """Of key and value of the changes."""
        rest = [*self._values, *_SINCE, StructField("replaced", LongType())]
        what = [self._key, StructField("action", StringType()), StructField("removed", BooleanType())]
        return StructType([StructField("version", LongType())]), StructType([*what, *rest])

    @property
    def error_schemas(self) -> tuple[StructType, StructType]:
        """Of key and value of the records that were refused."""
        texts = [StructField("reason", StringType()), StructField("record", StringType())]
        return StructType([StructField("number", LongType())]), StructType([self._key, *texts, *_SINCE])


LAYOUT = StructType([StructField("shards", IntegerType()), StructField("version", LongType()), StructField("refused", LongType())])

_MOST_LOADED = 64
_loaded: dict[tuple[str, str, int], Control] = {}
"""(query's run, broadcast, shard) -> the state that this worker read last; read again if it changed"""


class BroadcastShard(StatefulProcessor):  # type: ignore[misc]
    """Spark's processor of all shards of a task."""

    def __init__(self, plan: ShardPlan, work: Work) -> None:
        self._plan, self._work = plan, work
        self._records = Records(plan.key, plan.columns, plan.reason)

    def init(self, handle: StatefulProcessorHandle) -> None:
        plan, names = self._plan, self._plan.names
        self._state = _ShardState(
            plan,
            handle.getMapState(names.control, *plan.control_schemas),
            handle.getMapState(names.versions, *plan.version_schemas),
            handle.getMapState(names.errors, *plan.error_schemas),
            handle.getValueState("layout", LAYOUT),
        )
        self._work.open(handle)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        records: list[tuple[Any, ...]] = []
        chunks: list[bytes] = []
        for chunk in rows:  # 1
            is_control = chunk[CONTROL_COLUMN].notna()
            given = chunk[is_control]
            records.extend(zip(given[ORDER_COLUMN], given[CONTROL_COLUMN], given[TIME_COLUMN], strict=True))
            chunks.extend(chunk.loc[~is_control, EVENTS])
        run, batch = task_batch()
        control = self._state.control(run, int(key[0]))
        if records:  # 2
            records.sort(key=lambda record: (record[0], record[1]))
            control, changes = self._records.apply([r[1] for r in records], control, self._state, batch, int(records[0][2]))
            self._state.set_layout(control)
            self._work.changed(changes)
        yield from self._work.run(map(unpack, iter_together(chunks)), control)  # 3

    def close(self) -> None:
        pass


class _ShardState:
    """The control state of the current shard, in Spark's state; see `control.ControlState`."""

    def __init__(self, plan: ShardPlan, control: MapState, versions: MapState, errors: MapState, layout: Any) -> None:
        self._plan, self._control, self._versions, self._errors, self._layout = plan, control, versions, errors, layout
        self._names = [c.name for c in values_of(plan.key, plan.columns, plan.reason)]

    def control(self, run: str, shard: int) -> Control:
        """The state after the previous batch.  Raises DEFINITION_CHANGED if the number of shards differs."""
        layout = self._layout.get()
        if layout is None:
            return Control()
        shards, version, refused = layout
        if shards != self._plan.shards:
            raise shards_changed(shards, self._plan.shards)
        loaded = (run, self._plan.identity, shard)
        found = _loaded.get(loaded)
        if found is None or (found.version, found.refused) != (version, refused):
            if len(_loaded) >= _MOST_LOADED:
                del _loaded[next(iter(_loaded))]
            found = _loaded[loaded] = self._read(version, refused)
        return found

    def set_layout(self, control: Control) -> None:
        """Write this shard's version and number of refused records."""
        self._layout.update((self._plan.shards, control.version, control.refused))

    def _read(self, version: int, refused: int) -> Control:
        rows: dict[Key, tuple[int, Row]] = {
            key[0]: (value[0], MappingProxyType(dict(zip(self._names, value[1 : 1 + len(self._names)], strict=True))))
            for key, value in self._control.iterator()
        }
        return Draft(version, refused, rows).freeze()

    def made_by(self, version: int) -> tuple[Key, Row | None] | None:
        """The key of a change and its new row; None if the change is forgotten."""
        found = self._versions.getValue((version,))
        if found is None:
            return None
        key, _action, removed, *row, _since, _batch, _replaced = found
        return key, None if removed else dict(zip(self._names, row, strict=True))

    def add(self, change: Change) -> None:
        """Write a change, and remove the oldest if there are too many."""
        since = _EPOCH + timedelta(milliseconds=change.since_ms)
        row = [(change.row or {}).get(name) for name in self._names]
        end = (since, change.batch, change.replaced)
        if change.row is None:
            self._control.removeKey((change.key,))
        else:
            self._control.updateValue((change.key,), (change.version, *row, *end))
        self._versions.updateValue((change.version,), (change.key, change.action, change.row is None, *row, *end))
        self._forget(self._versions, change.version)

    def refuse(self, refused: Refused) -> None:
        """Write a refused record, and remove the oldest if there are too many."""
        since = _EPOCH + timedelta(milliseconds=refused.since_ms)
        value = (refused.key, refused.reason, refused.record, since, refused.batch)
        self._errors.updateValue((refused.number,), value)
        self._forget(self._errors, refused.number)

    def _forget(self, numbered: MapState, newest: int) -> None:
        """Remove the oldest if there are too many; several if `keep_versions` was lowered."""
        oldest = newest - self._plan.keep_versions
        while oldest > 0 and numbered.containsKey((oldest,)):
            numbered.removeKey((oldest,))
            oldest -= 1


def shards_changed(before: int, now: int) -> DefinitionError:
    """The error of a broadcast that continues with another number of shards."""
    return DefinitionError(
        "DEFINITION_CHANGED",
        f"The checkpoint's state lies in {before} shards, but the job now has {now}: the new ones would have no control state.",
        hint=f"Start with shards={before}, or from a savepoint that `millpond savepoint redistribute` made.",
        before=before,
        now=now,
    )
