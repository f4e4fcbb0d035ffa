"""Columns that are estimates: how far a value from a sketch may be from the true one.

distinct counts   two standard deviations of the sketch
quantiles         the values at the ranks that the asked one may be confused with
frequent items    for each item, how often it came at least and at most: that is certain
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from millpond.scalar.function import Evaluate
from millpond.scalar.sketch import kll, library
from millpond.scalar.sketch.functions import ESTIMATES, QUANTILES
from millpond.schema.convert import to_python
from millpond.schema.definition.expression import Expression
from millpond.schema.definition.table import TableDefinition, ValueColumn
from millpond.tables.finish.buffers.items import TopItems
from millpond.tables.finish.definition import compile_expression

Row = Sequence[Any]
_CERTAIN = 1.0


class Estimate(NamedTuple):
    """Between which values the true one lies, both of the column's type.

    lower, upper:  the least and the greatest; of several quantiles, or of items, for each
    confidence:    how sure that is, from 0 to 1
    """

    lower: Any
    upper: Any
    confidence: float


_Limits = Callable[[Row, Row], "tuple[Any, Any] | None"]
"""(key row, value row) -> the limits in stored form; None without values"""
Estimates = Callable[[Row, Row], dict[str, Estimate]]
"""(key row, value row) -> what is known of each column that is an estimate"""


def compile_estimates(definition: TableDefinition) -> Estimates:
    """The function for a table's columns.  Raises (the function) as that of `compile_definition`."""
    columns = [(c.name, *_limits(node, definition), to_python(c.type)) for c, node in _estimates(definition)]

    def estimates(key: Row, buffers: Row) -> dict[str, Estimate]:
        out = {}
        for name, limits, confidence, shown in columns:
            found = limits(key, buffers)
            if found is not None:
                out[name] = Estimate(shown(found[0]), shown(found[1]), confidence)
        return out

    return estimates


def estimated_columns(definition: TableDefinition) -> tuple[ValueColumn, ...]:
    """The columns that are estimates."""
    return tuple(column for column, _ in _estimates(definition))


def _estimates(definition: TableDefinition) -> list[tuple[ValueColumn, Expression]]:
    found = ((column, _estimated(column.expression)) for column in definition.values)
    return [(column, node) for column, node in found if node is not None]


def _estimated(expression: Expression) -> Expression | None:
    """The node that takes a value out of a sketch, if the column is that or NULL."""
    each = [e for e in _values(expression) if e.op != "literal" or e.options["value"] is not None]
    if len(each) != 1:
        return None
    (node,) = each
    if node.op == "aggregate":
        return node if node.options["function"] == "approx_top_k" else None
    of_sketch = node.op in (*ESTIMATES, *QUANTILES) and node.args[0].op == "aggregate"
    return node if of_sketch and all(arg.op == "literal" for arg in node.args[1:]) else None


def _values(expression: Expression) -> Iterator[Expression]:
    """What an expression may give: of a choice, each branch."""
    if expression.op not in ("if", "case"):
        yield expression
        return
    args = expression.args[1:] if expression.op == "if" else [*expression.args[1::2]]
    if expression.op == "case" and len(expression.args) % 2:
        args = [*args, expression.args[-1]]
    for arg in args:
        yield from _values(arg)


def _limits(node: Expression, definition: TableDefinition) -> tuple[_Limits, float]:
    if node.op == "aggregate":
        return _of_items(node), _CERTAIN
    sketch = compile_expression(node.args[0], definition.key_fields)
    if node.op in ESTIMATES:
        return _of_count(sketch, ESTIMATES[node.op]), library.CONFIDENCE
    ranks = compile_expression(node.args[1], definition.key_fields)((), ())
    return _of_quantile(sketch, QUANTILES[node.op], ranks), kll.CONFIDENCE


def _of_count(sketch: Evaluate, estimate: Callable[[bytes], library.Distinct]) -> _Limits:
    def limits(key: Row, buffers: Row) -> tuple[int, int]:
        found = estimate(sketch(key, buffers))
        return math.floor(found.lower + 0.5), math.floor(found.upper + 0.5)

    return limits


def _of_quantile(sketch: Evaluate, kind: str, ranks: Any) -> _Limits:
    def limits(key: Row, buffers: Row) -> tuple[Any, Any] | None:
        data = sketch(key, buffers)
        found = kll.read_kll(data, kind)
        if not found.n:
            return None
        items = kll.sorted_items(data, kind)
        # Below a level of items that stand for several values, nothing has been dropped.
        error = kll.rank_error(found.k) if len(found.levels) > 1 else 0.0

        def at(rank: float) -> tuple[Any, Any]:
            return items.quantile(max(0.0, rank - error)), items.quantile(min(1.0, rank + error))

        if not isinstance(ranks, list):
            return at(ranks)
        each = [at(rank) for rank in ranks]
        return [low for low, _ in each], [high for _, high in each]

    return limits


def _of_items(node: Expression) -> _Limits:
    counted, (place,) = TopItems(node).counted, node.options["buffers"]

    def limits(_: Row, buffers: Row) -> tuple[Any, Any]:
        found = counted(buffers[place])
        return [(each.item, each.least) for each in found], [(each.item, each.most) for each in found]

    return limits
