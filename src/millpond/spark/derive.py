"""A table's definition from a DataFrame's plan.

1. Optimize the plan and find the stateful operator nearest to the sink.
2. Ask Spark which buffers its aggregates have, and in which order (PhysicalAggregation, as Spark's own planner does).
3. Fold the operator's result expressions, and the Project and Filter nodes above it, into expressions over key and buffers.
4. Output columns that are key columns name the key; the others become value columns.
5. What can't be expressed is served as the buffers that Spark stores, and named in the definition's warnings.

Of dropDuplicates and limit the plan tells all columns.  Of joins and of the user's own functions over state it doesn't: their
tables only get a name, see `schema.named`.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from millpond.schema.definition import (
    KeyColumn,
    TableDefinition,
    ValueColumn,
    check_table_name,
    key_columns,
    unique_names,
)
from millpond.schema.expression import Expression, buffer_column, key_column
from millpond.schema.named import Entry, NamedOperator
from millpond.schema.types import Field, atomic
from millpond.schema.undefined import StoreShape, undefined_table
from millpond.spark.derive_aggregate import translate_aggregate
from millpond.spark.derive_expression import NotExpressible, Scope, Value, translate
from millpond.spark.derive_parts import grouped_in_parts, over_salts, refuse_partial_rows, variable_parts
from millpond.spark.derive_sessions import SESSIONS, Output, Sessions, session_of
from millpond.spark.plan import (
    Java,
    StatefulNode,
    class_name,
    elements,
    field_of,
    fields_of,
    find_stateful,
    not_derivable,
    optimized_plan,
    require_classic,
    session_time_zone,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BOOLEAN = atomic("boolean")
_KEYS_ONLY = frozenset({"dedupe", "dedupeWithinWatermark", "globalLimit"})
_FORMAT_SETTING = "spark.sql.streaming.aggregation.stateFormatVersion"


class MillpondWarning(UserWarning):
    """Something of a table can't be shown as the job shows it; the table is served all the same."""


def derive(
    df: DataFrame,
    *,
    table: str,
    strict: bool = False,
    output_mode: str = "update",
    aggregation_format: int | None = None,
) -> Entry:
    """What the state of this streaming DataFrame means, taken from its plan; nothing is started.

    strict:              refuse what can't be derived, instead of serving raw buffers with a MillpondWarning
    output_mode:         update, complete or append
    aggregation_format:  Spark's aggregation state format as the checkpoint pins it; None for the session's setting
    Raises:  NOT_DERIVABLE, SPARK_CONNECT, INVALID_NAME.
    """
    require_classic(df, "_jdf")
    spark = df.sparkSession
    return derive_plan(
        spark._jsparkSession,
        df._jdf.queryExecution().analyzed(),
        spark._jvm,
        table=table,
        strict=strict,
        output_mode=output_mode,
        aggregation_format=aggregation_format,
        time_zone=session_time_zone(spark._jsparkSession),
    )


def derive_plan(
    jsession: Java,
    analyzed: Java,
    jvm: Java,
    *,
    table: str,
    strict: bool = False,
    output_mode: str = "update",
    aggregation_format: int | None = None,
    time_zone: str | None = None,
) -> Entry:
    """The same for an analyzed plan in the JVM.

    time_zone:  of the session that runs the job, None where it isn't known
    """
    check_table_name(table)
    if not analyzed.isStreaming():
        raise not_derivable(table, "it reads no stream, so it keeps no state", "Read the source with spark.readStream.")
    found = find_stateful(optimized_plan(jsession, analyzed), append=output_mode.lower() == "append")
    if found is None:
        raise not_derivable(
            table,
            "none of its operators keeps state",
            "Aggregate, join or deduplicate the stream, or use transformWithState: then there is something to show.",
        )
    if aggregation_format is None:
        aggregation_format = int(jsession.conf().get(_FORMAT_SETTING, "2"))
    definition = _define(found, jvm, table, aggregation_format, in_job=time_zone is not None)
    if isinstance(definition, NamedOperator):
        return definition
    definition = dataclasses.replace(definition, session_time_zone=time_zone)
    if definition.warnings and strict:
        raise not_derivable(table, " ".join(definition.warnings), "Leave strict out to serve these as raw buffers.")
    for sentence in definition.warnings:
        warnings.warn(f"{table}: {sentence}", MillpondWarning, stacklevel=_caller_depth())
    return definition


def _caller_depth() -> int:
    """How many frames up the first one outside this package is, as warnings count them from the function that asks."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("millpond."):
        depth, frame = depth + 1, frame.f_back
    return depth


def _define(found: StatefulNode, jvm: Java, table: str, aggregation_format: int, *, in_job: bool) -> Entry:
    if not found.name:
        hint = "Start it with plain Spark, and read its other operators."
        raise not_derivable(table, "the state of its last operator isn't written in a way known here", hint)
    if found.name in _KEYS_ONLY:
        return _without_values(found, table)
    if found.name != "stateStoreSave":
        parts = variable_parts(found.node, table)
        return NamedOperator(table=table, operator=found.operator, operator_name=found.name, parts=parts)
    return _aggregation(found, jvm, table, aggregation_format, in_job=in_job)


def _aggregation(found: StatefulNode, jvm: Java, table: str, aggregation_format: int, *, in_job: bool) -> TableDefinition:
    parts = jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation.unapply(found.node)
    if parts.isEmpty():
        raise not_derivable(table, "Spark plans its aggregation in no way known here.", "Report this plan.")
    grouping, aggregates, results = (elements(getattr(parts.get(), f"_{i}")()) for i in (1, 2, 3))
    buffers = [elements(a.aggregateFunction().aggBufferAttributes()) for a in aggregates]
    flat = fields_of(attribute for group in buffers for attribute in group)
    session = session_of(grouping)
    key_schema = session.key_schema if session else fields_of(grouping)
    # Format 1 stores the key's columns once more in front of the buffers; session windows store all grouping columns there.
    before = session.grouping if session else key_schema if aggregation_format == 1 else ()
    shape = StoreShape(
        operator=found.operator,
        operator_name=SESSIONS if session else found.name,
        store="default",
        family="",
        key=key_schema,
        value=(*before, *flat),
    )
    salts = grouped_in_parts(grouping, table)
    if salts is not None:
        refuse_partial_rows(found, table, is_session=session is not None, has_keys=bool(before))
    if found.obstacle is not None:
        reason = f"{found.obstacle} stands between the aggregation and the output, so its buffers are shown as stored."
        return _raw(table, shape, reason)
    scope = Scope(same_java=in_job, same_zone=in_job)
    for index, attribute in enumerate(grouping):
        scope.add(attribute, session.column(index) if session else key_column(index, field_of(attribute).type))
    first, each_place = len(before), []
    for aggregate, attributes in zip(aggregates, buffers, strict=True):
        places = tuple(range(first, first + len(attributes)))
        first += len(attributes)
        each_place.append(places)
        scope.add_lazily(aggregate.resultId().id(), _aggregate(aggregate, places, shape.value), places)
    try:
        outputs, having = _fold(found, results, scope)
    except NotExpressible as obstacle:
        reason = f"The filter after the aggregation can't be evaluated here ({obstacle}), so the buffers are shown as stored."
        return _raw(table, shape, reason)
    definition = _assemble(table, shape, outputs, having, session)
    return definition if salts is None else over_salts(definition, salts, list(zip(aggregates, each_place, strict=True)))


def _aggregate(aggregate: Java, places: tuple[int, ...], value_schema: tuple[Field, ...]) -> Callable[[], Expression]:
    return lambda: translate_aggregate(aggregate, places, value_schema)


def _fold(found: StatefulNode, results: list[Java], scope: Scope) -> tuple[list[Output], Expression | None]:
    """The output columns by name, as Spark orders them, and the condition for a row to be in the table.

    Raises:  NotExpressible where a filter isn't.
    """
    outputs = [_bind(e, scope) for e in results]
    having: Expression | None = None
    for node in found.above:
        if class_name(node) == "Filter":
            condition = translate(node.condition(), scope)
            having = condition if having is None else Expression("and", _BOOLEAN, (having, condition))
        else:
            outputs = [_bind(e, scope) for e in elements(node.projectList())]
    return outputs, having


def _bind(named: Java, scope: Scope) -> Output:
    """Translate a named expression, and let the nodes above refer to it."""
    name = str(named.name())
    value: Value
    try:
        value = translate(named, scope)
    except NotExpressible as obstacle:
        value = obstacle
    scope.add(named, value)
    return name, value


def _assemble(
    table: str,
    shape: StoreShape,
    outputs: list[Output],
    having: Expression | None,
    session: Sessions | None,
) -> TableDefinition:
    """Key columns under their output names, then all other outputs, raw where they must be."""
    keys = list(key_columns(shape.key))
    if session:
        keys[-1] = dataclasses.replace(keys[-1], type=session.time)
        outputs = session.with_bounds(outputs)
    named: dict[tuple[int, tuple[str, ...]], str] = {}
    values: list[ValueColumn] = []
    sentences: list[str] = []
    for name, value in outputs:
        if isinstance(value, NotExpressible):
            values += _raw_columns(name, value, shape.value, sentences)
        elif not _names_key(name, value, keys, named):
            values.append(ValueColumn(name, value.type, value))
    keys = [dataclasses.replace(k, name=named.get((k.index, k.path), k.name)) for k in keys]
    # A key column that isn't selected gives way to an output column of its name.
    taken = {k.name for k in keys if (k.index, k.path) in named} | {v.name for v in values}
    keys = [k if (k.index, k.path) in named or k.name not in taken else dataclasses.replace(k, name=f"{k.name}_key") for k in keys]
    names = unique_names([k.name for k in keys] + [v.name for v in values])
    return TableDefinition(
        table=table,
        operator=shape.operator,
        key=tuple(dataclasses.replace(k, name=n) for k, n in zip(keys, names, strict=False)),
        values=tuple(dataclasses.replace(v, name=n) for v, n in zip(values, names[len(keys) :], strict=True)),
        key_schema=shape.key,
        value_schema=shape.value,
        having=having,
        warnings=tuple(sentences),
    )


def _names_key(name: str, value: Expression, keys: list[KeyColumn], named: dict[tuple[int, tuple[str, ...]], str]) -> bool:
    """Whether an output column is a key column (or a whole window), which it then names."""
    if value.op != "key":
        return False
    index, path = value.options["index"], tuple(value.options["path"])
    members = [k for k in keys if k.index == index and k.path[: len(path)] == path]
    places = [(k.index, k.path) for k in members]
    if not members or any(place in named for place in places):
        return False
    for place in places:
        rest = place[1][len(path) :]
        named[place] = "_".join((name, *rest))
    return True


def _raw_columns(name: str, obstacle: NotExpressible, value_schema: tuple[Field, ...], sentences: list[str]) -> list[ValueColumn]:
    """The buffers behind a column that can't be expressed, `<column>_<buffer>` each."""
    reason = f"The column {name!r} can't be computed here: {obstacle}."
    if not obstacle.buffers:
        sentences.append(f"{reason} It is left out.")
        return []
    sentences.append(f"{reason} Its buffers are shown as stored.")
    fields = [(i, value_schema[i]) for i in sorted(obstacle.buffers)]
    return [ValueColumn(f"{name}_{f.name}", f.type, buffer_column(i, f.type), reason) for i, f in fields]


def _raw(table: str, shape: StoreShape, reason: str) -> TableDefinition:
    return dataclasses.replace(undefined_table(table, shape, reason), derived=True)


def _without_values(found: StatefulNode, table: str) -> TableDefinition:
    """The state of dropDuplicates and limit: keys, how long they are kept where that is limited, or a count."""
    if found.name == "globalLimit":
        key: tuple[Field, ...] = (Field("key", atomic("void")),)
        value = Field("value", atomic("long"))
    else:
        key = fields_of(elements(found.node.keys()))
        within = found.name == "dedupeWithinWatermark"
        value = Field("expiresAtMicros", atomic("long")) if within else Field("__dummy__", atomic("void"))
    shape = StoreShape(operator=found.operator, operator_name=found.name, store="default", family="", key=key, value=(value,))
    return undefined_table(table, shape)
