"""The meaning of an aggregation's state, in words that are the same in every run.

They name the grouping expressions, and the functions with their inputs, position by position. Two
queries with the same words have the same state: Spark can continue the checkpoint of one with the
other, and the rows mean the same.  The words have names of the source's columns, but not those that
the query gives, which have nothing to do with positions.  They leave out filters below the
aggregation: these decide which rows come in, not what is computed from them.

Source:  Aggregate, Project and the expressions of Spark 4.3's optimized plan.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from millpond.schema.definition.meaning import Meaning
from millpond.spark.derive.plan import Java, Zones, class_name, elements
from millpond.spark.derive.resolutions import words_of_buckets

PART = "its part"
OF_SESSION = " in the session's zone"
_SAME = frozenset({"Alias", "KnownFloatingPointNormalized", "KnownNotNull", "KnownNullable", "KnownNotContainsNull"})
# Their seed differs in every run.
_RANDOM = frozenset({"Rand", "Randn", "Uuid", "Shuffle", "RandStr", "Uniform"})
_IDS = re.compile(r"#\d+L?")
# Columns use columns: written out at each use, their words would double with each step.
_MOST_LETTERS = 1000


class StateWords:
    """The words for expressions over the columns of a plan."""

    def __init__(self, plan: Java, zones: Zones, time_zone: str) -> None:
        """time_zone: that of the job's session; the words only say that it is the session's."""
        self._plan = plan
        self._zones = zones
        self.time_zone = time_zone
        self._aliases: dict[int, Java] = {}
        self._labels: dict[int, str] = {}
        self._of_alias: dict[int, str] = {}

    def of_state(self, grouping: list[Java], aggregates: list[Java], *, in_parts: bool = False) -> Meaning:
        """The words for a state: its grouping columns, and its aggregates.

        in_parts:  whether the first grouping column tells parts; how rows are spread over these
                   doesn't count
        """
        if not self._labels:
            self._read()
        words = [PART if in_parts and i == 0 else _short(self._of(column)) for i, column in enumerate(grouping)]
        for i, text in words_of_buckets(grouping).items():
            words[i] = text
        buffers = tuple(int(aggregate.aggregateFunction().aggBufferAttributes().size()) for aggregate in aggregates)
        return Meaning(tuple(words), tuple(_short(self._of(aggregate)) for aggregate in aggregates), buffers)

    def _read(self) -> None:
        """The meaning of each attribute: an expression, or a column of a source or of an opaque node."""
        leaves = 0
        nodes = list(_nodes(self._plan))
        single = sum(1 for node in nodes if not elements(node.children())) == 1
        # Sources first: a column that a node passes on keeps its name from below.
        for node in reversed(nodes):
            leaf = not elements(node.children())
            expressions = elements(node.expressions())
            for expression in expressions:
                if class_name(expression) == "Alias":
                    self._aliases[int(expression.exprId().id())] = expression.child()
            made_by: str | None = None
            for attribute in elements(node.output()):
                identity, name = int(attribute.exprId().id()), str(attribute.name())
                if identity not in self._aliases and identity not in self._labels:
                    if leaf:
                        self._labels[identity] = name if single else f"{name}@{leaves}"
                        continue
                    made_by = made_by or _short(f"{class_name(node)}({', '.join(map(self._of, expressions))})")
                    self._labels[identity] = f"{made_by}.{name}"
            leaves += leaf

    def _of(self, e: Java) -> str:
        """The words for one expression."""
        name = class_name(e)
        if name == "AttributeReference":
            identity = int(e.exprId().id())
            if identity not in self._of_alias and identity in self._aliases:
                self._of_alias[identity] = _short(self._of(self._aliases[identity]))
            return self._of_alias.get(identity) or self._labels.get(identity, str(e.name()))
        if name in _SAME:
            return self._of(e.child())
        if name == "Literal":
            return f"{e.dataType().catalogString()} {_value(e.value(), e.dataType())}"
        if name == "AggregateExpression":
            condition = e.filter()
            return self._of(e.aggregateFunction()) + (f" filter {self._of(condition.get())}" if condition.isDefined() else "")
        if name == "CurrentBatchTimestamp":
            return f"the time of the batch as {e.dataType().catalogString()}"
        if name in _RANDOM:
            return f"{name}()"
        if name == "NamedLambdaVariable":
            # PySpark numbers them throughout a process: x_7.
            return str(e.name()).rpartition("_")[0] or str(e.name())
        words = [self._of(child) for child in elements(e.children())] + list(_plain_arguments(e))
        if name == "InSet":
            words += sorted(_value(value, e.child().dataType()) for value in elements(e.hset().toSeq()))
        elif name == "Cast":
            words.append(str(e.dataType().catalogString()))
        zone = self._zone_of(e)
        return f"{_function(e, name)}({', '.join(words)}){zone}"

    def _zone_of(self, e: Java) -> str:
        zone = str(e.timeZoneId().get()) if self._zones.used_by(e) else ""
        return zone and (OF_SESSION if zone == self.time_zone else f" in {zone}")


def _short(words: str) -> str:
    """Long words as their beginning and a hash of all; a dependence on the session's zone is never cut off."""
    if len(words) <= _MOST_LETTERS:
        return words
    zone = OF_SESSION if OF_SESSION in words else ""
    return f"{words[: _MOST_LETTERS // 2]}… (SHA-256 {hashlib.sha256(words.encode()).hexdigest()}){zone}"


def _function(e: Java, name: str) -> str:
    """A function's class, with its overflow mode if the class has several."""
    return f"try_{name}" if str(e.prettyName()).startswith("try_") else name


def _plain_arguments(e: Java) -> Iterator[str]:
    """The other arguments of an expression with the same text in every run: numbers, flags, texts."""
    for i in range(int(e.productArity())):
        argument: Any = e.productElement(i)
        if isinstance(argument, bool | int | float | str):
            yield repr(argument)


def _value(value: Any, type_: Java) -> str:
    """A value of Spark's SQL type: times as numbers, which have no zone; texts quoted, so that none reads as two."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, bool | int | float | str):
        return repr(value)
    kind = class_name(type_).removesuffix("$")
    if kind == "ArrayType":
        return f"[{_array(value, type_.elementType())}]"
    if kind == "StructType":
        types = [field.dataType() for field in type_.fields()]
        members = [None if value.isNullAt(i) else value.get(i, member) for i, member in enumerate(types)]
        return f"({', '.join(map(_value, members, types))})"
    if kind == "MapType":
        return f"{{{_array(value.keyArray(), type_.keyType())}: {_array(value.valueArray(), type_.valueType())}}}"
    text = str(value.toString())
    return repr(text) if kind == "StringType" else _IDS.sub("", text)


def _array(values: Java, type_: Java) -> str:
    return ", ".join(_value(None if values.isNullAt(i) else values.get(i, type_), type_) for i in range(int(values.numElements())))


def _nodes(node: Java) -> Iterator[Java]:
    yield node
    for child in elements(node.children()):
        yield from _nodes(child)
