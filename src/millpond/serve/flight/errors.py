"""Errors as clients of Flight know them: a kind of gRPC's, and a text that begins with our condition."""

from __future__ import annotations

import json
from typing import Any

from millpond.errors import CONDITIONS, MillpondError
from millpond.tables.forms.arrow import pyarrow

_MOST_CHARACTERS = 1000
_CANCELLED = {"READ_TOO_LONG": "FlightTimedOutError"}
_KINDS = {
    401: "FlightUnauthenticatedError",
    403: "FlightUnauthorizedError",
    429: "FlightUnavailableError",
    503: "FlightUnavailableError",
}
WRITES = "This server only reads: its tables are the state of Spark jobs."


class Cancelled(Exception):
    """The client has cancelled its call, or is gone."""


class NotTaken(Exception):
    """A call of Flight that this server doesn't answer."""


def flight_error(error: BaseException) -> Any:
    """The error that a client gets; one of pyarrow's own comes with Python's traceback."""
    pyarrow()
    from pyarrow import flight

    if isinstance(error, flight.FlightError):
        return error
    if isinstance(error, Cancelled):
        return flight.FlightCancelledError("The call was cancelled.")
    if isinstance(error, NotTaken):
        return flight.FlightServerError(f"NOT_ALLOWED: {error}")
    if not isinstance(error, MillpondError):
        return flight.FlightInternalError("INTERNAL_ERROR: An unexpected error. Look at the server's log.")
    known = CONDITIONS.get(error.condition)
    name = _CANCELLED.get(error.condition) or _KINDS.get(0 if known is None else known.http_status, "FlightServerError")
    text = f"{error.condition}: {_short(error.message)} {_short(error.hint)}".rstrip(" .")  # Arrow puts a full stop behind it
    more = json.dumps({"condition": error.condition, "hint": _short(error.hint)}).encode()
    return getattr(flight, name)(text, more)


def _short(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode()
    return plain if len(plain) <= _MOST_CHARACTERS else f"{plain[:_MOST_CHARACTERS]}…"
