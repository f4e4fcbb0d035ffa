"""What a past, a source and a query must be, before anything is written; and the past as the stream that the query gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millpond.program import call_program
from millpond.spark.derive.plan import class_name, every_node, stateful_nodes
from millpond.spark.past.source import invalid, single_source
from millpond.spark.shards import quoted
from millpond.spark.start import OUTPUT_MODES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Query = Callable[["DataFrame"], "DataFrame"]
PART = "millpond_part"
"""the column that says in which batch a row of the past comes"""
_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def check_request(
    past: DataFrame, source: DataFrame, output_mode: str, partitions: int | None, batches: int, order_by: str | None
) -> None:
    """Refuse arguments that can't be right.  Raises INVALID_REQUEST."""
    if past.isStreaming:
        raise invalid("the past is a stream", "Read it with spark.read.")
    if output_mode not in OUTPUT_MODES:
        raise invalid(f"output_mode is {output_mode!r}", f"Use one of {', '.join(OUTPUT_MODES)}.")
    for word, number in (("partitions", partitions), ("batches", batches)):
        if number is not None and number < 1:
            raise invalid(f"{word} is {number}", "Use a whole number from 1.")
    if order_by is not None and batches == 1:
        raise invalid("order_by divides the past into batches, and there is one", "Name their number, or leave order_by out.")
    if order_by is not None and order_by not in past.columns:
        raise invalid(f"the past has no column {order_by!r}", f"Use one of {', '.join(past.columns)}.")
    if PART in past.columns:
        raise invalid(f"the past has a column {PART!r}, a name that is taken here", "Rename it in the past and in the source.")
    if str(past.sparkSession.conf.get(_EVOLUTION, "false")).lower() == "true":
        raise invalid(f"sources have names ({_EVOLUTION})", "Set it to false for the new job.")
    analyzed = source._jdf.queryExecution().analyzed()
    if any(stateful_nodes(analyzed, append=True)) or has_watermark(source):
        raise invalid("the source has state or a watermark of its own", "Do that in the query, so that the past goes through it.")


def columns_of(past: DataFrame, source: DataFrame) -> list[Column]:
    """The past's columns in the order of the source's.

    Raises:  INVALID_REQUEST with the column that is missing, unknown or of another type.
    """
    there, wanted = ({f.name: f.dataType.simpleString() for f in df.schema.fields} for df in (past, source))
    for df, what in ((past, "past"), (source, "source")):
        if len(set(map(str.lower, df.columns))) < len(df.columns):
            raise invalid(f"two columns of the {what} have one name", "Rename one of them.")
    for name, type_ in wanted.items():
        if name not in there:
            raise invalid(f"the past has no column {name!r}, which the source has ({type_})", "Add it to the past.")
        if there[name] != type_:
            raise invalid(f"column {name!r} is {there[name]} in the past, and {type_} in the source", "Cast that of the past.")
    if more := [name for name in there if name not in wanted]:
        raise invalid(f"the past has a column {more[0]!r}, which the source hasn't", "Drop it from the past.")
    return [_column(past, name) for name in source.columns]


def events_of(past: DataFrame, source: DataFrame, folder: str) -> DataFrame:
    """Files of the past as a stream with the columns of the source.

    A stream of files may have NULL in every column.  Where the source hasn't, the plan is another:
    so these columns are said to have none, and Spark raises if there is one.
    """
    spark = past.sparkSession
    schema = source.schema
    read = spark.readStream.schema(schema).parquet(folder)
    return read.select([_column(read, f.name) if f.nullable else _never_null(read, f.name) for f in schema.fields])


def _column(df: DataFrame, name: str) -> Column:
    """A column whose name may have dots."""
    return df[quoted(name)]


def _never_null(df: DataFrame, name: str) -> Column:
    from pyspark.sql import Column

    jvm = df.sparkSession._jvm
    expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
    child = expressions.expression(_column(df, name)._jc)
    checked = jvm.org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull
    nothing = jvm.org.apache.spark.api.python.PythonUtils.toSeq(jvm.java.util.ArrayList())
    return Column(expressions.column(checked(child, nothing))).alias(name)


def call_query(query: Query, events: DataFrame) -> DataFrame:
    """The user's query.  Raises INVALID_REQUEST if it fails or doesn't return a stream with state."""
    from pyspark.sql import DataFrame

    stream = call_program("The query", query, events)
    if not isinstance(stream, DataFrame) or not stream.isStreaming:
        raise invalid(
            f"the query returned {type(stream).__name__ if not isinstance(stream, DataFrame) else 'a batch DataFrame'}",
            "Return the stream that the job starts, made of the events that the function gets.",
        )
    single_source(stream)
    return stream


def check_same_state(over_past: list[str], over_source: list[str]) -> None:
    """Refuse a query whose state depends on where its events come from.  Raises INVALID_REQUEST."""
    if not over_past:
        raise invalid("the query keeps no state", "Start the job without a past.")
    if over_past != over_source:
        raise invalid(
            f"over the past the query has the state {'; '.join(over_past)}, and over its source {'; '.join(over_source)}",
            "Let the query do the same with any events that have these columns.",
        )


def check_mode(stream: DataFrame, output_mode: str) -> None:
    """Let Spark refuse an output mode before anything is written.  Raises INVALID_REQUEST."""
    from pyspark.errors import PySparkException

    jvm = stream.sparkSession._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    try:
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
            stream._jdf.queryExecution().analyzed(), mode
        )
    except PySparkException as refused:
        raise invalid(f"Spark refuses the query in {output_mode} mode: {one_line(refused)}", "Mend the query.") from refused


def has_watermark(stream: DataFrame) -> bool:
    """Whether a query has a watermark anywhere."""
    return any(class_name(node) == "EventTimeWatermark" for node in every_node(stream._jdf.queryExecution().analyzed()))


def one_line(failed: Exception) -> str:
    """Spark's reason on one line, cut where it gets long."""
    return " ".join(str(failed).split())[:1000]
