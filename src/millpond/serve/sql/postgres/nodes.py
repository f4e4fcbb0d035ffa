"""Nodes of the tree of a statement, as DuckDB writes and reads it."""

from __future__ import annotations

from typing import Any

from millpond.serve.sql.postgres.arrays import array_items

Node = dict[str, Any]


def rename(function: Node, name: str) -> None:
    """Give a call another function."""
    function["function_name"], function["qualified_name"] = name, {"path": [name]}


def constant(node: Node) -> str | None:
    """The text of a constant, also of one with a cast; None for anything else."""
    if node["class"] == "CAST":
        node = node["child"]
    return str(node["literal"]["text"]) if node["class"] == "CONSTANT" else None


def become(node: Node, other: Node) -> None:
    """Put another node in the place of one; its alias stays."""
    alias = node.get("alias") or ""
    copied = dict(other)
    node.clear()
    node.update(copied)
    node["alias"] = alias


def text(value: str) -> Node:
    """A constant text."""
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "literal": {"kind": "STRING", "text": value}}


def number(value: str) -> Node:
    """A constant whole number."""
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "literal": {"kind": "INTEGER", "text": value}}


def null() -> Node:
    """NULL."""
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "literal": {"kind": "NULL_LITERAL", "text": ""}}


def array(items: str) -> Node:
    """The list that a text such as `{a,b}` means."""
    return call("list_value", [null() if item is None else text(item) for item in array_items(items)])


def call(name: str, arguments: list[Node]) -> Node:
    """A call of a function."""
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": "",
        "function_name": name,
        "schema": "",
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": False,
        "export_state": False,
        "catalog": "",
        "arguments": [{"name": "", "expression": each} for each in arguments],
        "qualified_name": {"path": [name]},
        "is_legacy_function_call": False,
    }
