"""Where the parameters of a statement stand, which shows their types before there are values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Node = dict[str, Any]
# DuckDB's and PostgreSQL's names of types, by one name for each type.
WORDS = {
    "boolean": "bool",
    "bool": "bool",
    "smallint": "int2",
    "int2": "int2",
    "integer": "int4",
    "int": "int4",
    "int4": "int4",
    "bigint": "int8",
    "int8": "int8",
    "real": "float4",
    "float4": "float4",
    "double": "float8",
    "float8": "float8",
    "decimal": "numeric",
    "numeric": "numeric",
    "varchar": "text",
    "text": "text",
    "name": "text",
    "blob": "bytea",
    "bytea": "bytea",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "timestamp with time zone": "timestamptz",
    "interval": "interval",
    "uuid": "uuid",
    "json": "json",
    "oid": "oid",
    "uinteger": "oid",
}
_TEXTUAL = frozenset({"~~", "!~~", "~~*", "!~~*", "~", "!~", "~*", "!~*", "||", "regexp_matches", "regexp_full_match"})


class Contexts:
    """Where each parameter of a statement stands.

    names:  of all parameters, `1` for `$1`
    """

    def __init__(self, statement: Node) -> None:
        self.names: set[str] = {str(each["key"]) for each in statement.get("named_param_map", [])}
        self._known: dict[str, tuple[str, str]] = {}
        self._walk(statement["node"])

    def find(self, name: str) -> tuple[str, str]:
        """What a parameter stands beside, and which: `type`, a word of WORDS, or `column`; or an array of such; two empty texts if
        the statement doesn't show it.
        """
        return self._known.get(name, ("", ""))

    def _walk(self, node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                self._walk(each)
            return
        if not isinstance(node, dict):
            return
        match node.get("class") or node.get("type"):
            case "COMPARISON":
                self._alike([node["left"], node["right"]])
            case "BETWEEN":
                self._alike([node["input"], node["lower"], node["upper"]])
            case "OPERATOR" if node["type"] in ("COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_COALESCE"):
                self._alike(node["children"])
            case "FUNCTION" if node.get("is_operator") or node["function_name"] in _TEXTUAL:
                arguments = [each["expression"] for each in node["arguments"]]
                if node["function_name"] in _TEXTUAL:
                    for each in arguments:
                        self._note(each, ("type", "text"))
                else:
                    self._alike(arguments)
            case "CAST":
                word = str(node["type_expr"].get("type_name", "")).lower()
                if word == "list":
                    word = str(node["type_expr"]["children"][0].get("type_name", "")).lower()
                    self._note(node["child"], ("array of type", WORDS.get(word, "text")))
                else:
                    self._note(node["child"], ("type", WORDS.get(word, "text")))
            case "SUBQUERY" if node.get("child"):
                items = node["subquery"]["node"].get("select_list", [])
                if len(items) == 1 and items[0].get("function_name") == "unnest":
                    kind, known = _context(node["child"])
                    self._note(items[0]["arguments"][0]["expression"], (f"array of {kind or 'type'}", known or "text"))
            case "LIMIT_MODIFIER":
                for part in ("limit", "offset"):
                    self._note(node[part], ("type", "int8"))
        for each in node.values():
            if isinstance(each, dict | list):
                self._walk(each)

    def _alike(self, nodes: list[Node]) -> None:
        known = next((found for each in nodes if (found := _context(each))[0]), ("", ""))
        if known[0]:
            for each in nodes:
                self._note(each, known)

    def _note(self, node: Node | None, context: tuple[str, str]) -> None:
        if node is not None and node.get("class") == "PARAMETER":
            self._known.setdefault(str(node["identifier"]), context)


def _context(node: Node) -> tuple[str, str]:
    match node.get("class"):
        case "COLUMN_REF":
            return "column", node["column_names"][-1]
        case "CAST":
            return "type", WORDS.get(str(node["type_expr"].get("type_name", "")).lower(), "text")
        case "FUNCTION" if node["function_name"] in ("now", "date_trunc", "current_timestamp"):
            return "type", "timestamptz"
    return "", ""


def column_type(name: str, schemas: Sequence[Any]) -> Any:
    """The Arrow type of the column of a name in the tables of a statement; None if there is none, or several differ."""
    types = {schema.field(n).type for schema in schemas for n in schema.names if n.lower() == name.lower()}
    return types.pop() if len(types) == 1 else None
