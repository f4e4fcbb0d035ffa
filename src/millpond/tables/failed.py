"""A value that can't be computed, where the others of its row can: Spark in ANSI mode would fail where it emits the row.

Most are of rows that Spark hasn't emitted yet, such as a window that isn't finished.  So the error is that value's: whoever reads
the value gets it raised, and the rest of the row and of the table can be read.  A row in JSON has null there, and a member
`_errors` that says why.

    {"page": "/", "ratio": null, "_errors": {"ratio": {"condition", "message", "hint"}}}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from millpond.errors import MillpondError, RequestError

ERRORS = "_errors"
CONDITIONS = frozenset({"VALUE_OUT_OF_RANGE", "JAVA_UNKNOWN"})
"""What a value may fail with; any other condition ends the read."""


class FailedValue:
    """What a row holds in place of a value that can't be computed.

    error:  what reading it raises
    """

    __slots__ = ("error",)

    def __init__(self, error: MillpondError) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"<failed: {self.error}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FailedValue) and str(self.error) == str(other.error)

    def __hash__(self) -> int:
        return hash(str(self.error))

    def __bool__(self) -> NoReturn:
        raise self.error


class FailingValues(dict[str, Any]):
    """Columns by name, some of which failed: `values[name]` and `get` raise the error of such a one.

    A copy of it as a plain dict, and `values()` and `items()`, have a `FailedValue` there.
    """

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        return checked(dict.__getitem__(self, name))

    def get(self, name: str, default: Any = None) -> Any:
        return checked(dict.get(self, name, default))

    @property
    def errors(self) -> dict[str, MillpondError]:
        """The errors, by column."""
        return errors_of(self)


def checked(value: Any) -> Any:
    """The value.  Raises its error where it failed."""
    if type(value) is FailedValue:
        raise value.error
    return value


def failed(error: RequestError, column: str) -> FailedValue:
    """What stands for a column's value.  Raises the error where it isn't one of a value."""
    if error.condition not in CONDITIONS:
        raise error
    return FailedValue(
        RequestError(error.condition, f"Column {column!r}: {error.message}", hint=error.hint, **{**error.context, "column": column})
    )


def filter_failed(error: RequestError) -> RequestError:
    """The error of every value of a row that may or may not be in the table.  Raises as `failed`."""
    if error.condition not in CONDITIONS:
        raise error
    message = f"It is unknown whether this row is in the table, for the filter after the aggregation fails: {error.message}"
    return RequestError(error.condition, message, hint=error.hint, **error.context)


def errors_of(row: dict[str, Any]) -> dict[str, MillpondError]:
    """The errors of a row's values, by column."""
    return {name: value.error for name, value in row.items() if type(value) is FailedValue}


def errors_json(row: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The same as JSON."""
    return {
        name: {"condition": error.condition, "message": error.message, "hint": error.hint} for name, error in errors_of(row).items()
    }


def values_from_json(values: dict[str, Any], errors: Any) -> dict[str, Any]:
    """Columns by name whose errors JSON tells, as `errors_json` wrote them; the columns themselves where there are none."""
    if not errors:
        return values
    for name, error in errors.items():
        values[name] = FailedValue(RequestError(error["condition"], error["message"], hint=error["hint"], column=name))
    return FailingValues(values)


def free_name(name: str, taken: Iterable[str]) -> str:
    """The name, with so many more underscores in front that no column has it."""
    columns = set(taken)
    while name in columns:
        name = "_" + name
    return name
