"""The stateful operators of a plan, as far as rules look at them.

Keys, watermarks and bounds are read from the analyzed plan, or, where Spark itself decides by the
optimized one, from that: which columns a join's condition bounds, and what aggregates keep.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.spark.derive.batch_plan import BATCH_TIMES, batch_plan
from millpond.spark.derive.plan import Java, class_name, elements, every_node, stateful_nodes, zone_of_session
from millpond.spark.review.facts import JoinSide, KeyColumn, QueryOperator
from millpond.spark.review.kept import kept_lists, unread_fields

_MARK = "spark.watermarkDelayMs"
_WINDOWS = ("spark.timeWindow", "spark.sessionWindow")
_WORD = 8
# A time that py4j passes as a Long: Spark asks for one.
_ANY_TIME_MS = 4_102_444_800_000
# The time of a batch; a date is the same in all batches of a day.
_NOW = BATCH_TIMES | {"CurrentBatchTimestamp"}
_KEYED = frozenset({"Aggregate", "Deduplicate"})


def read_operators(jsession: Java, jvm: Java, analyzed: Java, output_mode: str) -> list[QueryOperator]:
    """The stateful operators of an analyzed plan, from the sink towards the sources."""
    plan = batch_plan(jsession, jvm, analyzed, time_zone=zone_of_session(jsession)).plan
    drawn = _drawn(plan)
    return [_operator(jvm, plan, found.node, found.name, drawn) for found in stateful_nodes(plan, append=output_mode == "append")]


def watermarks_of(plan: Java) -> tuple[str, ...]:
    """The columns of a plan to which withWatermark was applied."""
    marks = [node for node in every_node(plan) if class_name(node) == "EventTimeWatermark"]
    return tuple(dict.fromkeys(str(node.eventTime().name()) for node in marks))


def _operator(jvm: Java, plan: Java, node: Java, name: str, drawn: dict[int, str]) -> QueryOperator:
    kind = class_name(node)
    if kind == "Join":
        return _join(jvm, node, name, drawn)
    keys: list[Java] = []
    if kind == "Aggregate":
        keys = elements(node.groupingExpressions())
    elif kind == "Deduplicate":
        keys = elements(node.keys())
    return QueryOperator(
        name=name,
        keys=tuple(_key(key, drawn) for key in keys),
        lists=tuple(kept_lists(plan, node)) if kind == "Aggregate" else (),
        unread=tuple(unread_fields(plan, node)) if kind == "Aggregate" else (),
        watermarks=watermarks_of(node),
        row_bytes=_least_bytes(keys) + _least_bytes(_buffers(node)) if kind in _KEYED else 0,
    )


def _buffers(node: Java) -> list[Java]:
    """The columns of an aggregation's buffers."""
    if class_name(node) != "Aggregate":
        return []
    found: dict[str, list[Java]] = {}
    for expression in elements(node.aggregateExpressions()):
        for each in _expressions(expression):
            if class_name(each) == "AggregateExpression":
                found[str(each.aggregateFunction().toString())] = elements(each.aggregateFunction().aggBufferAttributes())
    return [column for columns in found.values() for column in columns]


def _least_bytes(columns: list[Java]) -> int:
    """Of an UnsafeRow: a bit for each column's NULL, in words, and a word for each column."""
    return _WORD * ((len(columns) + 63) // 64 + len(columns)) if columns else 0


def _key(key: Java, drawn: dict[int, str]) -> KeyColumn:
    metadata = key.metadata() if hasattr(key, "metadata") and class_name(key) in ("AttributeReference", "Alias") else None
    return KeyColumn(
        name=str(key.name()) if metadata is not None else str(key.toString()),
        watermarked=metadata is not None and bool(metadata.contains(_MARK)),
        window=metadata is not None and any(metadata.contains(word) for word in _WINDOWS),
        drawn=_drawn_by(key, drawn),
    )


def _drawn(plan: Java) -> dict[int, str]:
    """Expression id -> the function that draws it, of every column that a projection computes so."""
    found: dict[int, str] = {}
    for node in reversed(list(every_node(plan))):
        if class_name(node) != "Project":
            continue
        for expression in elements(node.projectList()):
            if class_name(expression) == "Alias" and (function := _drawn_by(expression.child(), found)) is not None:
                found[int(expression.exprId().id())] = function
    return found


def _drawn_by(expression: Java, drawn: dict[int, str]) -> str | None:
    """The function that gives an expression another value at each run, or in each batch."""
    name = class_name(expression)
    if name == "AttributeReference":
        return drawn.get(int(expression.exprId().id()))
    if name in _NOW and str(expression.dataType().typeName()).startswith("timestamp"):
        return "current_timestamp()"
    if name == "Alias" or (name == "Cast" and str(expression.dataType().typeName()) != "date"):
        return _drawn_by(expression.child(), drawn)
    if not expression.deterministic():
        drawing = (each for each in _expressions(expression) if _draws_itself(each))
        return next((f"{each.prettyName()}()" for each in drawing), None)
    return None


def _draws_itself(expression: Java) -> bool:
    """Whether it isn't deterministic by itself; an hour or a day of the batch's time isn't drawn."""
    if expression.deterministic() or class_name(expression) in _NOW:
        return False
    return all(child.deterministic() for child in elements(expression.children()))


def _expressions(expression: Java) -> Iterator[Java]:
    yield expression
    for child in elements(expression.children()):
        yield from _expressions(child)


def _join(jvm: Java, node: Java, name: str, drawn: dict[int, str]) -> QueryOperator:
    """A join of two streams.

    Source:  SymmetricHashJoinExec and StreamingSymmetricHashJoinHelper, Spark 4.3, which is asked.
    """
    extracted = jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(node)
    if not extracted.isDefined():
        return QueryOperator(name=name, watermarks=watermarks_of(node))
    equal = extracted.get()
    left_keys, right_keys = equal._2(), equal._3()
    helper = jvm.org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinHelper
    at = jvm.scala.Option.apply(_ANY_TIME_MS)
    sides = node.left(), node.right()
    columns = [elements(side.output()) for side in sides]
    bounds = helper.getStateWatermarkPredicates(
        sides[0].output(), sides[1].output(), left_keys, right_keys, node.condition(), at, at, True
    )
    bounded = bool(bounds.left().isDefined()), bool(bounds.right().isDefined())
    return QueryOperator(
        name=name,
        keys=tuple(_key(key, drawn) for key in (*elements(left_keys), *elements(right_keys))),
        sides=tuple(
            JoinSide(name=side, watermarked=any(bool(c.metadata().contains(_MARK)) for c in columns[place]), bounded=bounded[place])
            for place, side in enumerate(("left", "right"))
        ),
        watermarks=watermarks_of(node),
        row_bytes=min(map(_least_bytes, columns)),
    )
