"""Parameters of statements: their types, where a statement shows them, and their values for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from millpond.errors import RequestError
from millpond.serve.sql.contexts import WORDS, Contexts, column_type
from millpond.serve.sql.postgres.arrays import array_items
from millpond.serve.sql.postgres.types import BY_NAME, BY_OID, TEXT, PgType, to_duck
from millpond.tables.sql.limited import is_number

Node = dict[str, Any]
MOST = 65_535
_MOST_DIGITS = 38
_WHOLE = frozenset({"int2", "int4", "int8", "oid"})
_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]+\s*")
_OF_ARROW = {
    "bool": "bool",
    "int8": "int2",
    "int16": "int2",
    "int32": "int4",
    "int64": "int8",
    "uint32": "oid",
    "float": "float4",
    "double": "float8",
    "string": "text",
    "binary": "bytea",
    "date32[day]": "date",
    "timestamp[us]": "timestamp",
    "timestamp[us, tz=UTC]": "timestamptz",
    "duration[us]": "interval",
    "time64[ns]": "time",
}
# Answers to what a statement may do with a value of its type, before there is one.
_EXAMPLES: dict[str, Any] = {"DATE": "2000-01-01", "TIMESTAMP": "2000-01-01", "TIMESTAMP WITH TIME ZONE": "2000-01-01 00:00:00+00"}
_EXAMPLES |= {"TIME": "00:00:00", "INTERVAL": "0 days", "UUID": "0" * 32, "BOOLEAN": True, "BLOB": b"", "JSON": "null"}
_BOOLEANS = dict.fromkeys(("t", "true", "1", "on", "y", "yes"), True) | dict.fromkeys(("f", "false", "0", "off", "n", "no"), False)


def oid_of_word(word: str) -> int | None:
    """The type of a word such as `int` or `text[]`, 0 for `unknown`; None if there is none."""
    name = " ".join(word.lower().removeprefix("pg_catalog.").split())
    if name == "unknown":
        return 0
    plain_name = name.removesuffix("[]")
    found = BY_NAME.get(WORDS.get(plain_name.replace("double precision", "double"), plain_name))
    if found is None:
        return None
    return (found.array_oid or None) if name.endswith("[]") else found.oid


def _type_of(contexts: Contexts, name: str, schemas: Sequence[Any]) -> PgType:
    """The type that the statement shows for a parameter.

    schemas:  of the statement's tables
    """
    kind, known = contexts.find(name)
    found = TEXT
    if kind in ("type", "array of type"):
        found = BY_NAME.get(known, TEXT)
    elif kind in ("column", "array of column"):
        arrow = column_type(known, schemas)
        if arrow is not None:
            found = BY_NAME["numeric"] if str(arrow).startswith("decimal") else BY_NAME.get(_OF_ARROW.get(str(arrow), ""), TEXT)
    return BY_OID[found.array_oid] if kind.startswith("array") and found.array_oid else found


def types_of(contexts: Contexts, given: Sequence[int], schemas: Sequence[Any]) -> list[PgType]:
    """The type of each parameter in their order: as the client gives it, or as the statement shows it.

    given:   the client's types, 0 for none
    Raises:  INVALID_STATEMENT.
    """
    numbers = [int(name) for name in contexts.names if is_number(name)]
    if len(numbers) < len(contexts.names) or any(not 1 <= n <= MOST for n in numbers):
        raise RequestError("INVALID_STATEMENT", "A parameter isn't written as $1, $2, ….", hint="Number the parameters from $1.")
    count = max([len(given), *numbers])
    found = []
    for n in range(1, count + 1):
        oid = given[n - 1] if n <= len(given) else 0
        known = BY_OID.get(oid) if oid not in (0, 705) else None
        found.append(known or _type_of(contexts, str(n), schemas))
    return found


def plain(given: Sequence[Any], types: Sequence[int]) -> list[Any]:
    """The values as Python has them where that matters before DuckDB: numbers of rows and batches."""
    whole = (BY_NAME["int2"].oid, BY_NAME["int4"].oid, BY_NAME["int8"].oid)
    is_whole = [place < len(types) and types[place] in whole for place in range(len(given))]
    return [int(v) if w and v and _is_whole(v) else v for v, w in zip(given, is_whole, strict=True)]


def _is_whole(text: str) -> bool:
    return len(text) <= _MOST_DIGITS and _WHOLE_NUMBER.fullmatch(text) is not None


def values(types: Sequence[PgType], given: Sequence[Any] | None, names: set[str], value_of: Any) -> dict[str, Any]:
    """The values for DuckDB by name.

    given:     their texts, lists of these, and None; None for examples, to describe a statement
    value_of:  makes DuckDB's value of a Python value and the name of a type
    Raises:    INVALID_STATEMENT if a value isn't there, or isn't of its type.
    """
    found = {}
    for name in names:
        place = int(name) - 1
        if given is not None and place >= len(given):
            raise RequestError("INVALID_STATEMENT", f"There is no value for ${name}.", hint="Bind a value for each parameter.")
        type_ = types[place]
        duck = to_duck(type_)
        if given is None:
            found[name] = value_of(_example(type_, duck), _sized(duck, "0")) if duck else ""
        else:
            text = given[place]
            found[name] = text if text is None or duck is None else value_of(_read(type_, text), _sized(duck, text))
    return found


def _example(type_: PgType, duck: str | None) -> Any:
    if type_.element is not None:
        return []
    return _EXAMPLES.get(duck or "", "0")


def _sized(duck: str, text: str) -> str:
    """DECIMAL with digits for this number, or for those of an array; DOUBLE for what isn't finite.

    Raises INVALID_STATEMENT if there are too many digits: to round them would find other rows.
    """
    if duck not in ("DECIMAL", "DECIMAL[]"):
        return duck
    whole, part = 1, 0
    for item in [text] if duck == "DECIMAL" else [each for each in array_items(text) if each is not None]:
        try:
            number = Decimal(item.strip())
        except InvalidOperation:
            raise RequestError(
                "INVALID_STATEMENT", f"invalid input syntax for type numeric: {item[:40]!r}", hint="Write a number."
            ) from None
        if not number.is_finite():
            return duck.replace("DECIMAL", "DOUBLE")
        _, digits, exponent = number.as_tuple()
        shown = "".join(map(str, digits)).rstrip("0")
        places = int(exponent) + len(digits) - len(shown)  # of the last digit that isn't zero
        if shown:
            part = max(part, -places)
            whole = max(whole, len(shown.lstrip("0")) + places)
    if whole + part > _MOST_DIGITS:
        raise RequestError(
            "INVALID_STATEMENT",
            f"The value {text[:60]} has more digits than the {_MOST_DIGITS} of a number here.",
            hint="Write CAST($1 AS double precision) if it needn't be exact.",
        )
    return duck.replace("DECIMAL", f"DECIMAL({whole + part},{part})")


def _read(type_: PgType, text: str) -> Any:
    if type_.element is not None:
        return [None if item is None else _read(type_.element, item) for item in array_items(text)]
    if type_.name == "bytea":
        return _bytes(text)
    if type_.name == "bool":
        if text.strip().lower() not in _BOOLEANS:
            raise RequestError(
                "INVALID_STATEMENT", f"invalid input syntax for type boolean: {text[:40]!r}", hint="Write true or false."
            )
        return _BOOLEANS[text.strip().lower()]
    if type_.name in _WHOLE and not _WHOLE_NUMBER.fullmatch(text):
        raise RequestError(
            "INVALID_STATEMENT", f"invalid input syntax for type {type_.name}: {text[:40]!r}", hint="Write a whole number."
        )
    return text.strip()


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        return text.encode()
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise RequestError(
            "INVALID_STATEMENT", f"invalid hexadecimal data: {text[:40]!r}", hint="Write two digits for each byte."
        ) from None
