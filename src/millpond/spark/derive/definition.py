"""A table's definition from a DataFrame's plan.

1. Take the plan that a micro-batch runs (`batch_plan`) and find the stateful operator nearest to
   the sink.
2. Ask Spark for the buffers of its aggregates, in their order (PhysicalAggregation, as Spark's own
   planner does).
3. Fold the operator's result expressions, and the Project and Filter nodes above it, into
   expressions over key and buffers.
4. Output columns that are key columns name the key; the others become value columns.
5. For a column that can't be expressed, serve the buffers that Spark stores, and name it in the
   definition's warnings.

For dropDuplicates and limit, the plan tells all columns.  For joins and the user's own functions
over state it doesn't: their tables only get a name, see `schema.definition.operator_name`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.checkpoint.rows.unsaferow import Stored
from millpond.errors import DefinitionError
from millpond.schema.definition.default_table import undefined_table
from millpond.schema.definition.expression import Expression, key_column
from millpond.schema.definition.meaning import Meaning
from millpond.schema.definition.operator_name import Entry, NamedOperator
from millpond.schema.definition.table import TableDefinition, check_table_name, key_columns
from millpond.schema.store import StoreSchema
from millpond.schema.types import Field, atomic
from millpond.spark.derive.aggregate import translate_aggregate
from millpond.spark.derive.batch_plan import BatchPlan, batch_plan
from millpond.spark.derive.called import replaced_names
from millpond.spark.derive.columns import Output, raw_table, table_of
from millpond.spark.derive.expression import NotExpressible, Scope, Value, buffers_of, refuse_reordered, translate
from millpond.spark.derive.options import rules_of_zone
from millpond.spark.derive.parts import grouped_in_parts, only_spreads, over_salts, refuse_partial_rows, variable_parts
from millpond.spark.derive.plan import (
    Java,
    StatefulNode,
    Zones,
    class_name,
    elements,
    field_of,
    fields_of,
    find_stateful,
    not_derivable,
    require_classic,
    stateful_nodes,
    zone_of_session,
)
from millpond.spark.derive.resolutions import described, over_buckets
from millpond.spark.derive.sessions import SESSIONS, session_of
from millpond.spark.derive.start_values import start_values
from millpond.spark.derive.state_words import StateWords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BOOLEAN = atomic("boolean")
_KEYS_ONLY = frozenset({"dedupe", "dedupeWithinWatermark", "globalLimit"})
_FORMAT_SETTING = "spark.sql.streaming.aggregation.stateFormatVersion"


class MillpondWarning(UserWarning):
    """Millpond can't show a part of a table as the job does; it serves the table all the same."""


def derive(
    df: DataFrame,
    *,
    table: str,
    strict: bool = False,
    output_mode: str = "update",
    pinned: Mapping[str, str] | None = None,
) -> Entry:
    """The meaning of a streaming DataFrame's state, from its plan; this starts nothing.

    strict:              refuse a state whose meaning can't be derived, instead of serving raw
                         buffers with a MillpondWarning
    output_mode:         update, complete or append
    pinned:              the settings that the query's checkpoint pins; None or empty for the
                         session's
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
        pinned=pinned,
        time_zone=zone_of_session(spark._jsparkSession),
    )


def derive_plan(
    jsession: Java,
    analyzed: Java,
    jvm: Java,
    *,
    table: str,
    strict: bool = False,
    output_mode: str = "update",
    pinned: Mapping[str, str] | None = None,
    time_zone: str | None = None,
    moved: bool = False,
) -> Entry:
    """The same for an analyzed plan in the JVM.

    time_zone:  of the session that runs the job, None if it isn't known
    moved:      whether the plan was analyzed in another session than the job's, so that its time
                zone doesn't count
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    check_table_name(table)
    if not analyzed.isStreaming():
        raise not_derivable(table, "it reads no stream, so it has no state", "Read the source with spark.readStream.")
    try:
        batch = batch_plan(jsession, jvm, analyzed, time_zone=time_zone, moved=moved, pinned=pinned)
    except (PySparkException, Py4JError) as failed:
        reason = str(failed).partition("\n")[0]
        hint = "Mend the query; a job with the same settings fails at its first batch."
        raise not_derivable(table, f"Spark can't plan it: {reason}", hint) from failed
    found = find_stateful(batch.plan, append=output_mode.lower() == "append")
    if found is None:
        raise not_derivable(
            table,
            "none of its operators keeps state",
            "Aggregate, join or deduplicate the stream, or use transformWithState.",
        )
    # A checkpoint with batches but without the setting is older than the setting, and has format 1.
    aggregation_format = int(pinned.get(_FORMAT_SETTING, "1") if pinned else jsession.conf().get(_FORMAT_SETTING, "2"))
    words = StateWords(found.node, Zones(jvm), (time_zone if moved else None) or zone_of_session(jsession))
    scope = Scope(same_java=time_zone is not None and not moved, same_zone=time_zone is not None, called=replaced_names(analyzed))
    definition = _define(found, batch, words, scope, jvm, table, aggregation_format)
    if isinstance(definition, NamedOperator):
        return definition
    definition = replace(definition, session_time_zone=time_zone)
    if definition.warnings and strict:
        raise not_derivable(table, " ".join(definition.warnings), "Leave strict out to serve these as raw buffers.")
    for sentence in definition.warnings:
        warnings.warn(f"{table}: {sentence}", MillpondWarning, stacklevel=_caller_depth())
    return definition


def meanings_of(df: DataFrame, output_mode: str, pinned: Mapping[str, str]) -> dict[int, Meaning]:
    """The meaning of the state of every operator, by Spark's operator id; without those that have none.

    pinned:  the settings that the query's checkpoint pins
    Raises:  what Spark raises if it can't plan the query.
    """
    spark = df.sparkSession
    zone = zone_of_session(spark._jsparkSession)
    batch = batch_plan(spark._jsparkSession, spark._jvm, df._jdf.queryExecution().analyzed(), time_zone=zone, pinned=pinned)
    found: dict[int, Meaning] = {}
    for stateful in stateful_nodes(batch.plan, append=output_mode == "append"):
        words = StateWords(stateful.node, Zones(spark._jvm), zone)
        try:
            found[stateful.operator] = _meaning(stateful, words, spark._jvm)
        except DefinitionError:  # its parts aren't known
            continue
    return found


def first_buffers_of(df: DataFrame, output_mode: str) -> dict[int, list[tuple[Stored, ...]]]:
    """The buffers of each aggregate before its first row, by Spark's operator id, in the order of `meanings_of`."""
    spark = df.sparkSession
    zone = zone_of_session(spark._jsparkSession)
    batch = batch_plan(spark._jsparkSession, spark._jvm, df._jdf.queryExecution().analyzed(), time_zone=zone)
    return {
        found.operator: start_values(_physical(found, spark._jvm, found.name)[1], spark._jvm)
        for found in stateful_nodes(batch.plan, append=output_mode == "append")
        if found.name == "stateStoreSave"
    }


def _meaning(found: StatefulNode, words: StateWords, jvm: Java) -> Meaning:
    """The words for the state of any operator.  Raises NOT_DERIVABLE."""
    if found.name == "stateStoreSave":
        grouping, aggregates, _ = _physical(found, jvm, found.name)
        return words.of_state(grouping, aggregates, in_parts=grouped_in_parts(grouping, found.name) is not None)
    if found.name in _KEYS_ONLY:
        return words.of_state([] if found.name == "globalLimit" else elements(found.node.keys()), [])
    key = _state_key(found)
    return words.of_state(key, [], in_parts=variable_parts(found.node, found.name) is not None or only_spreads(key))


def _physical(found: StatefulNode, jvm: Java, table: str) -> tuple[list[Java], list[Java], list[Java]]:
    """The grouping columns of an aggregation, its aggregates, and its results.  Raises NOT_DERIVABLE."""
    parts = jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation.unapply(found.node)
    if parts.isEmpty():
        raise not_derivable(table, "the plan of its aggregation isn't known here.", "Report this plan.")
    grouping, aggregates, results = (elements(getattr(parts.get(), f"_{i}")()) for i in (1, 2, 3))
    return grouping, aggregates, results


def _caller_depth() -> int:
    """The `stacklevel` of the first frame outside this package, counted from the calling function."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("millpond."):
        depth, frame = depth + 1, frame.f_back
    return depth


def _define(
    found: StatefulNode, batch: BatchPlan, words: StateWords, scope: Scope, jvm: Java, table: str, aggregation_format: int
) -> Entry:
    if not found.name:
        hint = "Start it with plain Spark, and read its other operators."
        raise not_derivable(table, "the state format of its last operator isn't known here", hint)
    if found.name in _KEYS_ONLY:
        return _without_values(found, words, table)
    if found.name != "stateStoreSave":
        parts = variable_parts(found.node, table)
        key = _state_key(found)
        meaning = words.of_state(key, [], in_parts=parts is not None or only_spreads(key))
        return NamedOperator(table=table, operator=found.operator, operator_name=found.name, parts=parts, meaning=meaning)
    return _aggregation(found, batch, words, scope, jvm, table, aggregation_format)


def _aggregation(
    found: StatefulNode, batch: BatchPlan, words: StateWords, scope: Scope, jvm: Java, table: str, aggregation_format: int
) -> TableDefinition:
    grouping, aggregates, results = _physical(found, jvm, table)
    buffers = [elements(a.aggregateFunction().aggBufferAttributes()) for a in aggregates]
    flat = fields_of(attribute for group in buffers for attribute in group)
    session = session_of(grouping)
    key_schema = session.key_schema if session else fields_of(grouping)
    if not key_schema and not flat:
        raise not_derivable(table, "its state has neither keys nor values.", "Start it with plain Spark: there is nothing to read.")
    # Format 1 repeats the key's columns in front of the buffers; session windows have all grouping
    # columns there.
    before = session.grouping if session else key_schema if aggregation_format == 1 else ()
    shape = StoreSchema(
        operator=found.operator,
        operator_name=SESSIONS if session else found.name,
        store="default",
        index=0,
        key=key_schema,
        value=(*before, *flat),
        single=not key_schema,
    )
    salts = grouped_in_parts(grouping, table)
    if salts is not None:
        refuse_partial_rows(found, table, is_session=session is not None, has_keys=bool(before))
    resolutions = described(grouping, table)
    meaning = words.of_state(grouping, aggregates, in_parts=salts is not None)
    for index, attribute in enumerate(grouping):
        scope.add(attribute, session.column(index) if session else key_column(index, field_of(attribute).type))
    first, each_place = len(before), []
    for aggregate, attributes in zip(aggregates, buffers, strict=True):
        places = tuple(range(first, first + len(attributes)))
        first += len(attributes)
        each_place.append(places)
        scope.add_lazily(aggregate.resultId().id(), _aggregate(aggregate, places, shape.value, scope), places)
    try:
        outputs, having = _fold(found, batch, results, scope)
        if not key_schema and all(isinstance(o.value, NotExpressible) and not o.value.buffers for o in outputs):
            # A row without columns couldn't be told from a row that isn't there.
            raise NotExpressible("no column of its only row comes from the state")
    except NotExpressible as obstacle:
        definition = raw_table(table, shape, str(obstacle), _raw_outputs(batch, grouping, results))
        return replace(definition, meaning=meaning)
    keys = list(key_columns(shape.key))
    if session:
        keys[-1] = replace(keys[-1], type=session.time)
        outputs = session.with_bounds(outputs)
    definition = replace(table_of(table, shape, keys, outputs, having), meaning=meaning)
    placed = list(zip(aggregates, each_place, strict=True))
    if resolutions is not None:
        definition = over_buckets(definition, resolutions, placed, rules_of_zone(jvm, words.time_zone))
    return definition if salts is None else over_salts(definition, salts, placed)


def _state_key(found: StatefulNode) -> list[Java]:
    """The key of an operator's state: its grouping columns, or the condition of a join.

    Source:  FlatMapGroupsInPandasWithState, TransformWithStateInPySpark (whose left attributes are
             these) and Join, Spark 4.3.
    """
    node = found.node
    name = class_name(node)
    if name == "Join":
        return [node.condition().get()] if node.condition().isDefined() else []
    return elements(node.leftAttributes() if name == "TransformWithStateInPySpark" else node.groupingAttributes())


def _raw_outputs(batch: BatchPlan, grouping: list[Java], results: list[Java]) -> Iterator[tuple[str, bool]]:
    """The query's columns by name, each with whether it is a grouping column of that name."""
    ids = {int(column.exprId().id()) for column in grouping}
    own = {int(e.exprId().id()) for e in results if class_name(e) == "Alias" and _identity(e.child()) in ids}
    called = {str(column.name()) for column in grouping}
    for name, identity in batch.outputs:
        yield name, name in called and identity in ids | own


def _identity(expression: Java) -> int | None:
    return int(expression.exprId().id()) if class_name(expression) == "AttributeReference" else None


def _aggregate(aggregate: Java, places: tuple[int, ...], value_schema: tuple[Field, ...], scope: Scope) -> Callable[[], Expression]:
    return lambda: translate_aggregate(aggregate, places, value_schema, scope)


def _fold(found: StatefulNode, batch: BatchPlan, results: list[Java], scope: Scope) -> tuple[list[Output], Expression | None]:
    """The output columns by name, in Spark's order, and the condition for a row to be in the table.

    Raises:  NotExpressible, with a sentence, if a node above the aggregation can't be folded.
    """
    if found.obstacle is not None:
        raise NotExpressible(f"{found.obstacle} stands between the aggregation and the output, so its buffers are shown as stored.")
    filtered = "The filter after the aggregation can't be evaluated here ({}), so the buffers are shown as stored."
    if batch.mixed is not None:
        raise NotExpressible(f"What is computed is unknown ({batch.mixed}), so the buffers are shown as stored.")
    if batch.filtered is not None:
        raise NotExpressible(filtered.format(batch.filtered))
    outputs = [_bind(e, scope) for e in results]
    having: Expression | None = None
    for node in found.above:
        if class_name(node) == "Filter":
            try:
                condition = translate(node.condition(), scope)
            except NotExpressible as obstacle:
                raise NotExpressible(filtered.format(obstacle)) from obstacle
            having = condition if having is None else Expression("and", _BOOLEAN, (having, condition))
        else:
            outputs = [_bind(e, scope) for e in elements(node.projectList())]
    # The optimizer sometimes renames columns; Spark shows the names of the analyzed plan.
    return [_named(out, *column, batch) for out, column in zip(outputs, batch.outputs, strict=True)], having


def _named(value: Value, name: str, identity: int, batch: BatchPlan) -> Output:
    foreign = batch.foreign.get(identity)
    if foreign is None and isinstance(value, Expression):
        try:
            refuse_reordered(value)
        except NotExpressible as obstacle:
            return Output(name, obstacle)
    return Output(name, value if foreign is None else NotExpressible(foreign, buffers_of(value)))


def _bind(named: Java, scope: Scope) -> Value:
    """Translate a named expression, so that the nodes above can refer to it."""
    value: Value
    try:
        value = translate(named, scope)
    except NotExpressible as obstacle:
        value = obstacle
    scope.add(named, value)
    return value


def _without_values(found: StatefulNode, words: StateWords, table: str) -> TableDefinition:
    """The state of dropDuplicates and limit: keys, with their expiry if they have one, or a count."""
    if found.name == "globalLimit":
        columns = []
        key: tuple[Field, ...] = (Field("key", atomic("void")),)
        value = Field("value", atomic("long"))
    else:
        columns = elements(found.node.keys())
        key = fields_of(columns)
        within = found.name == "dedupeWithinWatermark"
        value = Field("expiresAtMicros", atomic("long")) if within else Field("__dummy__", atomic("void"))
    shape = StoreSchema(
        operator=found.operator,
        operator_name=found.name,
        store="default",
        index=0,
        key=key,
        value=(value,),
        single=found.name == "globalLimit",
    )
    return replace(undefined_table(table, shape), meaning=words.of_state(columns, []))
