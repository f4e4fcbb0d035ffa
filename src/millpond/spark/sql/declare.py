"""A statement as an `Aggregate` and its streaming source: Spark parses the expressions and checks them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millpond.errors import RequestError, importing_pyspark
from millpond.spark.aggregate.declare import Aggregate
from millpond.spark.aggregate.values import distinct, quantile, top_k
from millpond.spark.sql.statement import Call, Source, Statement, Value, parse_statements
from millpond.spark.sql.words import Place, Written, refused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FUNCTIONS: dict[str, Callable[..., Column]] = {"distinct": distinct, "quantile": quantile, "top_k": top_k}
_ARRAY = re.compile(r"array\s*\((.*)\)", re.IGNORECASE | re.DOTALL)


def parse_aggregate(text: str) -> Aggregate:
    """The aggregate that one SQL statement declares, as `Aggregate` does; a Spark session must run.

    text:    CREATE AGGREGATE …; its FROM may be missing, and isn't used
    Raises:  INVALID_STATEMENT, with line and column; INVALID_NAME, INVALID_REQUEST as `Aggregate`;
             LIBRARY_MISSING.
    """
    statements = parse_statements(text)
    if len(statements) > 1:
        raise refused(f"there are {len(statements)} statements", statements[1].place, "Give one of them.")
    return declare(statements[0])


def declare(statement: Statement, *, kept: dict[str, str | None] | None = None) -> Aggregate:
    """The aggregate of a statement.

    kept:    resolutions with other times than the statement's
    Raises:  INVALID_STATEMENT, INVALID_NAME.
    """
    values = {name: _column(value) for name, value in statement.values.items()}
    with at_place(statement.place):
        return Aggregate(
            statement.name,
            version=statement.version,
            key=list(statement.key),
            event_time=statement.event_time,
            values=values,
            resolutions=statement.resolutions if kept is None else kept,
            **statement.lengths,
        )


def open_source(spark: SparkSession, source: Source) -> DataFrame:
    """The streaming DataFrame of a source.  Raises INVALID_STATEMENT if Spark refuses it."""
    from pyspark.sql import functions as sf

    with _checked(source.place, "The source"):
        reader = spark.readStream.format(source.format).options(**source.options)
        if source.schema is not None and not source.is_value:
            reader = reader.schema(source.schema)
        df = reader.load() if source.path is None else reader.load(source.path)
        if source.is_value:
            assert source.schema is not None, "the statement has one"
            df = df.select(sf.from_json(sf.col("value").cast("string"), source.schema).alias("value")).select("value.*")
    if source.where is not None:
        with _checked(source.where.place, "The condition"):
            df = df.where(sf.expr(source.where.text))
    return df


def check_values(statement: Statement, df: DataFrame) -> None:
    """Let Spark resolve each value.  Raises INVALID_STATEMENT at the first that it refuses."""
    for name, value in statement.values.items():
        with _checked(value.written.place, f"The value {name}"):
            df.groupBy().agg(_column(value).alias(name))


def _column(value: Value) -> Column:
    with importing_pyspark():
        from pyspark.sql import functions as sf

    if value.call is None:
        with _checked(value.written.place, "The value"):
            return sf.expr(value.written.text)
    return _call(value.call, value.written.place)


def _call(call: Call, place: Place) -> Column:
    from pyspark.sql import functions as sf

    with _checked(call.column.place, "The column"):
        column = sf.expr(call.column.text)
    positional = [_literal(written) for name, written in call.options if name is None]
    named = {name.lower(): _literal(written) for name, written in call.options if name is not None}
    try:
        with at_place(place):
            return _FUNCTIONS[call.function](column, *positional, **named)
    except TypeError:
        raise refused(f"{call.function} doesn't take these arguments", place, f"Write {_usage(call.function)}.") from None


def _usage(function: str) -> str:
    return {
        "distinct": "distinct(column), distinct(column, rsd => 0.01) or distinct(column, exact => true)",
        "quantile": "quantile(column, 0.99), or also k => 400",
        "top_k": "top_k(column, 10), or also max_items_tracked => 1000",
    }[function]


def _literal(written: Written) -> Any:
    """A number, true, false, or an array of numbers.  Raises INVALID_STATEMENT."""
    several = _ARRAY.fullmatch(written.text)
    text = f"[{several[1]}]" if several else re.sub(r"^\.", "0.", written.text)
    try:
        found = json.loads(text.lower())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, bool | int | float | list):
        raise refused(f"{written.text!r:.40} isn't a number", written.place, "Write a number, true, false or array(0.5, 0.99).")
    return found


@contextmanager
def at_place(place: Place) -> Iterator[None]:
    """What an `Aggregate` refuses in the block as INVALID_REQUEST is an error of the statement."""
    try:
        yield
    except RequestError as wrong:
        if wrong.condition != "INVALID_REQUEST":
            raise
        raise refused(wrong.message.rstrip("."), place, wrong.hint) from None


@contextmanager
def _checked(place: Place, what: str) -> Iterator[None]:
    """What Spark refuses in the block is an error of the statement."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as wrong:
        said = next((line.strip() for line in str(wrong).splitlines() if line.strip()), type(wrong).__name__)
        raise refused(f"{what} is refused by Spark: {said.rstrip('.')}", place, "Write it as Spark SQL has it.") from None
