"""Errors as PostgreSQL's clients know them: SQLSTATE, message, hint.

Source:  https://www.postgresql.org/docs/15/errcodes-appendix.html
"""

from __future__ import annotations

import re
from typing import Any

from millpond.errors import CONDITIONS, MillpondError
from millpond.serve.postgres.wire import notice

QUERY_CANCELED, READ_ONLY, NOT_SUPPORTED = "57014", "25006", "0A000"
_STATES = {
    "UNKNOWN_TABLE": "42P01",
    "AMBIGUOUS_TABLE": "42P09",
    "UNKNOWN_COLUMN": "42703",
    "WRONG_TYPE": "42804",
    "INVALID_REQUEST": "22023",
    "INVALID_BOUND": "22023",
    "ANSWER_TOO_LARGE": "54000",
    "SQL_OUT_OF_MEMORY": "53200",
    "SQL_ENDED": "53200",
    "INTERNAL_ERROR": "XX000",
    "READ_TOO_LONG": QUERY_CANCELED,
    "NOT_ALLOWED": "42501",
    "TOKEN_NEEDED": "28P01",
    "TOO_MANY_REQUESTS": "53400",
    "TOO_MANY_CONNECTIONS": "53300",
    "TOO_MANY_DOWNLOADS": "53400",
    "TOO_MANY_ANSWERS": "53400",
    "REPLICA_BUILDING": "57P03",
    "NO_COMMITTED_BATCH": "57P03",
    "REPLICA_BEHIND": "57P03",
    "JOB_REPLACED": "57P03",
    "LIBRARY_MISSING": NOT_SUPPORTED,
    "HISTORY_GONE": "55000",
    "NOT_UP_TO_BOUND": "55000",
    "NOT_ALIGNED": "55000",
}
# How DuckDB's errors begin, and what PostgreSQL would say of them.
_OF_STATEMENTS = (
    (r"syntax error|Parser Error", "42601"),
    (r"Table with name .* does not exist|relation .* does not exist", "42P01"),
    (r"Table Function with name|Function with name .* does not exist|No function matches|The function .* isn't known", "42883"),
    (r"Type with name .* does not exist", "42704"),
    (r"Referenced column .* not found|does not have a column|Referenced table .* not found", "42703"),
    (r"Ambiguous reference", "42702"),
    (r"must appear in the GROUP BY|aggregate", "42803"),
    (r"Division by zero", "22012"),
    (r"Out of Range|out of range|Could not cast value|has ten places here", "22003"),
    (r"Conversion Error|Could not convert|Failed to cast|invalid input syntax|malformed array", "22P02"),
    (r"unrecognized configuration parameter", "42704"),
    (r"Cross-database references", NOT_SUPPORTED),
    (r"There is no value for", "08P01"),
    (r"Invalid Input Error", "22023"),
    (r"Binder Error", "42804"),
)


class PgError(Exception):
    """An error with its SQLSTATE.

    is_fatal:  whether the connection ends with it
    """

    def __init__(self, state: str, text: str, *, hint: str = "", is_fatal: bool = False) -> None:
        super().__init__(text)
        self.state, self.text, self.hint, self.is_fatal = state, text, hint, is_fatal


def state_of(error: MillpondError) -> str:
    """The SQLSTATE of one of our errors."""
    if error.condition in ("INVALID_STATEMENT", "WRONG_TYPE"):
        for pattern, state in _OF_STATEMENTS:
            if re.search(pattern, error.message, re.IGNORECASE):
                return state
        return "42601" if error.condition == "INVALID_STATEMENT" else "42804"
    known = _STATES.get(error.condition)
    if known is not None:
        return known
    found = CONDITIONS.get(error.condition)
    return "22023" if found is not None and found.http_status < 500 else "58000"


def error_message(error: PgError | MillpondError) -> bytes:
    """An error as a message."""
    if isinstance(error, PgError):
        severity = "FATAL" if error.is_fatal else "ERROR"
        fields: dict[str, Any] = {"S": severity, "V": severity, "C": error.state, "M": error.text, "H": error.hint}
    else:
        place = error.context.get("position")
        fields = {"S": "ERROR", "V": "ERROR", "C": state_of(error), "M": error.message, "D": error.condition, "H": error.hint}
        fields["P"] = place
    return notice(fields, is_error=True)


def warning(state: str, text: str) -> bytes:
    """A warning as a message."""
    return notice({"S": "WARNING", "V": "WARNING", "C": state, "M": text}, is_error=False)
