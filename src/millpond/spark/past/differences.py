"""What a query's state owes to the order and the time of its rows, which a past doesn't have.

A stream gets its rows in batches, one after the other; a past comes in one batch, or a few.  For
counts, sums of whole numbers and the like that is the same.  This names all else that the plan has,
in a sentence each.  Functions that aren't known to be free of order are taken to depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millpond.schema.types import shape_of
from millpond.spark.derive.batch_plan import BATCH_TIMES, PLANNED, BatchPlan, batch_plan
from millpond.spark.derive.plan import (
    Java,
    class_name,
    elements,
    every_node,
    fields_of,
    find_clock,
    stateful_nodes,
    type_of,
    zone_of_session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Their buffers are the same in any order of rows.  Spark rewrites count_if, bool_or and the like by
# these.
_FREE_OF_ORDER = frozenset(
    {
        "Count",
        "Min",
        "Max",
        "BitAndAgg",
        "BitOrAgg",
        "BitXorAgg",
        "HyperLogLogPlusPlus",
        "CountMinSketchAgg",
        "BitmapConstructAgg",
        "BitmapOrAgg",
        "BitmapAndAgg",
        "Percentile",
    }
)
# These add; a floating-point sum is rounded at each step.
_ADDING = frozenset({"Sum", "Average"})
_FLOATING = frozenset({"float", "double"})
# The average of these adds doubles, too, which are exact up to 2^53.
_LONG = frozenset({"bigint"})
_OWN_FUNCTIONS = {
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithStateInPySpark": "transformWithState",
}


def plan_of(stream: DataFrame) -> BatchPlan:
    """The plan of a stream's batches in its session."""
    spark = stream.sparkSession
    jsession = spark._jsparkSession
    return batch_plan(jsession, spark._jvm, stream._jdf.queryExecution().analyzed(), time_zone=zone_of_session(jsession))


def state_shapes(stream: DataFrame, *, append: bool) -> list[str]:
    """The operators of a query and the types of their state, a line each, in the order of their ids."""
    return [_shape(found.node, stream.sparkSession._jvm) for found in stateful_nodes(plan_of(stream).plan, append=append)]


def _shape(node: Java, jvm: Java) -> str:
    name = class_name(node)
    if name == "Aggregate":
        grouping, aggregates = _aggregation(node, jvm)
        buffers = [f"{f.prettyName()}({_types(elements(f.aggBufferAttributes()))})" for f in aggregates]
        return f"{name} by ({_types(grouping)}) with {', '.join(buffers) or 'no function'}"
    if name in ("Deduplicate", "DeduplicateWithinWatermark"):
        return f"{name} by ({_types(elements(node.keys()))})"
    if name == "TransformWithStateInPySpark":
        return f"{name} by ({_types(elements(node.leftAttributes()))})"
    if name == "FlatMapGroupsInPandasWithState":
        return f"{name} by ({_types(elements(node.groupingAttributes()))}) with {node.stateType().simpleString()}"
    return name


def _types(attributes: list[Java]) -> str:
    return ", ".join(str(shape_of(field.type)) for field in fields_of(attributes))


def _aggregation(node: Java, jvm: Java) -> tuple[list[Java], list[Java]]:
    """The grouping columns and the aggregate functions of a node, as Spark's planner takes them."""
    parts = jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation.unapply(node)
    if parts.isEmpty():
        return [], []
    return elements(parts.get()._1()), [a.aggregateFunction() for a in elements(parts.get()._2())]


def find_differences(stream: DataFrame, *, output_mode: str, batches: int) -> tuple[str, ...]:
    """What may differ from a job that read the past as a stream, a sentence each.

    stream:   the query over the past
    batches:  in how many batches the past comes
    """
    analyzed = stream._jdf.queryExecution().analyzed()
    nodes = [found.node for found in stateful_nodes(plan_of(stream).plan, append=output_mode == "append")]
    return (*_lateness(analyzed, output_mode, batches), *_order(nodes, stream.sparkSession._jvm), *_clock(analyzed))


def _lateness(analyzed: Java, output_mode: str, batches: int) -> Iterator[str]:
    marks = [node for node in every_node(analyzed) if class_name(node) == "EventTimeWatermark"]
    for mark in marks:
        yield (
            f"Late rows: a stream drops rows behind the watermark ({mark.eventTime().name()}, {mark.delay().toString()}); "
            "of the past no row is dropped."
        )
    if marks and output_mode == "append":
        yield "Closed windows: what the past's watermark closes is emitted while the state is written, and not by the stream."
    for node in every_node(analyzed):
        if class_name(node) == "DeduplicateWithinWatermark":
            within = "one batch" if batches == 1 else f"{batches} batches"
            yield (
                "Duplicates: dropDuplicatesWithinWatermark keeps each key from the time of one of its rows on; "
                f"in {within} that may be another row than in a stream, and a key doesn't expire within a batch."
            )


def _order(nodes: list[Java], jvm: Java) -> Iterator[str]:
    for node in nodes:
        name = class_name(node)
        if name == "Aggregate":
            called = sorted({str(f.prettyName()) for f in _aggregation(node, jvm)[1] if not _is_free(f)})
            if called:
                yield f"Order of rows: {', '.join(called)} may give another value, or other last digits, in another order of rows."
        elif name in _OWN_FUNCTIONS:
            yield (
                f"Order of rows: {_OWN_FUNCTIONS[name]} calls your function once for all of a key's rows in a batch, in no order; "
                "a stream calls it in each batch that has rows of the key."
            )
            if "EventTime" in f"{_call(node, 'timeMode')}{_call(node, 'timeout')}":
                yield "Timers: those before the past's watermark fire after all of its rows, and not in the stream."
        elif name == "GlobalLimit":
            yield "Order of rows: limit takes any rows of the past."


def _call(node: Java, method: str) -> str:
    """What a node's method gives, as a text; empty if the node has no such method."""
    own = {"FlatMapGroupsInPandasWithState": "timeout", "TransformWithStateInPySpark": "timeMode"}
    return str(getattr(node, method)().toString()) if own[class_name(node)] == method else ""


def _is_free(function: Java) -> bool:
    """Whether a function's value is the same in any order of rows."""
    name = class_name(function)
    if name in _FREE_OF_ORDER:
        return True
    if name not in _ADDING:
        return False
    types = {str(type_of(child)) for child in elements(function.children())}
    return not types & (_FLOATING | _LONG if name == "Average" else _FLOATING)


def _clock(analyzed: Java) -> Iterator[str]:
    clock = find_clock(analyzed)
    if clock is not None:
        yield f"The clock: with {clock}, timers, time-outs and TTL count from the time when the state is written."
    called = sorted({found for node in every_node(analyzed) if node.isStreaming() for found in _moments(node)})
    if called:
        yield f"The clock: {', '.join(called)} has its value of when the state is written, for all rows of the past."
    if any(not e.deterministic() for node in every_node(analyzed) if node.isStreaming() for e in elements(node.expressions())):
        yield "Chance: the query has expressions that aren't deterministic, so no two runs have the same state."


def _moments(node: Java) -> Iterator[str]:
    for expression in elements(node.expressions()):
        yield from _times_in(expression)


def _times_in(expression: Java) -> Iterator[str]:
    if class_name(expression) in BATCH_TIMES | PLANNED:
        yield f"{expression.prettyName()}()"
    for child in elements(expression.children()):
        yield from _times_in(child)
