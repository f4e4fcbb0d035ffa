"""Rows of a table in a database: columns by type, and the last change of each key.

The table has one row for each key.  A unique index over the key's columns finds them; an upsert by
it writes a row.  Such an index lets NULL in several times, so rows with NULL in their key are
deleted and inserted instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from millpond.errors import RequestError
from millpond.schema.types import SparkType
from millpond.schema.values import encode_json, to_json, to_text
from millpond.sending.target import Part, SentPosition, Shape, Target, decode_position, mismatch
from millpond.tables.history.changes import RowChange
from millpond.wire.rows import typed_columns

EXPIRED = "_expired"
POSITIONS = "millpond_positions"
Write = Callable[[Any], Any]
_JSON = frozenset({"struct", "array", "map", "variant"})


class SqlTarget(Target):
    """What databases share; each says how it connects, and which types it has.

    types:   Spark's kind of type -> the database's and a function for values; the others are texts
    json:    the type of lists, maps and structs
    mark:    a parameter's place in a statement
    same:    an operator that also compares NULL
    """

    types: ClassVar[Mapping[str, tuple[str, Write]]]
    json: ClassVar[str]
    mark: ClassVar[str]
    same: ClassVar[str]

    def __init__(self, uri: str, shape: Shape, *, table: str, schema: str | None) -> None:
        super().__init__(uri, shape)
        columns = typed_columns(shape.definition)
        self._key = [name for name, _ in columns if name in set(shape.key)]
        self._columns = [(name, *self._type(type_)) for name, type_ in columns]
        self._key_columns = [column for column in self._columns if column[0] in set(shape.key)]
        taken = {name for name, _ in columns}
        if shape.keep_expired and EXPIRED in taken:
            raise RequestError(
                "INVALID_REQUEST",
                f"{shape.table} has a column {EXPIRED}, which marks expired rows at the target.",
                hint="Leave --keep-expired out.",
            )
        self._schema, self._name = schema, table
        self._table = ".".join(self.quoted(part) for part in (schema, table) if part is not None)
        self._positions = ".".join(self.quoted(part) for part in (schema, POSITIONS) if part is not None)
        self._stored: str | None = None
        self._statements()

    def _type(self, type_: SparkType) -> tuple[str, Write]:
        known = self.types.get(type_.kind)
        if known is not None:
            name, write = known
            return name.format(precision=type_.precision, scale=type_.scale), write
        if type_.kind in _JSON:
            as_json = to_json(type_)
            return self.json, lambda value: encode_json(as_json(value)).decode()
        return "text", to_text(type_)

    def _statements(self) -> None:
        names = [name for name, _, _ in self._columns] + ([EXPIRED] if self.shape.keep_expired else [])
        listed = ", ".join(map(self.quoted, names))
        marks = ", ".join([self.mark] * len(names))
        insert = f"INSERT INTO {self._table} ({listed}) VALUES ({marks})"  # noqa: S608 - all names are quoted
        others = [name for name in names if name not in set(self._key)]
        sets = ", ".join(f"{self.quoted(name)} = EXCLUDED.{self.quoted(name)}" for name in others)
        key = ", ".join(map(self.quoted, self._key))
        self.insert = insert
        self.upsert = f"{insert} ON CONFLICT ({key}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
        where = {
            operator: " AND ".join(f"{self.quoted(name)} {operator} {self.mark}" for name in self._key) or "1 = 1"
            for operator in ("=", self.same)
        }
        self.delete, self.delete_null = (
            f"DELETE FROM {self._table} WHERE {where[operator]}"  # noqa: S608
            for operator in ("=", self.same)
        )

    # ------------------------------------------------------------ what each database does

    def quoted(self, name: str) -> str:
        """A name in a statement."""
        return '"' + name.replace('"', '""') + '"'

    @abstractmethod
    def run(self, statement: str, *values: Any) -> Any:
        """Run one statement; returns a cursor."""

    @abstractmethod
    def run_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement for each row."""

    @abstractmethod
    def columns_there(self) -> list[str]:
        """The columns of the target's table; none if there is no table."""

    # ------------------------------------------------------------ the transaction

    def prepare(self, *, resync: bool) -> SentPosition | None:
        """Make the tables, in the caller's transaction; returns the position."""
        self.run(
            f"CREATE TABLE IF NOT EXISTS {self._positions} "
            "(sender text, target text, position text NOT NULL, PRIMARY KEY (sender, target))"
        )
        self._stored = self._read()
        there, wanted = self.columns_there(), [name for name, _, _ in self._columns]
        wanted += [EXPIRED] if self.shape.keep_expired else []
        if not there:
            columns = [f"{self.quoted(name)} {type_}" for name, type_, _ in self._columns]
            columns += [f"{self.quoted(EXPIRED)} boolean NOT NULL"] if self.shape.keep_expired else []
            self.run(f"CREATE TABLE {self._table} ({', '.join(columns)})")
            if self._key:
                index = self.quoted(f"{self._name}_millpond_key")
                self.run(f"CREATE UNIQUE INDEX {index} ON {self._table} ({', '.join(map(self.quoted, self._key))})")
        elif missing := [name for name in wanted if name not in there]:
            raise mismatch(self.uri, f"its table {self._name!r} has no column {missing[0]!r}")
        elif self._stored is None and not resync and self._has_rows():
            raise mismatch(self.uri, f"its table {self._name!r} has rows, and no position of a sender {self.shape.name!r}")
        return None if self._stored is None else decode_position(self._stored, self.shape, self.uri)

    def _has_rows(self) -> bool:
        return self.run(f"SELECT 1 FROM {self._table} LIMIT 1").fetchone() is not None  # noqa: S608

    def _read(self) -> str | None:
        found = self.run(
            f"SELECT position FROM {self._positions} WHERE sender = {self.mark} AND target = {self.mark}",  # noqa: S608
            self.shape.name,
            self._name,
        ).fetchone()
        return None if found is None else str(found[0])

    def start(self, part: Part) -> None:
        """In a transaction: see that no other sender was here, and make room for a whole read."""
        if self._read() != self._stored:
            raise self._taken()
        if part.whole and self.shape.keep_expired:
            self.run(f"UPDATE {self._table} SET {self.quoted(EXPIRED)} = {self.mark}", True)  # noqa: S608
        elif part.whole:
            self.run(f"DELETE FROM {self._table}")  # noqa: S608

    def write(self, changes: Iterable[RowChange]) -> None:
        """The last change of each key: all deletes, then all rows."""
        last: dict[tuple[Any, ...], RowChange] = {}
        for change in changes:
            last[self._values(change.row, self._key_columns)] = change
        deletes: list[tuple[Any, ...]] = []
        rows: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
        for key, change in last.items():
            expired = change.new is None and change.kind == "expire"
            if change.new is None and not (expired and self.shape.keep_expired):
                deletes.append(key)
            else:
                values = self._values(change.row, self._columns)
                rows.append((key, (*values, expired) if self.shape.keep_expired else values))
        self.run_many(self.delete, [key for key in deletes if not _has_null(key)])
        self.run_many(self.delete_null, [key for key in (*deletes, *(key for key, _ in rows)) if _has_null(key)])
        self.run_many(self.insert, [row for key, row in rows if _has_null(key)])
        self.run_many(self.upsert, [row for key, row in rows if not _has_null(key)])

    @staticmethod
    def _values(row: Mapping[str, Any], columns: list[tuple[str, str, Write]]) -> tuple[Any, ...]:
        return tuple(None if (value := row[name]) is None else write(value) for name, _, write in columns)

    def store(self, position: SentPosition) -> None:
        """Write the position, in the transaction."""
        text = position.encode().decode()
        self.run(
            f"INSERT INTO {self._positions} (sender, target, position) "  # noqa: S608
            f"VALUES ({self.mark}, {self.mark}, {self.mark}) "
            "ON CONFLICT (sender, target) DO UPDATE SET position = EXCLUDED.position",
            self.shape.name,
            self._name,
            text,
        )
        self._storing = text

    def stored(self) -> None:
        """The transaction is committed."""
        self._stored = self._storing


def _has_null(key: tuple[Any, ...]) -> bool:
    """Whether no index finds the row; a table without a key has one row."""
    return not key or None in key
