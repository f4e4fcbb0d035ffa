"""A statement of PostgreSQL's protocol, answered in its process: its columns, and its rows as messages."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from millpond.errors import RequestError
from millpond.serve.sql import messages as say
from millpond.serve.sql.contexts import Contexts
from millpond.serve.sql.lookup import find_lookup
from millpond.serve.sql.postgres.catalog import Catalog
from millpond.serve.sql.postgres.functions import OF_RELATIONS, PREFIX, macro
from millpond.serve.sql.postgres.parameters import plain, types_of, values
from millpond.serve.sql.postgres.tree import Rewriter
from millpond.serve.sql.postgres.types import BY_OID, PgType, of_duck
from millpond.serve.sql.postgres.write import rows
from millpond.tables.sql.duck import Duck, Parameters
from millpond.tables.sql.end import SqlEnd, SqlLimits
from millpond.tables.sql.reading.dataset import Relation
from millpond.tables.sql.reading.order import Hint
from millpond.tables.sql.run import Running, Wanted, start
from millpond.tables.sql.statement import TableName
from millpond.tables.sql.types import answer_types

_PIECE_BYTES = 1 << 16
_count = struct.Struct(">I").pack


class Server(Protocol):
    """The tables in the server: `program.FarTables`."""

    relations: Sequence[Relation]
    failed: list[Exception]

    def ask(self, message: Any, /) -> Any: ...

    def open(self, names: Sequence[TableName], *, is_dry: bool) -> None: ...

    def plan_lines(self) -> list[str]: ...


class _CatalogRelation:
    """A relation of the catalogue."""

    sortable: Collection[str] = ()

    def __init__(self, table: Any) -> None:
        self._table, self.schema = table, table.schema

    def batches(self, names: Collection[str], condition: bytes | None, hint: Hint) -> Iterator[Any]:  # noqa: ARG002 - DuckDB filters
        """See `dataset.Relation`."""
        yield from self._table.select([name for name in self.schema.names if name in names]).to_batches()


class PostgresStatement:
    """A statement with its tables: a `run.Source` and a `run.Dialect`.

    types:  of the parameters, when the tables are open
    """

    def __init__(self, server: Server, ask: say.Postgres, given: list[Any], at: int | str | None) -> None:
        self._server, self._ask, self._given, self._ask_at = server, ask, given, at
        self._names: Sequence[TableName] = ()
        self._node: dict[str, Any] = {}
        self._rewriter = Rewriter(ask.session)
        self._contexts: Contexts
        self._catalog: Catalog | None = None
        self.relations: Sequence[Relation] = ()
        self.types: list[PgType] = []

    @property
    def failed(self) -> list[Exception]:
        """See `run.Source`."""
        return self._server.failed

    @property
    def reads_catalog(self) -> bool:
        """Whether it reads relations of the catalogue."""
        return bool(self._rewriter.found.catalog)

    def read(self, statement: dict[str, Any]) -> bool:
        """See `run.Dialect`."""
        self._contexts = Contexts(statement)
        self._rewriter.rewrite(statement)
        self._node = statement["node"]
        return True

    def lookup(self) -> say.Lookup | None:
        """The lookup that it may be."""
        names = self._names
        if self._ask_at is not None or len(names) != 1 or self.reads_catalog or names[0] != TableName(names[0].name):
            return None
        columns = {name.lower(): name for name in self.relations[0].schema.names}
        return find_lookup(self._node, names[0].name, columns)

    def open(self, names: Sequence[TableName], *, is_dry: bool) -> None:
        """See `run.Source`."""
        self._names = names
        ours = [each for each in names if each.name.startswith(PREFIX)]
        if any(each.name.removeprefix(PREFIX) not in self._rewriter.found.catalog for each in ours):
            raise RequestError("UNKNOWN_TABLE", f'relation "{ours[0].name}" does not exist', hint="Name a table of the pond.")
        self._server.open([each for each in names if each not in ours], is_dry=is_dry)
        others = iter(self._server.relations)
        self.relations = [
            _CatalogRelation(self._known().arrow(each.name.removeprefix(PREFIX))) if each in ours else next(others)
            for each in names
        ]

    def plan_lines(self) -> list[str]:
        """See `run.Source`."""
        return self._server.plan_lines()

    def values(self, duck: Duck, relations: Sequence[Relation], left: frozenset[str] | None) -> Parameters:
        """See `run.Dialect`."""
        called = self._rewriter.found.macros
        if called & OF_RELATIONS:
            for name in ("pg_class", "pg_constraint"):
                duck.add(PREFIX + name, self._known().arrow(name))
        for name in sorted(called):
            duck.define(macro(name))
        self.types = types_of(self._contexts, self._ask.types, [each.schema for each in relations])
        given = None if self._ask.is_described else self._given
        names = self._contexts.names if left is None else self._contexts.names & left
        return values(self.types, given, names, duck.value) or None

    def names(self, columns: list[tuple[str, str]]) -> list[str]:
        """The names of the answer's columns."""
        own = self._rewriter.found.names
        if own is None or len(own) != len(columns):
            return [name for name, _ in columns]
        return [name if mine is None else mine for mine, (name, _) in zip(own, columns, strict=True)]

    def _known(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(json.loads(self._server.ask(say.Catalog()).lines[0]), self._ask.session)
        return self._catalog


def answer(
    server: Server, statement: str, parameters: list[Any], limits: SqlLimits, end: SqlEnd, ask: say.Ask
) -> Iterator[say.PostgresHead | bytes]:
    """The head of the answer, and pieces of it.  Raises as `run.start`."""
    assert ask.postgres is not None
    wanted = ask.postgres
    asked = PostgresStatement(server, wanted, parameters, ask.at)
    given = plain(parameters, wanted.types)
    what: Wanted = "columns" if wanted.is_described else "answer"
    with start(asked, statement, given, limits, end, ask.at, dialect=asked, wanted=what) as running:
        columns = running.columns if not running.is_plan else [("QUERY PLAN", "VARCHAR")]
        types = [of_duck(type_, name, is_catalog=asked.reads_catalog) for name, type_ in columns]
        names = [name for name, _ in columns] if running.is_plan else asked.names(columns)
        yield say.PostgresHead(
            [each.oid for each in asked.types],
            [(name, type_.oid, modifier) for name, (type_, modifier) in zip(names, types, strict=True)],
            None if running.is_plan else asked.lookup(),
        )
        if wanted.is_described:
            return
        yield from _pieces(running, [type_ for type_, _ in types], _formats(wanted.formats, len(columns)))


def _formats(formats: list[int], count: int) -> list[int]:
    if len(formats) > 1 and len(formats) != count:
        raise RequestError(
            "INVALID_REQUEST",
            f"Bind has {len(formats)} result formats, and the answer {count} columns.",
            hint="Give none, one, or all.",
        )
    return formats if len(formats) == count else (formats or [0]) * count


def _pieces(running: Running, types: list[PgType], formats: list[int]) -> Iterator[bytes]:
    import pyarrow as pa

    sparks = [None] * len(types)
    if any(type_ is BY_OID[114] for type_ in types):
        sparks = [
            answer_types(pa.schema([field]))[0][1] if type_.name == "json" and pa.types.is_nested(field.type) else None  # type: ignore[misc]
            for field, type_ in zip(running.schema, types, strict=True)
        ]
    count, size, parts = 0, 0, list[bytes]()
    for batch in running.batches():
        if running.is_plan:
            batch = pa.record_batch({"plan": batch.column(0)[0].as_py().split("\n")})
        for row in rows(batch, types, sparks, formats):
            parts.append(row)
            count, size = count + 1, size + len(row)
            if size >= _PIECE_BYTES:
                yield _count(count) + b"".join(parts)
                count, size, parts = 0, 0, []
    if count:
        yield _count(count) + b"".join(parts)
