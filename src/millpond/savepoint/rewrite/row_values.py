"""Values of a state's columns by their names, between the form in which Spark stores them and that in which reads give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millpond.checkpoint.whole.rows import Columns
from millpond.errors import MillpondError, RequestError
from millpond.schema.convert import to_python, to_stored
from millpond.schema.definition.table import unique_names
from millpond.schema.types import Field
from millpond.schema.values import to_json

_NESTED = frozenset({"struct", "array", "map"})
# Equal values of these are the same to the bit.
_EXACT = frozenset({int, str, bytes, bool})
Json = Any


class NamedColumns:
    """Columns of a key or a value, under names of their own."""

    def __init__(self, fields: Sequence[Field], table: str) -> None:
        self._table = table
        self.names = unique_names([f.name for f in fields])
        self._fields = list(fields)
        self._read = [to_python(f.type) for f in fields]
        self._write = [to_stored(f.type, column=name) for name, f in zip(self.names, fields, strict=True)]
        self._json = [to_json(f.type) for f in fields]

    def read(self, stored: Columns) -> dict[str, Any]:
        return {name: read(value) for name, read, value in zip(self.names, self._read, stored, strict=True)}

    def write(self, row: Any, before: Columns | None) -> Columns:
        """Stored form; what didn't change keeps the form that it had, to the bit."""
        if not isinstance(row, dict) or row.keys() != set(self.names):
            hint = f"Give a dict of exactly: {', '.join(self.names)}."
            raise wrong(f"A row of {self._table} has other columns: {row!r:.200}", hint)
        out = []
        for i, (name, of) in enumerate(zip(self.names, self._fields, strict=True)):
            value = row[name]
            if before is not None and _same(value, self._read[i](before[i]), is_nested=of.type.kind in _NESTED):
                out.append(before[i])
                continue
            if value is None and not of.nullable:
                raise RequestError("WRONG_TYPE", f"{name} of {self._table} can't be NULL.", hint="Give a value.", column=name)
            out.append(self._write[i](value))
        return tuple(out)

    def to_json(self, row: Mapping[str, Any]) -> dict[str, Json]:
        return {name: write(row[name]) for name, write in zip(self.names, self._json, strict=True)}


def _same(value: Any, before: Any, *, is_nested: bool) -> bool:
    if is_nested:
        return bool(value == before)
    # -0.0 is another value than 0.0, True than 1, and NaN is the same as NaN.
    if type(value) is not type(before):
        return False
    return bool(value == before) if type(value) in _EXACT else value is before or repr(value) == repr(before)


def call_user(what: Callable[[], str], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's.

    what:    which one, and of what, if it fails
    Raises:  INVALID_REQUEST if it raises anything but an error of Millpond's.
    """
    try:
        return function(*arguments)
    except (MillpondError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise wrong(f"{what()} ends with {type(error).__name__}: {error!s:.300}", "Mend it, and try again.") from error


def wrong(what: str, hint: str) -> RequestError:
    """What a user's function gives can't be used."""
    return RequestError("INVALID_REQUEST", f"{what}.", hint=hint)
