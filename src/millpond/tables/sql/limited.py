"""A SELECT from one table with LIMIT: how few of its rows it needs, and in which order.

DuckDB's scans know of neither.  In a database with one thread rows stay in the order of the scan, so
a statement without its ORDER BY gives the same rows, if the scan has them in that order, and ends
the scan as soon as it has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millpond.tables.sql.duck import Parameters
from millpond.tables.sql.reading.order import Hint, Order

# Statements with a larger LIMIT are sorted by DuckDB.
MOST_ORDERED = 10_000
# Of a number of rows, or of a batch.
MOST_DIGITS = 18
# What an expression over the rows of one table may consist of: an aggregate or a window function
# would be among the functions.
_PLAIN = frozenset(
    {"COLUMN_REF", "STAR", "CONSTANT", "PARAMETER", "CAST", "COMPARISON", "BETWEEN", "CONJUNCTION", "OPERATOR", "CASE"}
)


def find_hint(node: dict[str, Any], table: dict[str, Any], parameters: Parameters) -> Hint:
    """What the LIMIT of a statement says of the one table that it reads; an empty hint without one."""
    if node.get("type") != "SELECT_NODE" or node["from_table"] is not table or table["sample"] is not None:
        return Hint()
    if node["group_expressions"] or node["group_sets"] or node["having"] or node["qualify"] or node["sample"]:
        return Hint()
    if node["aggregate_handling"] != "STANDARD_HANDLING" or node["cte_map"]["map"]:
        return Hint()
    kinds = [each["type"] for each in node["modifiers"]]
    if kinds not in (["LIMIT_MODIFIER"], ["ORDER_MODIFIER", "LIMIT_MODIFIER"]):
        return Hint()
    limit = node["modifiers"][-1]
    most, offset = _number(limit["limit"], parameters), _number(limit["offset"], parameters)
    if limit["limit_type"] != "ROW_COUNT" or most is None or offset is None or not all(map(_is_plain, node["select_list"])):
        return Hint()
    if len(kinds) == 1:
        return Hint(most + offset)
    order = _order(node, table) if most + offset <= MOST_ORDERED else None
    return Hint() if order is None else Hint(most + offset, order)


def without_order(node: dict[str, Any]) -> None:
    """Leave out the ORDER BY of a statement that `find_hint` has found one in."""
    node["modifiers"] = [each for each in node["modifiers"] if each["type"] != "ORDER_MODIFIER"]


def _number(node: Any, parameters: Parameters) -> int | None:
    """A literal or a parameter as a number of rows; none is 0."""
    if node is None:
        return 0
    if node["class"] == "CONSTANT":
        text = str((node.get("literal") or {}).get("text"))
        return int(text) if is_number(text) and len(text) <= MOST_DIGITS else None
    found = parameter_value(node, parameters) if node["class"] == "PARAMETER" else None
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 10**MOST_DIGITS else None


def parameter_value(node: dict[str, Any], parameters: Parameters) -> Any:
    """The value of a parameter in a tree; None if it has none."""
    name = str(node["identifier"])
    if isinstance(parameters, Mapping):
        return parameters.get(name)
    place = int(name) - 1 if is_number(name) else -1
    return parameters[place] if parameters is not None and 0 <= place < len(parameters) else None


def is_number(name: str) -> bool:
    """Whether the name of a parameter is its number: `²` is a name."""
    return name.isascii() and name.isdigit()


def parameter_names(tree: Any) -> Iterator[str]:
    """The names of the parameters in a tree."""
    return (str(each["identifier"]) for each in _nodes(tree) if each["class"] == "PARAMETER")


def _order(node: dict[str, Any], table: dict[str, Any]) -> Order | None:
    if table["column_name_alias"] or any(each["class"] in ("SUBQUERY", "WINDOW") for each in _nodes(node["where_clause"])):
        return None
    own = (table["alias"] or table["table_name"]).lower()
    names: list[str] = []
    directions, nulls = set(), set()
    for each in node["modifiers"][0]["orders"]:
        path = each["expression"].get("column_names") if each["expression"]["class"] == "COLUMN_REF" else None
        if not path or len(path) > 2 or (len(path) == 2 and path[0].lower() != own):
            return None
        if not all(_leaves(item, path[-1]) for item in node["select_list"]):
            return None
        names.append(path[-1])
        directions.add(each["type"] == "DESCENDING")
        nulls.add(each["null_order"] == "NULLS FIRST")
    if len(directions) != 1 or len(nulls) != 1:
        return None
    order = Order(tuple(names), directions.pop(), nulls.pop())
    return None if order.descending and order.nulls_first else order


def _leaves(item: dict[str, Any], name: str) -> bool:
    """Whether a name in ORDER BY means the table's column in spite of this item of the SELECT list."""
    if item["class"] == "STAR":
        return not any(item.get(changed) for changed in ("replace_list", "rename_list", "columns", "expr", "unpacked"))
    if any(each["class"] == "STAR" for each in _nodes(item)):
        return False  # COLUMNS(…) makes names of its own
    if (item["alias"] or "").lower() != name.lower():
        return True
    return bool(item["class"] == "COLUMN_REF" and item["column_names"][-1].lower() == name.lower())


def _is_plain(node: Any) -> bool:
    return all(
        kind in _PLAIN or (kind == "FUNCTION" and each.get("is_operator")) for each in _nodes(node) for kind in (each["class"],)
    )


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    """All expressions in one."""
    if isinstance(node, list):
        for each in node:
            yield from _nodes(each)
    elif isinstance(node, dict):
        if "class" in node:
            yield node
        for each in node.values():
            yield from _nodes(each)
