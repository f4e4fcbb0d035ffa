"""Random statements over a table, in DuckDB's SQL: conditions on its columns, groups, orders, joins of a table with itself."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millpond.errors import MillpondError
from millpond.tables.sql.reading.scan import check_names

OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


def texts_of(table: Any) -> list[str]:
    """The rows as texts: NaN equals NaN.  Python hasn't all times."""
    import pyarrow as pa

    columns = [column.cast("int64") if pa.types.is_timestamp(column.type) else column for column in table.columns]
    columns = [column.cast("int32") if pa.types.is_date32(column.type) else column for column in columns]
    return list(map(repr, zip(*(column.to_pylist() for column in columns), strict=True)))


@contextmanager
def rows_in_duckdb(table: Any) -> Iterator[tuple[Any, Any] | None]:
    """A database with all rows of a table under its name, and these rows; None if SQL can't have them."""
    import duckdb
    import pyarrow as pa

    try:
        every = table.to_arrow()
        check_names(table.definition)
        every.validate(full=True)
    except (MillpondError, pa.ArrowInvalid):
        yield None
        return
    with duckdb.connect() as plain:
        plain.execute("SET GLOBAL TimeZone = 'UTC'")
        plain.register("every", every.replace_schema_metadata(None))
        try:
            plain.execute(f'CREATE TABLE "{table.name}" AS SELECT * FROM every').fetchall()
        except duckdb.Error:
            yield None
            return
        yield plain, every


def answer_of(plain: Any, text: str, values: list[Any]) -> Any:
    """DuckDB's own answer.  Raises duckdb.Error."""
    with plain.cursor() as cursor, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it copies the rows: they are few
        return cursor.execute(text, values).to_arrow_table()


class Statements:
    """Statements over one table, whose literals are often values that it has."""

    def __init__(self, name: str, rows: Any, seed: int) -> None:
        """A generator.

        rows:  of the table, a pyarrow.Table whose columns DuckDB can compare
        """
        self._random, self._name, self._rows = random.Random(seed), f'"{name}"', rows
        # Columns with flat types: literals of others can't be written as parameters.
        self._columns = [
            f.name
            for f in rows.schema
            if str(f.type) not in ("null",) and not f.type.__class__.__name__.startswith(("List", "Struct", "Map"))
        ]

    def next(self) -> tuple[str, list[Any]]:
        """A statement and its parameters."""
        values: list[Any] = []
        draw, name = self._random, self._name
        where = f" WHERE {self.condition('t', values, 2)}" if draw.random() < 0.9 else ""
        some = ", ".join(f't."{c}"' for c in self._some()) or "1"
        kind = draw.randrange(6)
        if kind == 0:
            return f"SELECT count(*) FROM {name} t{where}", values
        if kind == 1:
            column = draw.choice(self._rows.column_names)
            return f'SELECT t."{column}" AS g, count(*) FROM {name} t{where} GROUP BY ALL', values
        if kind == 2 and self._columns:
            column = draw.choice(self._columns)
            right: list[Any] = []
            condition = self.condition("u", right, 1)
            return (
                f'SELECT count(*) FROM {name} t JOIN {name} u ON t."{column}" = u."{column}" AND {condition}{where}',
                right + values,
            )
        if kind == 3 and self._columns:
            column = draw.choice(self._columns)
            inner: list[Any] = []
            nested = f'SELECT u."{column}" FROM {name} u WHERE {self.condition("u", inner, 1)}'
            return f'SELECT {some} FROM {name} t WHERE t."{column}" IN ({nested})', inner
        if kind == 4:
            order = ", ".join(f't."{c}" {draw.choice(("", "DESC", "NULLS FIRST"))}' for c in self._rows.column_names)
            return f"SELECT * FROM {name} t{where} ORDER BY {order} LIMIT {draw.randrange(1, 9)} OFFSET {draw.randrange(3)}", values
        return f"SELECT {some} FROM {name} t{where}", values

    def _some(self) -> list[str]:
        names = self._rows.column_names
        return self._random.sample(names, min(len(names), self._random.randrange(1, 5)))

    def condition(self, table: str, values: list[Any], depth: int = 1) -> str:
        draw = self._random
        if depth and draw.random() < 0.5:
            word = draw.choice((" AND ", " AND ", " OR "))
            each = [self.condition(table, values, depth - 1) for _ in range(draw.randrange(2, 4))]
            return f"{draw.choice(('', '', '', 'NOT '))}({word.join(each)})"
        if not self._columns:
            return "true"
        # The first columns are the key, by which rows are found.
        column = self._columns[0] if draw.random() < 0.5 else draw.choice(self._columns)
        named = f'{table}."{column}"'
        kind = draw.randrange(5)
        if kind == 0:
            return f"{named} IS {draw.choice(('', 'NOT '))}NULL"
        if kind == 1:
            count = draw.randrange(1, 5)
            values += [self._value(column) for _ in range(count)]
            return f"{named} {draw.choice(('', 'NOT '))}IN ({', '.join('?' * count)})"
        if kind == 2:
            values += [self._value(column), self._value(column)]
            return f"{named} BETWEEN ? AND ?"
        values.append(self._value(column))
        return f"{named} {draw.choice(OPERATORS)} ?" if draw.random() < 0.8 else f"? {draw.choice(OPERATORS)} {named}"

    def _value(self, column: str) -> Any:
        """A scalar that the column has, or NULL."""
        found = self._rows[column]
        for _ in range(8):
            try:
                return self._random.choice(found).as_py() if len(found) else None
            except (OverflowError, ValueError):
                continue  # a time that Python hasn't
        return None
