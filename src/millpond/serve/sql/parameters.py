"""Parameters of a statement that come as an Arrow record batch."""

from __future__ import annotations

import re
from typing import Any

from millpond.errors import RequestError
from millpond.tables.sql.answer import values_of
from millpond.tables.sql.duck import Parameters

# Texts, quoted names and comments, in which $ means nothing; and parameters with names.
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$""", re.DOTALL)
_NAMED = re.compile(r"\$[A-Za-z_]")
_DAY_SECONDS = 86_400
_MOST_DIGITS = 38


def read_parameters(stream: bytes, statement: str) -> Parameters:
    """The parameters in an Arrow stream with one row: by name if the statement has `$name`, else in their order.

    Raises:  WRONG_TYPE for a value that DuckDB would get as another one: nothing is rounded.
    """
    import pyarrow as pa

    columns = pa.ipc.open_stream(stream).read_all()
    names = columns.column_names
    try:
        exact = [_exact(pa, column) for column in columns.columns]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
        raise _refused(f"a value has no exact form: {wrong!s:.200}") from None
    try:
        (values,) = values_of(exact) or [()]
    except (LookupError, RequestError) as wrong:  # a zone of times in a list may not be known
        raise _refused(f"a value has no exact form: {wrong!s:.200}") from None
    is_named = _NAMED.search(_QUOTED.sub(" ", statement)) is not None and all(map(str.isidentifier, names))
    return dict(zip(names, values, strict=True)) if is_named else list(values)


def _exact(pa: Any, column: Any) -> Any:
    """A column whose values Python has exactly."""
    kinds, type_ = pa.types, column.type
    if kinds.is_dictionary(type_):
        return _exact(pa, column.cast(type_.value_type))
    if kinds.is_timestamp(type_) and (type_.unit == "ns" or type_.tz is not None):
        # The same moment: a client may name a zone that isn't known here.
        return column.cast(pa.timestamp("us", tz=None if type_.tz is None else "UTC"))
    if kinds.is_duration(type_) and type_.unit == "ns":
        return column.cast(pa.duration("us"))
    if kinds.is_time(type_):
        column = column.cast(pa.time64("us"))
        (micros,) = column.cast(pa.int64()).to_pylist()
        if micros is not None and not 0 <= micros < _DAY_SECONDS * 1_000_000:
            raise _refused("a time isn't within a day")
        return column
    if kinds.is_decimal256(type_):
        return column.cast(pa.decimal128(_MOST_DIGITS, type_.scale))
    if not _is_known(kinds, type_):
        raise _refused(f"the type {type_} isn't known")
    return column


def _is_known(kinds: Any, type_: Any) -> bool:
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return _is_known(kinds, type_.value_type)
    if kinds.is_timestamp(type_) or kinds.is_duration(type_) or kinds.is_time64(type_):
        return bool(type_.unit != "ns")
    simple = (
        kinds.is_null,
        kinds.is_boolean,
        kinds.is_integer,
        kinds.is_float32,
        kinds.is_float64,
        kinds.is_string,
        kinds.is_large_string,
        kinds.is_binary,
        kinds.is_large_binary,
        kinds.is_fixed_size_binary,
        kinds.is_date32,
        kinds.is_time32,
        kinds.is_decimal128,
    )
    return any(each(type_) for each in simple)


def _refused(found: str) -> RequestError:
    return RequestError(
        "WRONG_TYPE",
        f"The parameters can't be bound: {found}.",
        hint="Bind numbers, texts, bytes, dates, times or lists of them; or write the value in the statement, with CAST.",
    )
