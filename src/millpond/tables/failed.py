"""A value that can't be computed, in a row whose other values can.

Spark in ANSI mode would fail when it emits the row.  But it hasn't emitted most such rows yet: the
window isn't finished, for example.  So only reading that value raises its error; the rest of the
row and of the table can be read.  In JSON the value is null, and the member `_errors` says why.

    {"page": "/", "ratio": null, "_errors": {"ratio": {"condition", "message", "hint"}}}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from millpond.errors import MillpondError, RequestError

ERRORS = "_errors"
CONDITIONS = frozenset({"VALUE_OUT_OF_RANGE", "JAVA_UNKNOWN", "SKETCHES_LIBRARY_MISSING"})
"""The conditions with which a value may fail; any other condition ends the read."""


class FailedValue:
    """What a row holds in place of a value that can't be computed.

    error:  reading the value raises it
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
    """Columns by name: `values[name]` and `get` raise a failed value's error.

    A plain dict made from it, `values()` and `items()` have a `FailedValue` there.
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
    """The value.  Raises its error if it failed."""
    if type(value) is FailedValue:
        raise value.error
    return value


def failed(error: RequestError, column: str) -> FailedValue:
    """A stand-in for a column's value.  Raises the error if it isn't one that a value may have."""
    if error.condition not in CONDITIONS:
        raise error
    return FailedValue(
        RequestError(error.condition, f"Column {column!r}: {error.message}", hint=error.hint, **{**error.context, "column": column})
    )


def filter_failed(error: RequestError) -> RequestError:
    """The error of each value of a row if the filter fails on the row.  Raises as `failed`."""
    if error.condition not in CONDITIONS:
        raise error
    message = f"It is unknown whether this row is in the table: the filter after the aggregation fails: {error.message}"
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
    """The values with the errors that `errors_json` wrote; the values as they are if there are none."""
    if not errors:
        return values
    for name, error in errors.items():
        values[name] = FailedValue(RequestError(error["condition"], error["message"], hint=error["hint"], column=name))
    return FailingValues(values)


def free_name(name: str, taken: Iterable[str]) -> str:
    """The name, with as many underscores in front as it takes until no column has it."""
    columns = set(taken)
    while name in columns:
        name = "_" + name
    return name
