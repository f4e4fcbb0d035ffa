"""Tables in parts: the metadata of the grouping column says so, see `schema.definition.parts`."""

from __future__ import annotations

import json
from dataclasses import replace

from millpond.schema.definition.expression import Expression
from millpond.schema.definition.parts import (
    METADATA,
    SPREAD,
    Parts,
    VariableParts,
    number_type,
    parse_variable_parts,
    why_not_merged,
)
from millpond.schema.definition.table import TableDefinition
from millpond.spark.derive.aggregate import translate_aggregate
from millpond.spark.derive.expression import NotExpressible
from millpond.spark.derive.plan import Java, StatefulNode, class_name, elements, field_of, not_derivable

_GROUP_AGAIN = "Group by the column that `broadcast`, `serve_models` or `salted` made, and by it first."


def variable_parts(node: Java, table: str) -> VariableParts | None:
    """How the variables of a stateful operator lie in parts; None if they don't.

    Raises:  NOT_DERIVABLE if its groups aren't the parts.
    Source:  TransformWithStateInPySpark.leftAttributes, Spark 4.3.
    """
    if class_name(node) != "TransformWithStateInPySpark":
        return None
    grouping = elements(node.leftAttributes())
    parts = grouped_in_parts(grouping, table)
    if parts is not None and len(grouping) > 1:
        raise not_derivable(table, "it groups by its parts and by other columns.", "Group by the column of the parts alone.")
    return parts


def grouped_in_parts(grouping: list[Java], table: str) -> VariableParts | None:
    """The parts that the metadata of the first grouping column describes; None if no column does.

    Raises:  NOT_DERIVABLE if it can't be understood, or is another column's.
    """
    found = [json.loads(str(attribute.metadata().json())).get(METADATA) for attribute in grouping]
    if all(data is None for data in found):
        return None
    if found[0] is None:
        raise not_derivable(table, "the column of its parts isn't the first grouping column.", _GROUP_AGAIN)
    try:
        number_type(field_of(grouping[0]).type)
        return parse_variable_parts(found[0])
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise not_derivable(table, f"its grouping column's parts aren't known here: {broken}.", _GROUP_AGAIN) from broken


def only_spreads(grouping: list[Java]) -> bool:
    """Whether the only grouping column is one that spreads rows."""
    return len(grouping) == 1 and class_name(grouping[0]) == "AttributeReference" and grouping[0].metadata().contains(SPREAD)


def refuse_partial_rows(found: StatefulNode, table: str, *, is_session: bool, has_keys: bool) -> None:
    """Refuse operators above an aggregation in parts: they would see parts of groups.

    is_session:  whether it aggregates sessions: sessions of parts aren't those of the whole
    has_keys:    whether the value rows repeat the keys, the part among them
    Raises:  NOT_DERIVABLE.
    """
    above = [class_name(node) for node in found.above if class_name(node) == "Filter"]
    if found.obstacle is not None or above:
        why = f"{found.obstacle or above[0]} above a salted aggregation sees parts of groups and not the groups."
        raise not_derivable(table, why, "Leave it out, and filter the rows that you read from the table.")
    if is_session:
        raise not_derivable(table, "sessions of parts aren't sessions of the whole.", "Use groupBy without salts, or a window.")
    if has_keys:
        raise not_derivable(table, "aggregation state format 1 repeats keys in its values.", "Start it on a new checkpoint.")


def over_salts(
    definition: TableDefinition, salts: VariableParts, aggregates: list[tuple[Java, tuple[int, ...]]]
) -> TableDefinition:
    """The definition of the whole, from that of one of the parts.

    aggregates:  each with the places of its buffers
    Raises:  NOT_DERIVABLE, which names the function whose parts can't be merged, or the column that
             uses the salt.
    """
    merges = merges_of(definition, aggregates, "Leave it out, or aggregate it without salts.")
    values = []
    for column in definition.values:
        try:
            values.append(replace(column, expression=_without_part(column.expression)))
        except ValueError:
            why = f"the column {column.name!r} uses the salt."
            raise not_derivable(definition.table, why, "Leave it out: the salt says nothing of the whole group.") from None
    parts = Parts(column=definition.key_schema[0], values=salts.values, merges=merges)
    return replace(definition, values=tuple(values)).over_parts(parts)


def merges_of(definition: TableDefinition, aggregates: list[tuple[Java, tuple[int, ...]]], hint: str) -> tuple[Expression, ...]:
    """The functions that make one row of several, for each aggregate.

    aggregates:  each with the places of its buffers
    Raises:      NOT_DERIVABLE, which names the function whose buffers can't be merged.
    """
    types, merges = [f.type for f in definition.value_schema], []
    for aggregate, places in aggregates:
        try:
            merge = translate_aggregate(aggregate, places, definition.value_schema)
            why = why_not_merged(merge, types)
        except NotExpressible as obstacle:
            why = str(obstacle)
        if why is not None:
            raise not_derivable(definition.table, f"{why}.", hint)
        merges.append(merge)
    return tuple(merges)


def _without_part(expression: Expression) -> Expression:
    """The same expression without the key's first column.  Raises ValueError if it uses that."""
    args = tuple(_without_part(arg) for arg in expression.args)
    if expression.op != "key":
        return replace(expression, args=args)
    index = expression.options["index"]
    if index == 0:
        raise ValueError(index)
    return replace(expression, args=args, options={**expression.options, "index": index - 1})
