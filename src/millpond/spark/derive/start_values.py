"""The buffers with which Spark begins a group: those of each aggregate function before its first row."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.checkpoint.rows.unsaferow import Stored, decoder
from millpond.spark.derive.plan import Java, elements, fields_of

_SQL = "org.apache.spark.sql.catalyst.expressions.aggregate"


def start_values(aggregates: Iterable[Java], jvm: Java) -> list[tuple[Stored, ...]]:
    """The first buffers of each AggregateExpression, in stored form.

    Source:  AggregationIterator and ObjectAggregationIterator, Spark 4.3.
    """
    return [_first_buffers(aggregate.aggregateFunction(), jvm) for aggregate in aggregates]


def _first_buffers(function: Java, jvm: Java) -> tuple[Stored, ...]:
    catalyst = jvm.org.apache.spark.sql.catalyst
    attributes = elements(function.aggBufferAttributes())
    if _is(function, "DeclarativeAggregate", jvm):
        values, row = function.initialValues(), catalyst.InternalRow.empty()
    else:
        function = function.withNewMutableAggBufferOffset(0)
        row = catalyst.expressions.GenericInternalRow(len(attributes))
        function.initialize(row)
        if _is(function, "TypedImperativeAggregate", jvm):
            function.serializeAggregateBufferInPlace(row)
        places = jvm.java.util.ArrayList()
        for place, attribute in enumerate(attributes):
            places.add(catalyst.expressions.BoundReference(place, attribute.dataType(), True))
        values = jvm.org.apache.spark.api.python.PythonUtils.toSeq(places)
    # Not a generated projection: py4j takes two generated classes of one name for the same.
    written = catalyst.expressions.InterpretedUnsafeProjection.createProjection(values).apply(row)
    return decoder(fields_of(attributes))(bytes(written.getBytes()))


def _is(function: Java, name: str, jvm: Java) -> bool:
    loader = jvm.Thread.currentThread().getContextClassLoader()
    return bool(jvm.java.lang.Class.forName(f"{_SQL}.{name}", True, loader).isInstance(function))
