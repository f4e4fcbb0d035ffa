"""What a state must become, so that a changed query can go on with it.  For transformWithState see `variables`.

An aggregate of the new query that the old one had goes on with its buffers, wherever they were.  A
new one begins with the buffers that Spark gives a group before its first row.  Others are dropped.
Grouping columns stay the same, or some go: then a function makes one row of those that get the same key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millpond.checkpoint.log import CommittedBatch, read_batch, read_conf
from millpond.checkpoint.operators import read_each_operator, read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.whole.store import read_whole_stores
from millpond.errors import RequestError
from millpond.savepoint.rewrite.form import unsupported
from millpond.savepoint.rewrite.row_edit import MergeValues, NewColumns, NewKey, RowEdit
from millpond.schema.definition.meaning import Meaning
from millpond.schema.definition.operator_name import Entry
from millpond.schema.definition.table import TableDefinition
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, is_wider, shape_of
from millpond.schema.value_change import ValueChange
from millpond.settings import FileBounds
from millpond.spark.derive.definition import derive, first_buffers_of, meanings_of
from millpond.spark.derive.plan import require_classic, zone_of_session
from millpond.spark.derive.state_words import OF_SESSION
from millpond.spark.start import OUTPUT_MODES
from millpond.spark.upgrade.rehearsal import Rehearsal, rehearse
from millpond.spark.upgrade.variables import Stores, VariableRules, evolve_variables, variables_of
from millpond.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AGGREGATIONS = ("stateStoreSave", "sessionWindowStateStoreSaveExec")
_BOUNDS = FileBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """What is to be done with the state of a checkpoint.

    edits:    for each store whose rows change
    schemas:  path below the checkpoint -> the schema file that Spark writes for the new query, or
              the metadata of an operator
    removed:  schema files that nothing names any more
    tables:   the definitions of the job's tables with the new query
    lines:    what goes on, begins and is dropped, in words
    """

    edits: tuple[RowEdit, ...]
    schemas: Mapping[str, bytes]
    removed: tuple[str, ...]
    tables: tuple[Entry, ...]
    lines: tuple[str, ...]


def evolution_of(
    df: DataFrame,
    checkpoint: Storage,
    number: int,
    entries: Iterable[Entry],
    *,
    output_mode: str = "update",
    old: DataFrame | None = None,
    rules: VariableRules,
    merge: MergeValues | None = None,
) -> Evolution:
    """How the state of a batch becomes that of another query.

    df:           the new query
    number:       of the batch
    entries:      the definitions of the job's tables
    output_mode:  the new query's
    old:          the query that wrote the state; None for what the definitions say of it
    rules:        of the variables of transformWithState
    merge:        makes one value of two of an aggregation, where rows get the same key
    Raises:  UNSUPPORTED if only a new job can run this query; INVALID_REQUEST; SPARK_CONNECT; what
             reading the checkpoint raises.
    """
    for frame in (df, *([] if old is None else [old])):
        require_classic(frame, "_jdf")
        if not frame.isStreaming:
            raise RequestError("INVALID_REQUEST", "The query reads no stream.", hint="Read the source with spark.readStream.")
    if output_mode not in OUTPUT_MODES:
        raise RequestError("INVALID_REQUEST", f"output_mode is {output_mode!r}.", hint=f"Use one of {', '.join(OUTPUT_MODES)}.")
    entries = list(entries)
    batch = read_batch(checkpoint, Batch(number))
    if batch.settings.encoding == "avro":
        raise unsupported("The values of this state are in Avro.", "Start the new query as a new job.")
    with rehearse(df, output_mode, checkpoint, batch, number) as rehearsal:
        if rehearsal.invalid is not None:
            raise unsupported(f"Spark doesn't run this query on any checkpoint: {rehearsal.invalid.message}", "Mend the query.")
        zone = zone_of_session(df.sparkSession._jsparkSession)
        pinned = read_conf(checkpoint, batch.batch)
        before = _meant(entries) if old is None else {o: (m, zone) for o, m in meanings_of(old, output_mode, pinned).items()}
        found = _Comparison(checkpoint, batch, rehearsal, before, meanings_of(df, output_mode, pinned), zone, merge)
        edits = tuple(found.edits(first_buffers_of(df, output_mode)))
        changed = {edit.operator for edit in edits}
        schemas = dict(_schemas(rehearsal.fresh, changed))
        variables = list(evolve_variables(checkpoint, batch, rehearsal.fresh, *found.variables(), rules))
    tables, lost = _tables(df, entries, changed, output_mode, pinned)
    for each in variables:
        schemas |= each.files
    return Evolution(
        edits=(*edits, *(each.edit for each in variables if each.edit is not None)),
        schemas=schemas,
        removed=tuple(path for each in variables for path in each.removed),
        tables=tables,
        lines=(*found.lines, *(line for each in variables for line in each.lines), *lost),
    )


class _Comparison:
    """The state that there is, beside that of the new query."""

    def __init__(
        self,
        checkpoint: Storage,
        batch: CommittedBatch,
        rehearsal: Rehearsal,
        before: Mapping[int, tuple[Meaning | None, str | None]],
        now: Mapping[int, Meaning],
        zone: str,
        merge: MergeValues | None,
    ) -> None:
        self._before, self._now, self._zone, self._merge, self._fresh = before, now, zone, merge, rehearsal.fresh
        self._names = {o.operator: o.name for o in read_operator_files(checkpoint, batch.batch)}
        self._new_names = {o.operator: o.name for o in read_operator_files(rehearsal.fresh, Batch(0))}
        self._stores, unread = read_each_operator(checkpoint, batch.batch)
        self._new_stores, _ = read_each_operator(rehearsal.fresh, Batch(0))
        for store in unread:
            raise unsupported(f"The state of {store.operator_name} can't be read: {store.error.message}", store.error.hint or "")
        self.lines: list[str] = []

    def edits(self, first: Mapping[int, list[tuple[Any, ...]]]) -> Iterator[RowEdit]:
        """The edits of aggregations.  Raises UNSUPPORTED."""
        if self._names != self._new_names:
            raise unsupported(
                f"The stateful operators were {_operators(self._names)}, and would be {_operators(self._new_names)}.",
                "Start the new query as a new job; an operator can't be added, dropped or replaced.",
            )
        there = {(s.operator, s.store, s.family): s for s in self._stores}
        for new in self._new_stores:
            old = there.get((new.operator, new.store, new.family))
            if new.operator_name in _AGGREGATIONS and old is not None:
                edit = self._aggregation(old, new, first.get(new.operator, []))
                if edit is not None:
                    yield edit
            elif old is not None and not new.operator_name.startswith("transformWithState") and _shapes(old) != _shapes(new):
                raise unsupported(
                    f"The state {old.id} of {old.operator_name} has other columns in the new query.",
                    "Start the new query as a new job; only aggregations and transformWithState can be evolved.",
                )

    def variables(self) -> tuple[Stores, Stores]:
        """The variables of transformWithState, as they are and as they would be."""
        return variables_of(self._stores), variables_of(self._new_stores)

    def _aggregation(self, old: StoreSchema, new: StoreSchema, first: list[tuple[Any, ...]]) -> RowEdit | None:
        was, zone = self._before.get(old.operator, (None, None))
        now = self._now.get(new.operator)
        if was is None or now is None or len(was.buffers) != len(was.aggregates):
            raise unsupported(
                f"Nothing says what the columns of {old.id} mean.",
                "Name the code that wrote this state (old), or start the job once with millpond.start.",
            )
        places = _places(was.grouping, now.grouping)
        is_same = was.grouping == now.grouping
        if (
            places is None
            or _shape(old.key[place] for place in places) != _shape(new.key)
            or not (is_same or new.operator_name == _AGGREGATIONS[0])
        ):
            raise unsupported(
                f"The state is grouped by {', '.join(was.grouping)}, and would be by {', '.join(now.grouping) or 'nothing'}.",
                "Start the new query as a new job; the key of a state can only lose columns.",
            )
        zones = zone, self._zone
        if None not in zones and zone != self._zone and any(OF_SESSION in words for words in (*was.grouping, *was.aggregates)):
            raise unsupported(
                f"The session's time zone was {zone}, and would be {self._zone}.", "Set spark.sql.session.timeZone as before."
            )
        if is_same and was.aggregates == now.aggregates and _shape(old.value) == _shape(new.value):
            return None
        change = self._change(old, new, was, now, first)
        if is_same:
            return NewColumns(change)
        if len(change.before) != sum(was.buffers):
            raise unsupported(f"The state {old.id} repeats its key in its values.", "Start the new query as a new job.")
        self.lines.append(f"key         {', '.join(was.grouping)} becomes {', '.join(now.grouping) or 'nothing'}")
        (operator,) = read_operator_files(self._fresh, Batch(0), only=new.operator)
        (store,) = read_whole_stores(self._fresh, operator)
        return NewKey(change, places, store, self._merge)

    def _change(self, old: StoreSchema, new: StoreSchema, was: Meaning, now: Meaning, first: list[tuple[Any, ...]]) -> ValueChange:
        lead = len(old.value) - sum(was.buffers)
        if lead != len(new.value) - sum(now.buffers) or _shape(old.value[:lead]) != _shape(new.value[:lead]):
            raise unsupported(f"The state {old.id} repeats its key in another form.", "Start the new query as a new job.")
        ends, end = {}, lead
        for words, count in zip(was.aggregates, was.buffers, strict=True):
            ends[words] = range(end, end + count)
            end += count
        places: list[int | None] = list(range(lead))
        start: list[Any] = [None] * lead
        for words, count, values in zip(now.aggregates, now.buffers, first, strict=True):
            old_places = ends.get(words)
            if (
                old_places is not None
                and len(old_places) == count
                and all(
                    is_wider(old.value[p].type, after.type)
                    for p, after in zip(old_places, new.value[len(places) : len(places) + count], strict=True)
                )
            ):
                self.lines.append(f"goes on     {words}")
                places += old_places
                start += [None] * count
            else:
                self.lines.append(f"begins      {words}")
                places += [None] * count
                start += values
        self.lines += [f"is dropped  {words}" for words in was.aggregates if words not in now.aggregates]
        return ValueChange(
            operator=old.operator, store=old.store, before=old.value, after=new.value, places=tuple(places), start=tuple(start)
        )


def _places(was: tuple[str, ...], now: tuple[str, ...]) -> tuple[int, ...] | None:
    """For each new grouping column, which old one it is; None if one is new."""
    left = list(enumerate(was))
    places = []
    for words in now:
        found = next(((place, old) for place, old in left if old == words), None)
        if found is None:
            return None
        left.remove(found)
        places.append(found[0])
    return tuple(places)


def _schemas(fresh: Storage, changed: set[int]) -> Iterator[tuple[str, bytes]]:
    for operator in read_operator_files(fresh, Batch(0)):
        if operator.operator in changed:
            for paths in operator.stores.values():
                yield from ((path, fresh.read(path, _BOUNDS.schema_bytes)) for path in paths)


def _tables(
    df: DataFrame, entries: list[Entry], changed: set[int], output_mode: str, pinned: Mapping[str, str]
) -> tuple[tuple[Entry, ...], list[str]]:
    """The definitions with the new query, and which tables get none."""
    tables, lost = [], []
    for entry in entries:
        if entry.operator not in changed:
            tables.append(entry)
            continue
        derived = derive(df, table=entry.table, output_mode=output_mode, pinned=pinned)
        if isinstance(derived, TableDefinition) and derived.operator == entry.operator:
            tables.append(replace(derived, retention=entry.retention))
        else:
            lost.append(f"no table    {entry.table}: only the operator nearest to the sink is defined anew")
    return tuple(tables), lost


def _meant(entries: list[Entry]) -> dict[int, tuple[Meaning | None, str | None]]:
    return {e.operator: (e.meaning, e.session_time_zone if isinstance(e, TableDefinition) else None) for e in entries}


def _shape(fields: Iterable[Field]) -> list[object]:
    return [shape_of(field.type) for field in fields]


def _shapes(store: StoreSchema) -> tuple[list[object], list[object]]:
    return _shape(store.key), _shape(store.value)


def _operators(names: Mapping[int, str]) -> str:
    return ", ".join(f"{number} {name}" for number, name in sorted(names.items())) or "none"
