"""Statements that look one key up: SELECT columns FROM table WHERE key = $1 AND other = $2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.serve.sql.messages import Lookup
from millpond.tables.sql.limited import is_number

Node = dict[str, Any]
_EMPTY = ("modifiers", "group_expressions", "group_sets", "having", "sample", "qualify")


def find_lookup(node: Node, table: str, columns: Mapping[str, str]) -> Lookup | None:
    """The lookup that a statement may be, if its conditions name just the key of its table; None if it can't be one.

    node:     of the statement, when its tables have DuckDB's names
    table:    the name of its one table
    columns:  of the table, by their names in lower case
    """
    if node.get("type") != "SELECT_NODE" or any(node.get(part) for part in _EMPTY) or node["cte_map"]["map"]:
        return None
    source = node["from_table"]
    if source.get("type") != "BASE_TABLE" or source["sample"] or source["column_name_alias"] or source["at_clause"]:
        return None
    if node["aggregate_handling"] != "STANDARD_HANDLING" or node["where_clause"] is None:
        return None
    known = (source["alias"] or table).lower()
    shown = [_column(item, known, columns) for item in node["select_list"]]
    pairs = _pairs(node["where_clause"], known, columns)
    if pairs is None or not all(shown) or len({name for name, _ in pairs}) < len(pairs):
        return None
    return Lookup(table, [name for name in shown if name is not None], pairs)


def _pairs(node: Node, table: str, columns: Mapping[str, str]) -> list[tuple[str, int]] | None:
    """Columns and the numbers of their parameters; None for other conditions."""
    if node["type"] == "CONJUNCTION_AND":
        parts = [_pairs(each, table, columns) for each in node["children"]]
        return None if None in parts else [pair for part in parts for pair in part or ()]
    if node["type"] != "COMPARE_EQUAL":
        return None
    for one, other in ((node["left"], node["right"]), (node["right"], node["left"])):
        name = _column(one, table, columns)
        if name is not None and other["class"] == "PARAMETER" and is_number(str(other["identifier"])):
            return [(name, int(other["identifier"]))]
    return None


def _column(node: Node, table: str, columns: Mapping[str, str]) -> str | None:
    path = node.get("column_names") if node["class"] == "COLUMN_REF" else None
    if not path or len(path) > 2 or (len(path) == 2 and path[0].lower() != table):
        return None
    return columns.get(path[-1].lower())
