"""One table: rows by key, by prefix, all of them; each answer one consistent cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from millpond.catalogue import JobFolder
from millpond.checkpoint.encoding import iter_elements
from millpond.checkpoint.operators import StoreSchema, store_id
from millpond.checkpoint.position import Position
from millpond.checkpoint.unsaferow import decoder
from millpond.errors import CONDITIONS, DefinitionError, ReplicaError, RequestError
from millpond.replica.ordered import KeyCodec, split_value, store_key
from millpond.replica.record import ReplicaRecord, StoresRecord
from millpond.replica.replica import Replica, View
from millpond.replica.scan import iter_prefix
from millpond.schema.definition import KeyColumn, TableDefinition
from millpond.schema.types import Field, SparkType
from millpond.settings import ReplicaSettings
from millpond.tables.answer import Cut, Lag, Row, Rows
from millpond.tables.finish import Finish, compile_definition
from millpond.tables.keys import Key, KeyReader

# How long a job's heartbeat file isn't looked at again.
_HEARTBEAT_CACHE_SECONDS = 0.5
_DEADLINE_CHECK_ROWS = 4096
# Rows that become columns at a time: enough for numpy, and their texts far from what an array can have.
_ARROW_CHUNK_ROWS = 1 << 16

Define = Callable[[StoreSchema], TableDefinition]


class JobReads:
    """A job as its tables read it: its replica, and what tells how old an answer is."""

    def __init__(self, folder: JobFolder, replica: Replica, settings: ReplicaSettings) -> None:
        self.folder = folder
        self.replica = replica
        self.settings = settings
        self._heartbeat = ("unknown", 0.0)
        self._position: tuple[ReplicaRecord | None, Position | None] = (None, None)

    def cut(self, view: View) -> Cut:
        """Where an answer from this view comes from, and how far it is behind now."""
        record, newer, now = view.record, view.newer, time.time()
        known, position = self._position
        if known is not record:
            position = record.position()
            self._position = (record, position)
        assert position is not None
        age_seconds, age_from = record.age(now)
        lag = Lag(
            behind_batches=newer.batches,
            behind_seconds=max(0.0, now - newer.oldest_commit_ns / 1e9) if newer.oldest_commit_ns is not None else 0.0,
            age_seconds=age_seconds,
            age_from=age_from,
            event_lag_seconds=None if record.watermark_ms is None else now - record.watermark_ms / 1000,
        )
        return Cut(job=self.folder.job, position=position, lag=lag, job_state=self.job_state())

    def job_state(self) -> str:
        """running, stopped or unknown: at most half a second old, a few seconds on an object store."""
        state, seen = self._heartbeat
        now = time.monotonic()
        if seen and self.folder.storage.is_remote:
            return state  # the pond reads it, not its readers
        if now - seen > _HEARTBEAT_CACHE_SECONDS or not seen:
            state = self.read_heartbeat()
        return state

    def read_heartbeat(self) -> str:
        """The same, as of now."""
        state = self.folder.job_state()
        self._heartbeat = (state, time.monotonic())
        return state


@dataclass(frozen=True, slots=True)
class _Binding:
    """What it takes to read rows of one generation of the replica."""

    stores: StoresRecord
    table: str
    many: bool
    codec: KeyCodec
    decode_value: Callable[[bytes], tuple[Any, ...]]
    finish: Finish


class Table:
    """A named table of a pond.

    Keys are given as column names and Python values: `table.get(page="/index.html")`, or as a dict where a column's name isn't a
    Python name: `table.get({"my page": "/index.html"})`.
    """

    def __init__(self, definition: TableDefinition, job: JobReads, define: Define | None = None) -> None:
        """A table of a job; `define` where it is defined by what its store looks like, which may change."""
        self.definition = definition
        self._job = job
        self._define = define
        self._finish = compile_definition(definition)
        self._keys = KeyReader(definition)
        self._binding: _Binding | None = None

    @property
    def name(self) -> str:
        """The table's name in the pond."""
        return self.definition.table

    @property
    def job(self) -> str:
        """The name of the job whose state this is."""
        return self._job.folder.job

    @property
    def columns(self) -> tuple[str, ...]:
        """All column names, key first."""
        return self.definition.columns

    def get(self, key: Key | None = None, /, **columns: Any) -> Row:
        """The row of a key; empty, and false, where there is none.

        Every key column is named; the end of a window may be left out where only one window begins there.

        Raises:  UNKNOWN_COLUMN, NOT_A_KEY_COLUMN, KEY_MISSING, WRONG_TYPE; REPLICA_BUILDING, JOB_REPLACED, …
        """
        wanted = self._keys.stored({**key, **columns} if key else columns)
        view, binding = self._open()
        try:
            return self._get(view, binding, wanted, self._job.cut(view))
        finally:
            view.__exit__()

    def get_all(self, keys: Iterable[Key]) -> Rows:
        """The rows of several keys, in their order, all of one batch; an empty row where there is none.

        Raises:  as `get`.
        """
        wanted = [self._keys.stored(key) for key in keys]
        view, binding = self._open()
        with view:
            cut = self._job.cut(view)
            return Rows([self._get(view, binding, columns, cut) for columns in wanted], cut)

    def scan(self, key: Key | None = None, /, *, limit: int | None = None, **columns: Any) -> Rows:
        """Rows in key order, all of one batch: those whose key columns have the values given, all where none is given.

        Values of the first columns of the key (see `key_order`) make the scan short; others are compared row by row.

        limit:   at most so many rows; `more` says whether there are others
        Raises:  UNKNOWN_COLUMN, NOT_A_KEY_COLUMN, WRONG_TYPE, INVALID_LIMIT; REPLICA_BUILDING, JOB_REPLACED, …
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise RequestError("INVALID_LIMIT", f"The limit is {limit!r}.", hint="Give a whole number from 1 up.", limit=str(limit))
        wanted = self._keys.stored({**(key or {}), **columns})
        view, binding = self._open()
        with view:
            cut = self._job.cut(view)
            rows: list[Row] = []
            for values in self._iterate(view, binding, wanted):
                if limit is not None and len(rows) == limit:
                    return Rows(rows, cut, more=True)
                rows.append(Row(values, cut))
            return Rows(rows, cut)

    def count(self) -> Count:
        """How many rows the table has.  Raises as `scan`."""
        view, binding = self._open()
        with view:
            cut = self._job.cut(view)
            if self.definition.having is None and not binding.many:
                return Count(view.rows.count(binding.table), cut)
            return Count(sum(1 for _ in self._iterate(view, binding, {})), cut)

    def to_arrow(self, key: Key | None = None, /, **columns: Any) -> Any:
        """The rows of a scan as a pyarrow.Table; its schema's metadata holds batch and job.

        Raises:  LIBRARY_MISSING, WRONG_TYPE for a column that Arrow has no type for, and as `scan`.
        """
        from millpond.tables import arrow

        if key or columns or self.definition.many:
            return arrow.to_arrow(self.definition, self.scan(key, **columns))
        return self._all_to_arrow(arrow.pyarrow())

    def _all_to_arrow(self, pa: Any) -> Any:
        """All rows, many at a time."""
        from millpond.checkpoint.columns import span
        from millpond.tables.arrow import table_schema
        from millpond.tables.finish_columns import ColumnFinish, OrderedKeys

        view, binding = self._open()
        with view:
            shape = table_schema(pa, self.definition, self.job, view.record.batch)
            finish, tables = ColumnFinish(self.definition), []
            deadline = time.monotonic() + self._job.settings.read_deadline_seconds
            pairs = iter_prefix(view.rows, binding.table, b"")
            while chunk := list(islice(pairs, _ARROW_CHUNK_ROWS)):
                if time.monotonic() > deadline:
                    raise _too_long(self.name, self._job.settings.read_deadline_seconds)
                keys, rows = zip(*chunk, strict=True)
                ordered = OrderedKeys(self._key_fields, binding.codec, list(keys))
                tables.append(pa.Table.from_arrays(finish.arrays(pa, ordered, span(rows)), schema=shape))
        return pa.concat_tables(tables) if tables else shape.empty_table()

    @property
    def key_order(self) -> tuple[str, ...]:
        """The key columns in the order rows are sorted by: those that aren't times in grouping order, then the times."""
        return self._keys.order

    @property
    def _key_fields(self) -> tuple[Field, ...]:
        return self.definition.key_fields

    # ------------------------------------------------------------ reading

    def _open(self) -> tuple[View, _Binding]:
        """A view of the replica, which the caller ends, and how to read this table from it."""
        view = self._job.replica.snapshot()
        try:
            return view, self._bind(view.stores)
        except BaseException:
            view.__exit__()
            raise

    def _bind(self, stores: StoresRecord) -> _Binding:
        """How to read this generation.  Raises DEFINITION_MISMATCH where the state isn't what the definition says."""
        if self._binding is not None and self._binding.stores is stores:
            return self._binding
        definition = self.definition
        for schema in stores.schemas():
            if (schema.operator, schema.store, schema.family) == definition.store_id:
                finish = self._finish
                if self._define is not None and (now := self._define(schema)) != definition:
                    finish = self._finish = compile_definition(now)
                    self.definition = definition = now
                check_schemas(definition, schema.key, schema.value)
                codec, decode_value = KeyCodec(schema.key), decoder(schema.value)
                self._binding = binding = _Binding(stores, schema.id, schema.many, codec, decode_value, finish)
                return binding
        for unread in stores.unread:
            if unread.operator == definition.operator:
                kind = CONDITIONS[unread.condition].kind
                raise kind(unread.condition, unread.message, hint=unread.hint, table=self.name)
        raise store_missing(definition)

    def _get(self, view: View, binding: _Binding, columns: dict[str, Any], cut: Cut) -> Row:
        key = self._keys.row(columns)
        if key is None:
            return self._only_window(view, binding, columns, cut)
        ordered = binding.codec.encode(key[:-1] if binding.many else key)
        stored_key = store_key(ordered)
        stored = view.rows.get(binding.table, stored_key)
        if stored is None:
            return Row((), cut)
        found, row = split_value(stored_key, stored)
        if found != ordered:
            raise _hash_collision(self.name)
        if binding.many:
            element = next(islice(iter_elements(row), key[-1], None), None) if (key[-1] or 0) >= 0 else None
            if element is None or key[-1] is None:
                return Row((), cut)
            row = element
        values = binding.finish(key, binding.decode_value(row))
        return Row(values if values is not None else (), cut)

    def _only_window(self, view: View, binding: _Binding, columns: dict[str, Any], cut: Cut) -> Row:
        found = list(zip(self._iterate(view, binding, columns), range(2), strict=False))
        if len(found) > 1:
            raise RequestError(
                "KEY_MISSING",
                f"Several windows of {self.name} begin there.",
                hint="Name the end of the window too, or scan.",
                table=self.name,
            )
        return Row(found[0][0] if found else (), cut)

    def _iterate(self, view: View, binding: _Binding, columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
        prefix, rest = self._prefix(binding.codec, columns)
        deadline = time.monotonic() + self._job.settings.read_deadline_seconds
        checks = [(column, columns[column.name]) for column in self.definition.key if column.name in rest]
        decode_key, decode_value, finish = binding.codec.decode, binding.decode_value, binding.finish
        for number, (ordered, row) in enumerate(iter_prefix(view.rows, binding.table, prefix)):
            if number % _DEADLINE_CHECK_ROWS == 0 and time.monotonic() > deadline:
                raise _too_long(self.name, self._job.settings.read_deadline_seconds)
            key = decode_key(ordered)
            for whole, element in _elements(key, row) if binding.many else ((key, row),):
                if checks and not all(_same(_member(whole, c, self._key_fields), value) for c, value in checks):
                    continue
                values = finish(whole, decode_value(element))
                if values is not None:
                    yield values

    def _prefix(self, codec: KeyCodec, columns: dict[str, Any]) -> tuple[bytes, set[str]]:
        """The longest prefix that the columns give, and the names that aren't in it."""
        rest = set(columns)
        whole: list[Any] = []
        for index in codec.order:
            parts = [c for c in self.definition.key if c.index == index]
            given = [c for c in parts if c.name in columns]
            if given != parts[: len(given)] or not given:
                break
            values = [columns[c.name] for c in given]
            if parts[0].path:
                if len(given) < len(parts):
                    rest -= {c.name for c in given}
                    return codec.encode_prefix(whole, values), rest
                whole.append(tuple(values))
            else:
                whole.append(values[0])
            rest -= {c.name for c in given}
        return codec.encode_prefix(whole, []), rest


class Count(int):
    """A number of rows that names the cut it was counted in."""

    cut: Cut

    def __new__(cls, value: int, cut: Cut) -> Count:
        """A count of `value` rows in `cut`."""
        self = super().__new__(cls, value)
        self.cut = cut
        return self

    @property
    def batch(self) -> int:
        """The batch that the count reflects."""
        return self.cut.position.batch


def check_schemas(definition: TableDefinition, key: tuple[Field, ...], value: tuple[Field, ...]) -> None:
    """Hold the definition against the state's schema, position by position, by type: names count for nothing.

    Raises:  DEFINITION_MISMATCH, naming the first difference.
    """
    for what, defined, found in (("key", definition.key_schema, key), ("value", definition.value_schema, value)):
        here, there = [_shape(f.type) for f in defined], [_shape(f.type) for f in found]
        if here != there:
            raise DefinitionError(
                "DEFINITION_MISMATCH",
                f"{definition.table} is defined on {what} columns ({', '.join(map(str, (f.type for f in defined)))}), "
                f"but the state has ({', '.join(map(str, (f.type for f in found)))}).",
                hint="Define the table again with the DataFrame that the job runs.",
                table=definition.table,
            )


def store_missing(definition: TableDefinition) -> DefinitionError:
    """The state has no store that a table is defined on."""
    return DefinitionError(
        "DEFINITION_MISMATCH",
        f"{definition.table} is defined on store {store_id(*definition.store_id)}, which isn't there.",
        hint="Define the table again with the DataFrame that the job runs.",
        table=definition.table,
    )


def _shape(type_: SparkType) -> Any:
    """A type without the names in it."""
    if type_.kind == "struct":
        return ("struct", [_shape(f.type) for f in type_.fields])
    if type_.kind == "array":
        assert type_.element is not None
        return ("array", _shape(type_.element))
    if type_.kind == "map":
        assert type_.key is not None
        assert type_.value is not None
        return ("map", _shape(type_.key), _shape(type_.value))
    return type_.kind if type_.kind == "string" else type_.name


def _elements(key: tuple[Any, ...], rows: bytes) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Each row of a list, under the key with its place."""
    return (((*key, place), element) for place, element in enumerate(iter_elements(rows)))


def _member(key: tuple[Any, ...], column: KeyColumn, fields: tuple[Field, ...]) -> Any:
    value = key[column.index]
    if not column.path or value is None:
        return value
    names = [f.name for f in fields[column.index].type.fields]
    return value[names.index(column.path[0])]


def _same(left: Any, right: Any) -> bool:
    """Equality as Spark groups: NULL equals NULL, NaN equals NaN."""
    return bool(left == right) or (left != left and right != right)


def _hash_collision(table: str) -> ReplicaError:
    return ReplicaError(
        "FOLLOWER_FAILED",
        f"Two long keys of {table} have the same hash.",
        hint="Report this; it isn't expected to happen within the age of the universe.",
        table=table,
    )


def _too_long(table: str, seconds: float) -> ReplicaError:
    return ReplicaError(
        "READ_TOO_LONG",
        f"The scan of {table} took longer than {seconds:g} seconds and was ended, since an open read keeps old pages from reuse.",
        hint="Narrow the scan with key columns or a limit.",
        table=table,
    )
