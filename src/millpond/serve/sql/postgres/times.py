"""Parts of times that are numbers with a fraction in PostgreSQL, and whole numbers or floats in DuckDB.

`extract(epoch FROM t)` is exact in PostgreSQL.  A float isn't: grouped into pieces of 0.2 seconds, as
dashboards do, a time would come into the piece before its own.

Source:  PostgreSQL 15, https://www.postgresql.org/docs/15/functions-datetime.html; checked against it
         by tests/serve/postgres/test_recorded.py.
"""

from __future__ import annotations

import re

from millpond.serve.sql.postgres.nodes import Node

_UNITS = {
    "epoch": "epoch",
    **dict.fromkeys(("second", "seconds", "sec", "secs", "s"), "seconds"),
    **dict.fromkeys(("millisecond", "milliseconds", "msec", "msecs", "ms"), "milliseconds"),
}
_PLAIN = re.compile(r"[0-9]+([.][0-9]+)?")
# The most whole digits of a quotient: of microseconds in 64 bits.
_QUOTIENT = "DECIMAL(20, 0)"
MACROS = {
    # An interval's microseconds have other years than its epoch.
    "epoch": "(x) AS CAST(CASE WHEN typeof(x) = 'INTERVAL' THEN CAST(date_part('epoch', x) AS DECIMAL(19, 6)) "
    "ELSE CAST(epoch_us(x) AS DECIMAL(19, 0)) * 0.000001 END AS DECIMAL(19, 6))",
    "seconds": "(x) AS CAST(CAST(date_part('microseconds', x) AS DECIMAL(10, 0)) * 0.000001 AS DECIMAL(8, 6))",
    "milliseconds": "(x) AS CAST(CAST(date_part('microseconds', x) AS DECIMAL(10, 0)) * 0.001 AS DECIMAL(8, 3))",
    # What is left of the division is exact, and without it the quotient is whole.
    "floor_quotient": f"(a, b) AS CAST(round((a - ((a % b) + b) % b) / b) AS {_QUOTIENT})",
}


def rewritten(name: str, arguments: list[Node]) -> tuple[str, list[Node]] | None:
    """The macro that a call means, and its arguments; None if it means what it does in DuckDB."""
    if name in ("date_part", "datepart") and len(arguments) == 2:
        unit = _unit(arguments[0])
        return None if unit is None else (unit, arguments[1:])
    if name == "floor" and len(arguments) == 1 and _is_quotient_of_epoch(arguments[0]):
        return "floor_quotient", [each["expression"] for each in arguments[0]["arguments"]]
    return None


def _unit(node: Node) -> str | None:
    return _UNITS.get(str(node["literal"]["text"]).lower()) if node["class"] == "CONSTANT" else None


def _is_quotient_of_epoch(node: Node) -> bool:
    """Whether this is extract(epoch FROM …) / number."""
    if node["class"] != "FUNCTION" or not node.get("is_operator") or node["function_name"] != "/":
        return False
    left, right = (each["expression"] for each in node["arguments"])
    if left["class"] != "FUNCTION" or left["function_name"].lower() != "date_part":
        return False
    if _unit(left["arguments"][0]["expression"]) != "epoch":
        return False
    divisor = str(right["literal"]["text"]) if right["class"] == "CONSTANT" else ""
    return _PLAIN.fullmatch(divisor) is not None and float(divisor) > 0
