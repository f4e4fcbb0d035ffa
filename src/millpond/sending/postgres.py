"""A PostgreSQL database.  The only module that imports psycopg."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from millpond.errors import RequestError, library_missing
from millpond.sending.sql import SqlTarget
from millpond.sending.target import Part, SentPosition, Shape, mismatch
from millpond.tables.history.changes import RowChange

# A server that answers nothing for so long counts as gone.
_PARAMETERS: dict[str, str | int] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 10,
    "application_name": "millpond",
}
_LOCK_MILLISECONDS = 10_000


def _same(value: Any) -> Any:
    return value


class PostgresTarget(SqlTarget):
    """One table of a database; `options` are connection parameters of libpq."""

    types = {  # noqa: RUF012 - a ClassVar of the base
        "boolean": ("boolean", _same),
        "byte": ("smallint", _same),
        "short": ("smallint", _same),
        "integer": ("integer", _same),
        "long": ("bigint", _same),
        "float": ("real", _same),
        "double": ("double precision", _same),
        "decimal": ("numeric({precision},{scale})", _same),
        "string": ("text", _same),
        "binary": ("bytea", bytes),
        "date": ("date", _same),
        "timestamp": ("timestamptz", _same),
        "timestamp_ntz": ("timestamp", _same),
    }
    json = "jsonb"
    mark = "%s"
    same = "IS NOT DISTINCT FROM"

    def __init__(self, address: str, shape: Shape, *, table: str, schema: str | None, options: Mapping[str, str]) -> None:
        try:
            import psycopg
        except ImportError as missing:
            raise library_missing("psycopg", "postgres") from missing
        self._psycopg = psycopg
        try:
            self._parameters: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(address, **{**_PARAMETERS, **options})
        except psycopg.ProgrammingError as error:
            raise RequestError(
                "INVALID_REQUEST", f"The target {address!r:.200} can't be used: {error}.", hint="Write it as psql takes it."
            ) from None
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        shown = address.partition("?")[0]
        super().__init__(f"{shown}?table={table}", shape, table=table, schema=schema)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        pg = self._psycopg
        try:
            yield
        except (pg.errors.InvalidColumnReference, pg.errors.DatatypeMismatch, pg.errors.UndefinedColumn) as error:
            raise mismatch(self.uri, str(error).splitlines()[0]) from error
        except (pg.OperationalError, pg.InterfaceError) as error:
            raise self._unavailable(error) from error
        except (pg.Error, UnicodeEncodeError) as error:
            raise self._refused(error) from error

    def open(self, *, resync: bool) -> SentPosition | None:
        """Connect."""
        with self._errors():
            self._connection = self._psycopg.connect(**self._parameters)
            self.run(f"SET lock_timeout = {_LOCK_MILLISECONDS}")
            self._connection.commit()
            self._take_turn()
            position = self.prepare(resync=resync)
            self._connection.commit()
            return position

    def _take_turn(self) -> None:
        """Wait for the transaction of another sender of this name."""
        self.run("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", f"millpond:{self.shape.name}")

    def quoted(self, name: str) -> str:
        """A name in a statement, in which a percent sign marks a parameter."""
        return super().quoted(name).replace("%", "%%")

    def run(self, statement: str, *values: Any) -> Any:
        """Run one statement."""
        assert self._connection is not None
        return self._connection.execute(statement, values)  # type: ignore[arg-type,call-overload,unused-ignore]

    def run_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement for each row, in a pipeline."""
        assert self._connection is not None
        if rows:
            with self._connection.cursor() as cursor:
                cursor.executemany(statement, rows)  # type: ignore[arg-type,unused-ignore]

    def columns_there(self) -> list[str]:
        """The columns of the table."""
        found = self.run(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            self._table.replace("%%", "%"),
        )
        return [row[0] for row in found.fetchall()]

    def begin(self, part: Part) -> None:
        """Begin, as the only sender of this name."""
        with self._errors():
            self._take_turn()
            self.start(part)

    def add(self, changes: list[RowChange]) -> None:
        """Write the last change of each key."""
        with self._errors():
            self.write(changes)

    def commit(self, position: SentPosition) -> None:
        """Commit rows and position."""
        assert self._connection is not None
        with self._errors():
            self.store(position)
            self._connection.commit()
        self.stored()

    def close(self) -> None:
        """Disconnect, which drops an open transaction."""
        if self._connection is not None:
            with suppress(self._psycopg.Error):
                self._connection.close()
        self._connection = None
