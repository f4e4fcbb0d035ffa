"""A statement in PostgreSQL's words, changed in its tree to DuckDB's: names, types and functions of the catalogue.

DuckDB's parser comes from PostgreSQL's, and so do its trees.  Changed is only what means the same
afterwards; everything else goes to DuckDB as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.errors import RequestError
from millpond.serve.sql.postgres import nodes, times
from millpond.serve.sql.postgres.catalog import RELATIONS
from millpond.serve.sql.postgres.functions import MACROS, PREFIX
from millpond.tables.sql.statement import TABLE_FUNCTIONS

Node = nodes.Node
SCHEMA = "public"
# Types whose values are texts or numbers here.
_TYPES = {
    "name": "VARCHAR",
    "char": "VARCHAR",
    "regproc": "VARCHAR",
    "regprocedure": "VARCHAR",
    "regnamespace": "VARCHAR",
    "regrole": "VARCHAR",
    "sql_identifier": "VARCHAR",
    "character_data": "VARCHAR",
    "yes_or_no": "VARCHAR",
    "inet": "VARCHAR",
    "unknown": "VARCHAR",
    "jsonb": "JSON",
    "oid": "UINTEGER",
    "xid": "UINTEGER",
    "cardinal_number": "INTEGER",
}
# Functions and words whose value the session knows.
_OF_SESSION = {
    "version": "version",
    "current_database": "database",
    "current_catalog": "database",
    "current_user": "user",
    "session_user": "user",
    "current_role": "user",
    "user": "user",
    "getpgusername": "user",
    "current_schema": "schema",
    "pg_backend_pid": "pid",
}
_WORDS = frozenset({"current_catalog", "current_user", "session_user", "current_role", "current_schema", "user"})
# What DuckDB calls the same function.
_ALIKE = {
    "json_build_object": "json_object",
    "jsonb_build_object": "json_object",
    "json_build_array": "json_array",
    "jsonb_build_array": "json_array",
    "json_agg": "json_group_array",
    "jsonb_agg": "json_group_array",
    "to_jsonb": "to_json",
    "every": "bool_and",
    "btrim": "trim",
    "statement_timestamp": "now",
    "transaction_timestamp": "now",
    "cardinality": "len",
}
# A number without an exponent, and how many digits DuckDB's have at most.
_PLAIN_NUMBER = re.compile(r"[-+]?([0-9]+)?(?:[.]([0-9]*))?", re.ASCII)
_MOST_DIGITS = 38
# Functions in FROM whose rows have one column.
_ROWS_OF_ONE = frozenset({"generate_series", "range", "unnest"})
# Functions that PostgreSQL allows in FROM, and that give one value.
_SCALARS = frozenset({"string_to_array", "current_schemas", "current_setting", "version", "current_database"})
_TABLE_FUNCTIONS = {"pg_get_keywords": "pg_get_keywords"}


@dataclass(slots=True)
class Rewritten:
    """What a tree's rewriting found.

    catalog:   names of the catalogue's relations that it reads
    macros:    of `functions` that it calls
    names:     what PostgreSQL calls the columns of the answer; None where DuckDB's name stays
    """

    catalog: set[str] = field(default_factory=set)
    names: list[str | None] | None = None
    macros: set[str] = field(default_factory=set)


class Rewriter:
    """Changes one tree.

    session:  what the session knows of itself: `version`, `database`, `user`, `schema`, `pid`, and
              settings by their names
    """

    def __init__(self, session: Mapping[str, str]) -> None:
        self._session = session
        self._has_tables = False
        self.found = Rewritten()

    def rewrite(self, statement: Node) -> None:
        """Change the tree of one statement.  Raises INVALID_STATEMENT."""
        top = statement["node"]
        self.found.names = _column_names(top)
        self._has_tables = any(
            each["schema_name"].lower() in ("", SCHEMA) and not each["table_name"].lower().startswith("pg_")
            for each in base_tables(top)
        ) or _reads_by_function(top)
        self._walk(top, frozenset())

    def _walk(self, node: Any, ctes: frozenset[str]) -> None:
        if isinstance(node, list):
            for each in node:
                self._walk(each, ctes)
            return
        if not isinstance(node, dict):
            return
        own = node.get("cte_map")
        if isinstance(own, dict):
            ctes = ctes | {each["key"].lower() for each in own["map"]}
        change = _CHANGES.get(str(node.get("class") or node.get("type")))
        if change is not None:
            change(self, node, ctes)
        for each in node.values():
            if isinstance(each, dict | list):
                self._walk(each, ctes)

    # ------------------------------------------------------------ tables and columns

    def _table(self, node: Node, ctes: frozenset[str]) -> None:
        schema, name = node["schema_name"].lower(), node["table_name"]
        if node["catalog_name"]:
            if node["catalog_name"] != self._session["database"]:
                raise RequestError(
                    "INVALID_STATEMENT",
                    f"Cross-database references are not implemented: {node['catalog_name']}.{schema}.{name}.",
                    hint=f"This connection reads the database {self._session['database']}.",
                )
            node["catalog_name"] = ""
        full = f"information_schema.{name.lower()}" if schema == "information_schema" else name.lower()
        is_own = schema in ("pg_catalog", "information_schema")
        if is_own or (not schema and full.startswith("pg_") and full in RELATIONS and full not in ctes):
            if full not in RELATIONS:
                raise RequestError(
                    "UNKNOWN_TABLE", f'relation "{schema}.{name}" does not exist', hint="The manual says what the catalogue has."
                )
            self.found.catalog.add(full)
            self._name(node, PREFIX + full, node["alias"] or name)
        elif schema in ("", SCHEMA):
            self._name(node, name, node["alias"])
        else:
            raise RequestError("UNKNOWN_TABLE", f'relation "{schema}.{name}" does not exist', hint=f"Tables are in {SCHEMA}.")

    def _name(self, node: Node, name: str, alias: str) -> None:
        node["schema_name"], node["table_name"], node["alias"] = "", name, alias
        node["qualified_name"] = {"path": [name]}

    def _table_function(self, node: Node, _: frozenset[str]) -> None:
        function = node["function"]
        full = _TABLE_FUNCTIONS.get(function["function_name"].lower())
        if full is None:
            _strip(function)
            name, alias = function["function_name"].lower(), node["alias"]
            if name in _ROWS_OF_ONE and alias and not node["column_name_alias"]:
                node["column_name_alias"] = [alias]  # as in PostgreSQL, the column is named so, too
            elif name in _SCALARS:
                _become_rows(node, function, alias or name)
            return
        kept = {name: node[name] for name in ("sample", "column_name_alias", "query_location", "query_location_length")}
        kept["alias"] = node["alias"] or full
        node.clear()
        node.update({"type": "BASE_TABLE", **kept, "schema_name": "", "catalog_name": "", "at_clause": None})
        self.found.catalog.add(full)
        self._name(node, PREFIX + full, kept["alias"])

    def _column(self, node: Node, _: frozenset[str]) -> None:
        path = node["column_names"]
        if len(path) == 1 and path[0].lower() in _WORDS and not (path[0].lower() == "user" and self._has_tables):
            nodes.become(node, nodes.text(self._session[_OF_SESSION[path[0].lower()]]))
        elif path[-1].lower() == "tableoid" and not self._has_tables:
            nodes.become(node, nodes.number("0"))
        elif len(path) >= 3 and path[0].lower() in (SCHEMA, "pg_catalog", "information_schema"):
            node["column_names"] = path[1:]

    def _star(self, node: Node, _: frozenset[str]) -> None:
        name = node.get("relation_name") or ""
        for schema in (SCHEMA, "pg_catalog"):
            if name.lower().startswith(f"{schema}."):
                node["relation_name"] = name[len(schema) + 1 :]

    # ------------------------------------------------------------ types and functions

    def _cast(self, node: Node, _: frozenset[str]) -> None:
        name, child = _type_name(node["type_expr"]), node["child"]
        if child["class"] == "CAST" and _type_name(child["type_expr"]) in ("regclass", "regtype"):
            inner = _type_name(child["type_expr"])
            if name in ("text", "varchar", "name"):
                nodes.become(node, self._macro(f"{inner}_name", [child["child"]]))
                return
            if name in ("oid", "integer", "int4", "int8", "bigint"):
                self._cast(child, frozenset())
                return
        if name in ("regclass", "regtype"):
            nodes.become(node, self._macro(name, [child]))
            return
        if name in ("int2vector", "oidvector"):
            nodes.become(node, child)
            return
        if name == "list":
            element = _type_name(node["type_expr"]["children"][0])
            if child["class"] == "CONSTANT" and child["literal"]["kind"] == "STRING":
                node["child"] = nodes.array(child["literal"]["text"])
            _set_type(node["type_expr"]["children"][0], element)
            return
        if name in ("decimal", "numeric") and not node["type_expr"]["children"]:
            # DuckDB would keep three digits after the point.
            if child["class"] == "CONSTANT" and (digits := _digits(str(child["literal"]["text"]).strip())) is not None:
                node["child"] = nodes.text(str(child["literal"]["text"]).strip())
                node["type_expr"]["children"] = [nodes.number(str(each)) for each in digits]
            else:
                nodes.become(node, self._macro("numeric", [child]))
                return
        _set_type(node["type_expr"], name)

    def _subquery(self, node: Node, _: frozenset[str]) -> None:
        """x = ANY ('{a,b}'), which DuckDB reads as x = ANY (SELECT unnest('{a,b}'))."""
        items = node["subquery"]["node"].get("select_list", []) if node.get("child") else []
        if len(items) == 1 and items[0].get("function_name") == "unnest":
            argument = items[0]["arguments"][0]
            given = argument["expression"]
            if given["class"] == "CONSTANT" and given["literal"]["kind"] == "STRING":
                argument["expression"] = nodes.array(given["literal"]["text"])

    def _collate(self, node: Node, _: frozenset[str]) -> None:
        if node["collation"].lower() in ("pg_catalog.default", "default", "c", "pg_catalog.c", "posix", "ucs_basic", "en_us"):
            nodes.become(node, node["child"])

    def _function(self, node: Node, ctes: frozenset[str]) -> None:
        name = node["function_name"].lower()
        _strip(node)
        arguments = [each["expression"] for each in node["arguments"]]
        if name in _OF_SESSION and not arguments:
            value = self._session[_OF_SESSION[name]]
            nodes.become(node, nodes.number(value) if name == "pg_backend_pid" else nodes.text(value))
        elif name == "current_setting" and arguments:
            name = nodes.constant(arguments[0])
            if name is None:
                path = nodes.call("concat", [nodes.text('$."'), nodes.call("lower", [arguments[0]]), nodes.text('"')])
                nodes.become(node, nodes.call("json_extract_string", [nodes.text(json.dumps(dict(self._session))), path]))
            else:
                nodes.become(node, nodes.text(self._setting(name, len(arguments) > 1)))
        elif name == "set_config" and len(arguments) == 3:
            if (nodes.constant(arguments[0]) or "millpond.").lower().startswith(("millpond.", "statement_timeout")):
                raise RequestError("INVALID_STATEMENT", "set_config can't set this here.", hint="Write SET, as a statement.")
            nodes.become(node, arguments[1])
        elif name == "format" and arguments and (shape := nodes.constant(arguments[0])) is not None and "%" in shape:
            nodes.become(node, self._format(shape, arguments[1:]))
        elif (meant := times.rewritten(name, arguments)) is not None:
            nodes.become(node, self._macro(*meant))
        elif name == "age" and len(arguments) == 1 and _is_transaction(arguments[0]):
            nodes.become(node, nodes.number("0"))
        elif name in MACROS:
            self.found.macros.add(name)
            nodes.rename(node, PREFIX + name)
        elif name in _ALIKE:
            nodes.rename(node, _ALIKE[name])
        elif node.get("is_operator") and name in ("~", "!~", "~*", "!~*"):
            found = nodes.call("regexp_matches", [*arguments[:2], *([nodes.text("i")] if "*" in name else [])])
            if name.startswith("!"):
                found = {"class": "OPERATOR", "type": "OPERATOR_NOT", "alias": "", "children": [found]}
            nodes.become(node, found)
            self._walk(node, ctes)

    def _macro(self, name: str, arguments: list[Node]) -> Node:
        self.found.macros.add(name)
        return nodes.call(PREFIX + name, arguments)

    def _format(self, shape: str, arguments: list[Node]) -> Node:
        """PostgreSQL's format(): DuckDB's own has other signs."""
        parts, rest = list[Node](), list(arguments)
        for piece in re.split(r"(%[sIL%])", shape):
            if piece == "%%" or not piece.startswith("%") or len(piece) != 2:
                parts.append(nodes.text(piece.replace("%%", "%")))
            elif not rest:
                raise RequestError("INVALID_STATEMENT", "too few arguments for format()", hint="Give one for each % sign.")
            elif piece == "%s":
                parts.append(rest.pop(0))
            else:
                parts.append(self._macro("quote_ident" if piece == "%I" else "quote_literal", [rest.pop(0)]))
        return nodes.call("concat", parts)

    def _setting(self, name: str, is_missing_fine: bool) -> str:
        value = self._session.get(name.lower())
        if value is None and not is_missing_fine:
            raise RequestError(
                "INVALID_STATEMENT",
                f'unrecognized configuration parameter "{name[:80]}"',
                hint="SHOW ALL lists those that are there.",
            )
        return value or ""


_CHANGES: dict[str, Callable[[Rewriter, Node, frozenset[str]], None]] = {
    "BASE_TABLE": Rewriter._table,
    "TABLE_FUNCTION": Rewriter._table_function,
    "COLUMN_REF": Rewriter._column,
    "STAR": Rewriter._star,
    "CAST": Rewriter._cast,
    "SUBQUERY": Rewriter._subquery,
    "COLLATE": Rewriter._collate,
    "FUNCTION": Rewriter._function,
}


def base_tables(node: Any) -> Iterator[Node]:
    """All references to tables."""
    if isinstance(node, list):
        for each in node:
            yield from base_tables(each)
    elif isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield node
        for each in node.values():
            yield from base_tables(each)


def _reads_by_function(node: Any) -> bool:
    """Whether a statement reads a table by a function, as `changes`."""
    if isinstance(node, list):
        return any(map(_reads_by_function, node))
    if not isinstance(node, dict):
        return False
    if node.get("type") == "TABLE_FUNCTION" and str(node["function"].get("function_name")).lower() in TABLE_FUNCTIONS:
        return True
    return any(map(_reads_by_function, node.values()))


def _column_names(top: Node) -> list[str | None] | None:
    """The names that PostgreSQL gives to columns without a name of their own."""
    items = top.get("select_list")
    if top.get("type") != "SELECT_NODE" or not isinstance(items, list) or any(each["class"] == "STAR" for each in items):
        return None
    if top["from_table"].get("type") == "SHOW_REF":
        return None
    return [None if item["alias"] else _column_name(item, "?column?") for item in items]


def _column_name(item: Node, otherwise: str) -> str | None:
    match item["class"]:
        case "COLUMN_REF":
            name = str(item["column_names"][-1])
            return name.lower() if name.lower() in _WORDS and len(item["column_names"]) == 1 else None
        case "FUNCTION" | "WINDOW":
            if item.get("is_operator"):
                return otherwise
            name = str(item["function_name"]).lower()
            return "count" if name == "count_star" else name
        case "CAST":
            inner = _column_name(item["child"], "")
            if inner is None:
                return str(item["child"]["column_names"][-1])
            return inner or {"varchar": "text", "decimal": "numeric"}.get(
                _type_name(item["type_expr"]), _type_name(item["type_expr"])
            )
        case "CASE":
            return "case"
        case "OPERATOR" if item["type"] == "OPERATOR_COALESCE":
            return "coalesce"
        case "SUBQUERY" if item["subquery_type"] == "EXISTS":
            return "exists"
        case "COLLATE":
            return _column_name(item["child"], otherwise)
    return otherwise


def _is_transaction(node: Node) -> bool:
    """Whether this is the number of a transaction: `age` has another meaning for times."""
    return node["class"] == "COLUMN_REF" and str(node["column_names"][-1]).lower().endswith("xid")


def _type_name(type_: Node) -> str:
    return str(type_.get("type_name", "")).lower()


def _set_type(type_: Node, name: str) -> None:
    wanted = _TYPES.get(name)
    if wanted is not None:
        type_["type_name"], type_["children"] = wanted, []
    if type_.get("schema") or wanted is not None:
        type_["schema"], type_["catalog"] = "", ""
        type_["qualified_name"] = {"path": [type_["type_name"]]}


def _become_rows(node: Node, function: Node, alias: str) -> None:
    """Put (SELECT f(…) AS alias) AS alias in the place of f(…) in FROM."""
    names = node["column_name_alias"]
    select: Node = {
        "type": "SELECT_NODE",
        "modifiers": [],
        "cte_map": {"map": []},
        "select_list": [{**function, "alias": alias}],
        "from_table": {"type": "EMPTY", "alias": "", "sample": None},
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": None,
    }
    node.clear()
    node.update({"type": "SUBQUERY", "alias": alias, "sample": None, "subquery": {"node": select, "named_param_map": []}})
    node["column_name_alias"] = names


def _strip(function: Node) -> None:
    """Leave out the schema of a function: all are known by their names."""
    if function.get("schema", "").lower() in ("pg_catalog", "information_schema"):
        name = function["function_name"]
        function["schema"], function["catalog"], function["qualified_name"] = "", "", {"path": [name]}


def _digits(text: str) -> tuple[int, int] | None:
    """How many digits a number has, in all and after the point; None if it isn't plainly one that fits."""
    found = _PLAIN_NUMBER.fullmatch(text)
    if found is None or not (found[1] or found[2]):
        return None
    scale = len(found[2] or "")
    count = max(1, len((found[1] or "").lstrip("0")) + scale)
    return (count, scale) if count <= _MOST_DIGITS else None
