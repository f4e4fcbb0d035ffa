"""Tables in parts, by their plan: the grouping column says so in its metadata, see `schema.parts`."""

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
    """How the variables of a stateful operator lie in parts; None where they don't.

    Raises:  NOT_DERIVABLE where its groups aren't the parts.
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
    """What the metadata of the first grouping column says of parts; None where none says anything.

    Raises:  NOT_DERIVABLE where it can't be understood, or another column says it.
    """
    found = [json.loads(str(attribute.metadata().json())).get(METADATA) for attribute in grouping]
    if all(data is None for data in found):
        return None
    if found[0] is None:
        raise not_derivable(table, "the column that tells its parts isn't the first that it is grouped by.", _GROUP_AGAIN)
    try:
        number_type(field_of(grouping[0]).type)
        return parse_variable_parts(found[0])
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise not_derivable(table, f"what its grouping column says of parts isn't known here: {broken}.", _GROUP_AGAIN) from broken


def only_spreads(grouping: list[Java]) -> bool:
    """Whether all that is grouped by is a column that spreads rows."""
    return len(grouping) == 1 and class_name(grouping[0]) == "AttributeReference" and grouping[0].metadata().contains(SPREAD)


def refuse_partial_rows(found: StatefulNode, table: str, *, is_session: bool, has_keys: bool) -> None:
    """Refuse what would be wrong of parts: what stands above the aggregation sees a part of each group.

    is_session:  whether it aggregates sessions: those of parts aren't those of the whole
    has_keys:    whether the value rows repeat the keys, the part among them
    Raises:  NOT_DERIVABLE.
    """
    above = [class_name(node) for node in found.above if class_name(node) == "Filter"]
    if found.obstacle is not None or above:
        why = f"{found.obstacle or above[0]} above a salted aggregation sees parts of groups and not the groups."
        raise not_derivable(table, why, "Leave it out, and filter what is read from the table.")
    if is_session:
        raise not_derivable(table, "sessions of parts aren't sessions of the whole.", "Use groupBy without salts, or a window.")
    if has_keys:
        raise not_derivable(table, "aggregation state format 1 repeats keys in its values.", "Start it on a new checkpoint.")


def over_salts(
    definition: TableDefinition, salts: VariableParts, aggregates: list[tuple[Java, tuple[int, ...]]]
) -> TableDefinition:
    """The definition of the whole, of one of the parts.

    aggregates:  each with the places of its buffers
    Raises:  NOT_DERIVABLE, naming the function whose parts can't be merged, or the column that is made of the salt.
    """
    merges = []
    for aggregate, places in aggregates:
        try:
            merge = translate_aggregate(aggregate, places, definition.value_schema)
            why = why_not_merged(merge, [f.type for f in definition.value_schema])
        except NotExpressible as obstacle:
            why = str(obstacle)
        if why is not None:
            raise not_derivable(definition.table, f"{why}.", "Leave it out, or aggregate it without salts.")
        merges.append(merge)
    values = []
    for column in definition.values:
        try:
            values.append(replace(column, expression=_without_part(column.expression)))
        except ValueError:
            why = f"the column {column.name!r} is made of the salt."
            raise not_derivable(definition.table, why, "Leave it out: the salt says nothing of the whole group.") from None
    parts = Parts(column=definition.key_schema[0], values=salts.values, merges=tuple(merges))
    return replace(definition, values=tuple(values)).over_parts(parts)


def _without_part(expression: Expression) -> Expression:
    """The same where the first column of the key isn't there.  Raises ValueError where it is used."""
    args = tuple(_without_part(arg) for arg in expression.args)
    if expression.op != "key":
        return replace(expression, args=args)
    index = expression.options["index"]
    if index == 0:
        raise ValueError(index)
    return replace(expression, args=args, options={**expression.options, "index": index - 1})
