"""Reads Spark's optimized plan through the JVM: the stateful operator, and the nodes above it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.errors import DefinitionError, importing_pyspark, real_time_mode
from millpond.schema.types import WINDOW_METADATA, Field, SparkType, is_window, parse_type
from millpond.spark.shards import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Objects in the JVM; py4j has no types to offer.
Java = Any

# Operators that keep state anywhere over a stream: the plan's class -> Spark's name for the
# operator in checkpoints. Spark numbers them from the sink, depth first. Empty: the name depends on
# the node, or PySpark doesn't write the operator.
_ALWAYS_STATEFUL = {
    "Aggregate": "stateStoreSave",
    "Deduplicate": "dedupe",
    "DeduplicateWithinWatermark": "dedupeWithinWatermark",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithStateInPySpark": "",
    "FlatMapGroupsWithState": "",
    "TransformWithState": "",
}
_JOIN, _LIMIT = "symmetricHashJoin", "globalLimit"
# transformWithState's node says which of its two functions made it.
_TRANSFORMS = {"pandas": "transformWithStateInPandasExec", "python_row": "transformWithStateInPySparkExec"}
# Operators that may use processing time: the plan's class -> the field that tells, and its value
# then.
_CLOCKS = {
    "TransformWithStateInPySpark": ("timeMode", "ProcessingTime"),
    "FlatMapGroupsInPandasWithState": ("timeout", "ProcessingTimeTimeout"),
}
# Operators that only remember which rows have passed: a reader wants to see an aggregation below
# them.
_GIVE_WAY = frozenset({"dedupe", "dedupeWithinWatermark", _LIMIT})
# Operators that may stand between a table's aggregation and the sink: they don't change which rows
# there are, and readers choose the order.
_TRANSPARENT = frozenset({"SubqueryAlias", "EventTimeWatermark", "ResolvedHint", "Sort", "WriteToMicroBatchDataSource"})


@dataclass(frozen=True, slots=True)
class StatefulNode:
    """The stateful operator that a table shows.

    node:      the operator in the optimized plan
    operator:  Spark's operator id
    name:      Spark's name for the operator in checkpoints; empty if it isn't known
    above:     the Project and Filter nodes above it, from the operator towards the sink
    obstacle:  class of a node above it that prevents folding, None if there is none
    """

    node: Java
    operator: int
    name: str
    above: tuple[Java, ...]
    obstacle: str | None


def require_classic(thing: object, attribute: str) -> None:
    """Refuse objects of a Spark Connect session, which gives no access to the JVM.

    Raises:  SPARK_CONNECT; PYSPARK_MISSING.
    """
    with importing_pyspark():
        import pyspark  # noqa: F401 - where it isn't installed no object is of it
    if type(thing).__module__.startswith("pyspark.sql.connect") or not hasattr(thing, attribute):
        raise DefinitionError(
            "SPARK_CONNECT",
            f"{type(thing).__module__}.{type(thing).__name__} belongs to a Spark Connect session, whose plan can't be read.",
            hint="Define the table in a program with a classic SparkSession (without .remote()) and the same DataFrame.",
        )


def not_derivable(table: str, reason: str, hint: str) -> DefinitionError:
    """The error of a plan without a derivable definition."""
    return DefinitionError("NOT_DERIVABLE", f"The table {table!r} can't be derived from its plan: {reason}", hint=hint, table=table)


def refuse_real_time_trigger(trigger: Java) -> None:
    """Refuse a query by its trigger.

    Raises:  UNSUPPORTED for real-time mode.
    """
    if class_name(trigger) == "RealTimeTrigger":
        raise real_time_mode(f"The query runs in real-time mode ({trigger.toString()}).")


def elements(sequence: Java) -> list[Java]:
    """A Scala Seq as a list."""
    return [sequence.apply(i) for i in range(sequence.size())]


def class_name(thing: Java) -> str:
    """A JVM object's class without its package."""
    return str(thing.getClass().getSimpleName())


def type_of(expression: Java) -> SparkType:
    """The data type of a resolved expression.

    Raises:  UNKNOWN_FORMAT for types that aren't known here.
    """
    return parse_type(json.loads(expression.dataType().json()))


def field_of(attribute: Java) -> Field:
    """An attribute as a column of a row."""
    type_, metadata = type_of(attribute), attribute.metadata()
    window = is_window(type_) and any(metadata.contains(word) for word in WINDOW_METADATA)
    return Field(str(attribute.name()), type_, bool(attribute.nullable()), window)


def fields_of(attributes: Iterable[Java]) -> tuple[Field, ...]:
    """Attributes as the columns of a row."""
    return tuple(field_of(a) for a in attributes)


class Zones:
    """Which expressions depend on a session's time zone."""

    def __init__(self, jvm: Java) -> None:
        self._class = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression")
        self._aware: dict[str, bool] = {}

    def used_by(self, e: Java) -> bool:
        """Whether an expression has a time zone and its value depends on it; no if its zone isn't known."""
        name = class_name(e)
        if name not in self._aware:
            self._aware[name] = bool(self._class.isInstance(e))
        return self._aware[name] and (name != "Cast" or bool(e.needsTimeZone())) and bool(e.timeZoneId().isDefined())


def zone_of_session(jsession: Java) -> str:
    """The time zone of a session, as its setting names it."""
    return str(jsession.sessionState().conf().sessionLocalTimeZone())


def is_time_zone(jvm: Java, name: str) -> bool:
    """Whether Spark knows a time zone of this name."""
    from py4j.protocol import Py4JJavaError

    try:
        jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(name)
    except Py4JJavaError:
        return False
    return True


def is_deterministic(df: DataFrame, names: Sequence[str]) -> bool:
    """Whether these columns of a row keep their values when a task runs again."""
    selected = df.select(*[df[quoted(name)] for name in names])
    optimizer = df.sparkSession._jsparkSession.sessionState().optimizer()
    return bool(optimizer.execute(selected._jdf.queryExecution().analyzed()).deterministic())


def find_stateful(plan: Java, *, append: bool) -> StatefulNode | None:
    """The stateful operator nearest to the sink; None if there is none.

    For dropDuplicates and limit over an aggregation, it is the aggregation.

    append:  whether the query runs in append mode, in which a LIMIT over an aggregation keeps its
             count as state
    """
    nearest: StatefulNode | None = None
    for found in stateful_nodes(plan, append=append):
        if found.name not in _GIVE_WAY:
            return found if nearest is None or class_name(found.node) == "Aggregate" else nearest
        nearest = nearest or found
    return nearest


def stateful_nodes(plan: Java, *, append: bool) -> Iterator[StatefulNode]:
    """All stateful operators, from the sink towards the sources.  append: as for `find_stateful`."""
    chain: list[Java] = []
    obstacle: str | None = None
    operator = 0
    for node, is_chain in _preorder(plan, True):
        name = class_name(node)
        if _is_stateful(node, append):
            yield StatefulNode(node, operator, _operator_name(node), tuple(reversed(chain)), obstacle)
            operator += 1
            obstacle = obstacle or name
        elif name in ("Project", "Filter") and is_chain:
            chain.append(node)
        elif name not in _TRANSPARENT:
            obstacle = obstacle or name


def every_node(plan: Java) -> Iterator[Java]:
    """All nodes of a plan, parents first, left before right."""
    return (node for node, _ in _preorder(plan, True))


def streaming_leaves(plan: Java) -> list[Java]:
    """The streams that a plan reads, once for each place that reads them."""
    return [node for node in every_node(plan) if node.isStreaming() and not elements(node.children())]


def find_clock(plan: Java) -> str | None:
    """The argument by which an operator uses processing time, as in its call; None if none does.

    Source:  shouldRunAnotherBatch of TransformWithStateInPySparkExec and
             FlatMapGroupsInPandasWithStateExec, Spark 4.3: after each batch, such an operator asks
             for another one, even without a timer; a TTL counts too.
    """
    for node in every_node(plan):
        method, clock = _CLOCKS.get(class_name(node), ("", ""))
        if method and node.isStreaming() and str(getattr(node, method)().toString()) == clock:
            return f"{method} {clock}"
    return None


def has_watermark(plan: Java) -> bool:
    """Whether any source of a plan has a watermark."""
    return any(class_name(node) == "EventTimeWatermark" for node, _ in _preorder(plan, True))


def _preorder(node: Java, is_chain: bool) -> Iterator[tuple[Java, bool]]:
    """All nodes, parents first, left before right; and whether only nodes with one child stand above."""
    yield node, is_chain
    children = elements(node.children())
    for child in children:
        yield from _preorder(child, is_chain and len(children) == 1)


def _is_stateful(node: Java, append: bool) -> bool:
    """Whether Spark keeps state for a node: only over a streaming source; for joins, only of two streams.

    Source:  StreamingJoinStrategy and StreamingGlobalLimitStrategy, Spark 4.3: a limit with an
             aggregation below it keeps state in append mode only.
    """
    if not node.isStreaming():
        return False
    name = class_name(node)
    if name == "Join":
        return all(bool(child.isStreaming()) for child in elements(node.children()))
    if name == "GlobalLimit":
        return append or not any(class_name(n) == "Aggregate" and n.isStreaming() for n in every_node(node))
    return name in _ALWAYS_STATEFUL


def _operator_name(node: Java) -> str:
    """Spark's name for a stateful node's operator, as its metadata in the checkpoint has it."""
    name = class_name(node)
    if name == "TransformWithStateInPySpark":
        return _TRANSFORMS.get(str(node.userFacingDataType().toString()), "")
    return {"Join": _JOIN, "GlobalLimit": _LIMIT}.get(name) or _ALWAYS_STATEFUL[name]
