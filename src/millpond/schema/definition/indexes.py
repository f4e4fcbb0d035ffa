"""The indexes of a table: by which values readers may ask for its rows in order.

An index is a tuple of columns, key or value.  Rows are sorted by the first of them, then by the
next, and at last by their key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from millpond.errors import MillpondError, RequestError
from millpond.schema.types import SparkType

if TYPE_CHECKING:
    from millpond.schema.definition.table import TableDefinition

Index = tuple[str, ...]
Indexes = tuple[Index, ...]
Given = Iterable[str | Sequence[str]]
"""`["hits", ("site", "hits")]`"""
_FORMAT = "1"
_MOST_INDEXES, _MOST_COLUMNS = 16, 8
_ORDERED = frozenset(
    {
        "boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string", "binary", "date", "time",
        "timestamp", "timestamp_ntz", "year_month_interval", "day_time_interval",
    }
)  # fmt: skip


def parse_indexes(given: Given) -> Indexes:
    """Indexes as a user writes them: a column's name, or several names.

    Raises:  INVALID_INDEX.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise _invalid(f"indexes is {given!r:.80}", "Give a list, such as ['hits', ('site', 'hits')].")
    out: list[Index] = []
    for each in given:
        index = (each,) if isinstance(each, str) else tuple(each) if isinstance(each, Sequence) else ()
        if not index or not all(isinstance(name, str) and name for name in index):
            raise _invalid(f"{each!r:.80} isn't an index", "Give a column's name, or a tuple of names.")
        if len(set(index)) < len(index) or len(index) > _MOST_COLUMNS:
            raise _invalid(f"the index {name_of(index)} has a column twice, or over {_MOST_COLUMNS}", "Name each column once.")
        if index not in out:
            out.append(index)
    if len(out) > _MOST_INDEXES:
        raise _invalid(f"{len(out)} indexes are given, and a table has at most {_MOST_INDEXES}", "Leave some out.")
    return tuple(out)


def name_of(index: Index) -> str:
    """The index in one word: `site,hits`."""
    return ",".join(index)


def check_indexes(definition: TableDefinition, indexes: Indexes) -> None:
    """Raise an error if the table can't have one of the indexes.

    Raises:  UNKNOWN_COLUMN; WRONG_TYPE for a column without an order; INVALID_INDEX for a table of
             lists, or one whose rows lie in parts.
    """
    if not indexes:
        return
    if definition.many or definition.parts is not None:
        what = "has a list of rows for each key" if definition.many else "lies in parts, which reads merge"
        raise _invalid(f"the table {definition.table} {what}, and such a table has no indexes", "Sort the rows of a scan.")
    types = definition.types
    for name in {name: None for index in indexes for name in index}:
        if name not in types:
            raise RequestError(
                "UNKNOWN_COLUMN",
                f"{definition.table} has no column {name!r:.80} for an index.",
                hint=f"Its columns are: {', '.join(definition.columns)}.",
                table=definition.table,
                column=name,
            )
        if not has_order(types[name]):
            raise RequestError(
                "WRONG_TYPE",
                f"Column {name!r} is a {types[name]}, by which no index sorts.",
                hint="Name columns of numbers, texts or times.",
                table=definition.table,
                column=name,
            )


def has_order(type_: SparkType) -> bool:
    """Whether an index may sort by it: texts of another collation than bytes have another order."""
    return type_.kind in _ORDERED and (type_.kind != "string" or type_.name == "string")


def digest_of(fingerprint: str, index: Index) -> str:
    """A hash of all that decides the entries of an index: the table's meaning, the columns, how they are written."""
    return hashlib.sha256("\n".join([_FORMAT, fingerprint, *index]).encode()).hexdigest()


def indexes_json(indexes: Indexes) -> list[list[str]]:
    """As lists, which `parse_indexes_json` reads."""
    return [list(index) for index in indexes]


def parse_indexes_json(data: Any) -> Indexes:
    """The reverse; none if a definition has none.  Raises ValueError."""
    try:
        return parse_indexes(data or ())
    except MillpondError as error:
        raise ValueError(error.message) from None


def _invalid(what: str, hint: str) -> RequestError:
    return RequestError("INVALID_INDEX", f"{what[0].upper()}{what[1:]}.", hint=hint)
