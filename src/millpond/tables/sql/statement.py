"""A statement, checked before it runs: one SELECT over tables of the pond.

DuckDB itself can't open files or the network either (`duck.py`); both must fail before anything
else than a table is read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millpond.errors import RequestError
from millpond.tables.sql.duck import Duck, Parameters
from millpond.tables.sql.limited import MOST_DIGITS, find_hint, is_number, parameter_names, parameter_value, without_order
from millpond.tables.sql.reading.order import Hint

MOST_BYTES = 100_000
# Functions in FROM that read nothing but their arguments.
_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"})
# Functions in FROM that read a table, and the names of their arguments after the table's name: those
# that must be given come first.
TABLE_FUNCTIONS = {
    "changes": ("since", "until"),
    "history": ("since", "until"),
    "total": ("since", "until"),
    "series": ("step", "since", "until"),
}
PAST_FUNCTIONS = frozenset({"changes", "history"})
"""Those that read what was up to the newest batch.  The others read one batch, as a table does."""
_NEEDED = {"changes": {"table", "since"}, "history": {"table"}, "total": {"table"}, "series": {"table", "step"}}
_EXAMPLES = {
    "changes": "changes('page_views', 41), or changes('page_views', 41, 50)",
    "history": "history('page_views'), or history('page_views', since => 41, until => 50)",
    "total": "total('page_views'), or total('page_views', since => '2026-03-01T00:00Z', until => '2026-03-08T00:00Z')",
    "series": "series('page_views', '1 hour'), or series('page_views', '1 hour', since => '2026-03-01T00:00Z')",
}
_HINT = "Write one SELECT over tables of the pond."


@dataclass(frozen=True, slots=True)
class TableName:
    """A table in a statement.

    name:   as it is written
    batch:  AT (VERSION => 41)
    time:   AT (TIMESTAMP => '2026-03-01T12:00Z'), as a text
    alias:  of a table at a batch or time, and of a function: the name under which DuckDB knows it
    function: of TABLE_FUNCTIONS, of the table
    since, until: the arguments of a function: of PAST_FUNCTIONS a batch, or a time as a text; of others a time
    step:   of series
    """

    name: str
    batch: int | None = None
    time: str | None = None
    alias: str = ""
    function: str = ""
    since: int | str | None = None
    until: int | str | None = None
    step: str | None = None

    @property
    def is_newest(self) -> bool:
        """Whether it is the table at its newest batch."""
        return self.batch is None and self.time is None


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that may run.

    text:         for DuckDB
    tables:       that it reads, each once
    is_explained: whether it asks for the plan
    hint:         how much of its one table it needs
    unordered:    the text without ORDER BY, if the hint has an order
    parameters:   the names of those that the text has; None if it has all that were given
    node:         of the tree, in which a table that isn't read as it is now has its alias
    """

    text: str
    tables: tuple[TableName, ...]
    is_explained: bool
    hint: Hint = field(default_factory=Hint)
    unordered: str = ""
    parameters: frozenset[str] | None = None
    node: dict[str, Any] = field(default_factory=dict)

    def left_of(self, parameters: Parameters) -> Parameters:
        """The parameters without those that only a function in FROM has used."""
        if self.parameters is None or parameters is None:
            return parameters
        named = parameters if isinstance(parameters, Mapping) else {str(n): value for n, value in enumerate(parameters, 1)}
        return {name: value for name, value in named.items() if name in self.parameters}


def parse_statement(
    duck: Duck,
    text: str,
    parameters: Parameters = None,
    at: int | str | None = None,
    read: Callable[[dict[str, Any]], bool] | None = None,
    *,
    is_described: bool = False,
) -> Statement:
    """The statement of a text.  Raises INVALID_STATEMENT.

    at:    the batch or time of tables that don't name one
    read:  changes the tree of a text that isn't in DuckDB's own words; returns whether it did
    is_described: whether only its columns are wanted, before there are parameters
    """
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise _refused(f"The statement has over {MOST_BYTES:,} bytes.")
    explained, select = _without_explain(text)
    tree = duck.parse(select)
    statements = tree["statements"]
    if len(statements) != 1:
        raise _refused(f"There are {len(statements)} statements.")
    found: dict[TableName, TableName] = {}
    changed = read is not None and read(statements[0])
    top = statements[0]["node"]
    nodes = list(_find_tables(top, frozenset()))
    for node in nodes:
        named = _function(node, parameters, is_described) if node["type"] == "TABLE_FUNCTION" else _table(node, at)
        if named.function and named.function not in PAST_FUNCTIONS:
            named = _at(named, at)
        elif named.function and at is not None:
            raise _refused(f"{named.function}() reads the newest batch.", "Leave `at` out, and write AT behind the other tables.")
        table = found.get(named)
        if table is None:
            _check_case(named.name, found.values())
            is_own = named != TableName(named.name)
            table = found[named] = replace(named, alias=f"{named.name} {len(found)}" if is_own else "")
        if table.alias:
            changed = True
            _name_anew(node, table)
    hint = find_hint(top, nodes[0], parameters) if len(nodes) == 1 else Hint()
    written, unordered = duck.write(tree) if changed else select, ""
    if hint.order is not None:
        without_order(top)
        unordered = duck.write(tree)
    has_functions = any(each.function for each in found)
    used = frozenset(parameter_names(top)) if has_functions else None
    return Statement(written, tuple(found.values()), explained, hint, unordered, used, top)


def _table(node: dict[str, Any], at: int | str | None) -> TableName:
    own = node["at_clause"]
    if own is not None:
        return TableName(node["table_name"], *_moment(own))
    return _at(TableName(node["table_name"]), at)


def _at(table: TableName, at: int | str | None) -> TableName:
    return replace(table, batch=at) if isinstance(at, int) else replace(table, time=at)


def _function(node: dict[str, Any], parameters: Parameters, is_described: bool) -> TableName:
    """What changes('t', 41) or total('t') names; before there are parameters, without the arguments that are some."""
    function = node["function"]["function_name"].lower()
    order = ("table", *TABLE_FUNCTIONS[function])
    given: dict[str, Any] = {}
    for place, argument in enumerate(node["function"]["arguments"]):
        name = argument["name"].lower() or (order[place] if place < len(order) else "")
        if is_described and argument["expression"]["class"] == "PARAMETER" and name in order:
            if name == "table":
                raise _refused(
                    "A parameter names a table, so the columns aren't known before its value.", "Write the table's name."
                )
            given[name] = None
            continue
        value = _literal(argument["expression"], parameters)
        value = _time(value) if name in ("since", "until") else value
        is_past = name in ("since", "until") and function in PAST_FUNCTIONS
        if name not in order or name in given or not isinstance(value, int | str if is_past else str) or value is True:
            raise _wrong_arguments(function)
        given[name] = value
    if not given.keys() >= _NEEDED[function]:
        raise _wrong_arguments(function)
    return TableName(given.pop("table"), function=function, **given)


def _time(value: Any) -> Any:
    """A time as the text that reads take, also one in SQL's form: `2026-03-01 12:00:00+00`; other values as they are."""
    try:
        moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return moment.isoformat() if isinstance(moment, dt.datetime) and moment.tzinfo is not None else value


def _literal(node: dict[str, Any], parameters: Parameters) -> Any:
    """A literal, or the value of a parameter."""
    if node["class"] == "PARAMETER":
        value = parameter_value(node, parameters)
        check_batch(value)
        return value
    literal = node.get("literal") if node["class"] == "CONSTANT" else None
    text = None if literal is None else str(literal.get("text"))
    if literal is None or text is None:
        return None
    return _batch(text) if literal.get("kind") == "INTEGER" and is_number(text) else text


def _wrong_arguments(function: str) -> RequestError:
    takes = "batches or times" if function in PAST_FUNCTIONS else "times"
    step = ", a step" if function == "series" else ""
    return _refused(
        f"{function}() takes the name of a table{step}, and {takes}.",
        f"Write {_EXAMPLES[function]}; a time is a text.",
    )


def _name_anew(node: dict[str, Any], table: TableName) -> None:
    """Let a node of the tree name a table by its alias."""
    if node["type"] == "TABLE_FUNCTION":
        alias, columns, sample = node["alias"] or table.function, node["column_name_alias"], node["sample"]
        place = {name: node[name] for name in ("query_location", "query_location_length")}
        node.clear()
        node.update({"type": "BASE_TABLE", "alias": alias, "sample": sample, **place, "column_name_alias": columns})
        node.update({"schema_name": "", "catalog_name": "", "at_clause": None})
    else:
        node["alias"] = node["alias"] or table.name
    node["at_clause"], node["table_name"], node["qualified_name"] = None, table.alias, {"path": [table.alias]}


def _check_case(name: str, others: Iterable[TableName]) -> None:
    """Raise INVALID_STATEMENT if DuckDB, which knows no case, would take another table for this one."""
    for other in others:
        if other.name != name and other.name.lower() == name.lower():
            raise _refused(f"{other.name} and {name} are one name in SQL.", "Read them by two statements, or by `scan`.")


def _without_explain(text: str) -> tuple[bool, str]:
    words = text.split(None, 2)
    if words and words[0].lower() == "explain":
        rest = text.lstrip()[len(words[0]) :]
        return True, rest
    return False, text


def _find_tables(node: Any, above: frozenset[str]) -> Iterator[dict[str, Any]]:
    """All references to tables that no WITH clause names.  Raises INVALID_STATEMENT."""
    if isinstance(node, list):
        for each in node:
            yield from _find_tables(each, above)
        return
    if not isinstance(node, dict):
        return
    known = above
    ctes = node.get("cte_map")
    if isinstance(ctes, dict):
        # A name is known in the queries that follow it, and in its own if that is recursive.
        for each in ctes["map"]:
            query, name = each["value"], each["key"].lower()
            yield from _find_tables(query, known | {name} if _is_recursive(query) else known)
            known = known | {name}
    kind = node.get("type")
    if kind == "BASE_TABLE":
        path = node["qualified_name"]["path"]
        if len(path) != 1 or node["catalog_name"] or node["schema_name"]:
            raise _refused(f"{'.'.join(path)} isn't a table of the pond.", 'Quote a name with a dot: "a.b".')
        if path[0].lower() not in known or node["at_clause"] is not None:
            yield node
    elif kind == "TABLE_FUNCTION":
        name = node["function"]["function_name"].lower()
        if name in TABLE_FUNCTIONS:
            if node["with_ordinality"] != "WITHOUT_ORDINALITY" or node["function"]["qualified_name"]["path"] != [name]:
                raise _wrong_arguments(name)
            yield node
            return
        if name not in _FUNCTIONS:
            names = ", ".join(sorted([*_FUNCTIONS, *TABLE_FUNCTIONS]))
            raise _refused(f"The function {name} isn't known in FROM.", f"Use a table, or one of: {names}.")
    elif kind == "SHOW_REF" and node["show_type"] not in ("DESCRIBE", "SUMMARY"):
        raise _refused("SHOW isn't known.", "List the tables with `millpond tables`; DESCRIBE TABLE works.")
    for name, value in node.items():
        if name != "cte_map":
            yield from _find_tables(value, known)


def _is_recursive(query: Any) -> bool:
    if isinstance(query, list):
        return any(map(_is_recursive, query))
    if isinstance(query, dict):
        return query.get("type") == "RECURSIVE_CTE_NODE" or any(map(_is_recursive, query.values()))
    return False


def _moment(at: dict[str, Any]) -> tuple[int | None, str | None]:
    """The batch or the time of an AT clause, which are literals."""
    unit, node = at["unit"].upper(), at["expr"]
    while node["class"] == "CAST":
        node = node["child"]
    literal = node.get("literal") if node["class"] == "CONSTANT" else None
    text = None if literal is None else str(literal.get("text"))
    if unit == "VERSION" and text is not None and is_number(text):
        return _batch(text), None
    if unit == "TIMESTAMP" and text is not None:
        return None, text
    raise _refused("AT has no batch and no time.", "Write AT (VERSION => 41), or AT (TIMESTAMP => '2026-03-01T12:00Z').")


def check_batch(value: Any) -> None:
    """Raise INVALID_STATEMENT for a number that is too large for a batch."""
    if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
        raise _too_long()


def _batch(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise _too_long()
    return int(text)


def _too_long() -> RequestError:
    return _refused(f"A batch has at most {MOST_DIGITS} digits.", "Name a batch of the job.")


def _refused(found: str, hint: str = _HINT) -> RequestError:
    return RequestError("INVALID_STATEMENT", found, hint=hint)
