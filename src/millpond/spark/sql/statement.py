"""What a statement `CREATE AGGREGATE` says, and how it is read.

    CREATE AGGREGATE page_views VERSION 2
    KEY (page) TIME at
    RESOLUTIONS ('1 minute' FOR '2 days', '1 hour' FOR '90 days', '1 day')
    FUTURE SKEW '10 minutes' DEDUPE event_id FOR '2 days' DEAD LETTERS FOR '7 days'
    AS SELECT count(*) AS hits, distinct(host) AS visitors
    FROM json.`/data/visits` SCHEMA 'at timestamp, page string' OPTIONS (maxFilesPerTrigger 10)
    WHERE page <> ''

The clauses before AS come in any order.  Here only their form is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millpond.spark.sql.words import Place, Word, Words, Written, refused, split_words

_CLAUSES = "VERSION, KEY, TIME, RESOLUTIONS, FUTURE SKEW, DEDUPE, DEAD LETTERS or AS SELECT"
_VALUE_HINT = "Write expression AS name; columns of the key are in the table without that."
_OWN = ("DISTINCT", "QUANTILE", "TOP_K")


class Call(NamedTuple):
    """A value that is one of Millpond's own: `quantile(ms, 0.99)`.

    column:   its first argument
    options:  the others: name, or None, and what is written
    """

    function: str
    column: Written
    options: tuple[tuple[str | None, Written], ...]


class Value(NamedTuple):
    """A value of the aggregate: its expression, and the call if it is one of Millpond's own."""

    written: Written
    call: Call | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The stream of events.

    format:   Spark's name of it
    path:     None for one without, such as kafka
    schema:   of its rows, or of the JSON in the column `value`; None for the source's own
    is_value: whether the schema is that of `value`
    options:  of Spark's reader
    where:    which events count; None for all
    place:    where it stands in the file
    """

    format: str
    path: str | None = None
    schema: str | None = None
    is_value: bool = False
    options: dict[str, str] = field(default_factory=dict, repr=False)
    where: Written | None = None
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement.

    version:  None if it has none
    lengths:  future_skew, dedupe and dead_letters, as for `Aggregate`, if the statement has them
    source:   None if it has no FROM
    place:    where it begins
    """

    name: str
    version: int | None
    key: tuple[str, ...]
    event_time: str
    values: dict[str, Value]
    resolutions: dict[str, str | None]
    lengths: dict[str, Any]
    source: Source | None
    place: Place


def parse_statements(text: str) -> list[Statement]:
    """All statements of a text, which `;` ends.  Raises INVALID_STATEMENT, LIBRARY_MISSING."""
    words = Words(text, split_words(text))
    found: list[Statement] = []
    while not words.is_over:
        if words.take(";"):
            continue
        place = words.place
        part = words.until(";")
        statement = _parse(words.part(part), place) if part else words.fail("CREATE AGGREGATE", "Write a statement.")
        if any((statement.name.lower(), statement.version) == (other.name.lower(), other.version) for other in found):
            raise refused(f"there are two aggregates {statement.name}", place, "Give one of them another name or version.")
        found.append(statement)
    if not found:
        raise refused("there is no statement", words.place, "Write CREATE AGGREGATE name ….")
    return found


def _parse(words: Words, place: Place) -> Statement:
    words.expect("CREATE", "AGGREGATE", hint="Write CREATE AGGREGATE name ….")
    name = words.name("the name of the aggregate")
    said: dict[str, Any] = {}
    while not words.take("AS"):
        at = words.place
        clause, value = _clause(words)
        if clause in said:
            raise refused(f"{clause.upper().replace('_', ' ')} is there twice", at, "Leave one of them out.")
        said[clause] = value
    for clause, hint in (
        ("time", "Add TIME and the column with the time of an event."),
        ("resolutions", "Add RESOLUTIONS ('1 hour')."),
    ):
        if clause not in said:
            raise refused(f"{name} has no {clause.upper()}", place, hint)
    words.expect("SELECT", hint="Write AS SELECT and the values.")
    values = _values(words)
    source = _source(words) if words.take("FROM") else None
    if not words.is_over:
        words.fail("the end of the statement", "End the statement with ;")
    return Statement(
        name=name,
        version=said.pop("version", None),
        key=said.pop("key", ()),
        event_time=said.pop("time"),
        values=values,
        resolutions=said.pop("resolutions"),
        lengths=said,
        source=source,
        place=place,
    )


def _clause(words: Words) -> tuple[str, Any]:
    if words.take("KEY"):
        return "key", tuple(_list(words, lambda: words.name("a column"), "Write KEY (page, host), or KEY ()."))
    if words.take("VERSION"):
        return "version", words.whole_number("a version")
    if words.take("TIME"):
        return "time", words.name("the column with the time of an event")
    if words.take("RESOLUTIONS"):
        return "resolutions", _resolutions(words)
    if words.take("FUTURE", "SKEW"):
        return "future_skew", _length_or_none(words)
    if words.take("DEDUPE"):
        column = words.name("the column that tells events apart")
        words.expect("FOR", hint="Write DEDUPE event_id FOR '2 days'.")
        return "dedupe", (column, words.text("a length of time"))
    if words.take("DEAD", "LETTERS"):
        words.take("FOR")
        return "dead_letters", _length_or_none(words)
    return words.fail(_CLAUSES, "Clauses come in any order, and AS SELECT is the last.")


def _length_or_none(words: Words) -> str | None:
    return None if words.take("NONE") else words.text("a length of time, or NONE")


def _list(words: Words, read: Any, hint: str) -> list[Any]:
    """What is in brackets, with commas between; may be nothing."""
    words.expect("(", hint=hint)
    found: list[Any] = []
    while not words.take(")"):
        if found:
            words.expect(",", hint=hint)
        found.append(read())
    return found


def _resolutions(words: Words) -> dict[str, str | None]:
    def one() -> tuple[str, str | None, Place]:
        place = words.place
        length = words.text("the length of buckets")
        if not words.take("FOR"):
            return length, None, place
        return length, None if words.take("EVER") else words.text("how long buckets are kept"), place

    found: dict[str, str | None] = {}
    for length, keep, place in _list(words, one, "Write RESOLUTIONS ('1 minute' FOR '2 days', '1 day')."):
        if length in found:
            raise refused(f"{length} is there twice", place, "Leave one of them out.")
        found[length] = keep
    return found


def _values(words: Words) -> dict[str, Value]:
    values: dict[str, Value] = {}
    while True:
        place = words.place
        item = words.until(",", "FROM")
        alias = item[-1] if len(item) > 2 and item[-1].kind in ("name", "quoted") else None
        if alias is None or item[-2].kind != "name" or item[-2].value.upper() != "AS":
            raise refused("a value has no name", place, _VALUE_HINT)
        if alias.value in values:
            raise refused(f"two values are named {alias.value}", place, "Name one of them otherwise.")
        values[alias.value] = Value(words.written(item[:-2]), _call(words, item[:-2]))
        if not words.take(","):
            return values


def _call(words: Words, item: list[Word]) -> Call | None:
    """The call of one of Millpond's own values; None if it is another expression."""
    function = item[0].value.upper()
    if item[0].kind != "name" or function not in _OWN or len(item) < 3 or item[1].value != "(" or item[-1].value != ")":
        return None
    inner = words.part(item[1:])
    inner.expect("(", hint=_VALUE_HINT)
    arguments: list[tuple[str | None, Written]] = []
    while True:
        place = inner.place
        part = _argument(inner)
        if not part:
            raise refused(f"{function.lower()} lacks an argument", place, f"Write {function.lower()}(column, …).")
        named = part[0].value if len(part) > 2 and part[0].kind == "name" and part[1].value == "=>" else None
        arguments.append((named, words.written(part[2:] if named else part)))
        if not inner.take(","):
            break
    inner.expect(")", hint="Close the bracket.")
    if not inner.is_over:  # `quantile(a, 0.5) + (1)`
        return None
    if arguments[0][0] is not None:
        raise refused(f"{function.lower()} begins with an option", arguments[0][1].place, "Write the column first.")
    return Call(function.lower(), arguments[0][1], tuple(arguments[1:]))


def _argument(words: Words) -> list[Word]:
    return words.until(",", ")")


def _source(words: Words) -> Source:
    place = words.place
    format_ = words.name("the format of a streaming source")
    path = words.path() if words.take(".") else None
    is_value = words.take("VALUE")
    schema = None
    if is_value or words.is_next("SCHEMA"):
        words.expect("SCHEMA", hint="Write VALUE SCHEMA 'at timestamp, …'.")
        schema = words.text("a schema")
    options: dict[str, str] = {}
    if words.take("OPTIONS"):
        for name, value, at in _list(words, lambda: _option(words), "Write OPTIONS (maxFilesPerTrigger 10)."):
            if name.lower() in (other.lower() for other in options):
                raise refused(f"the option {name} is there twice", at, "Leave one of them out.")
            options[name] = value
    where = None
    if words.take("WHERE"):
        condition = words.until()
        if not condition:
            words.fail("a condition", "Write WHERE and a condition.")
        where = words.written(condition)
    return Source(format=format_, path=path, schema=schema, is_value=is_value, options=options, where=where, place=place)


def _option(words: Words) -> tuple[str, str, Place]:
    place = words.place
    name = words.option_name()
    words.take("=")
    return name, words.option(), place
