"""The options of the source `millpond`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from millpond.errors import RequestError

STARTS = ("all", "latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What is read.  As Spark options `start` is startingBatch, `max_batches` maxBatchesPerTrigger.

    pond:        a pond or a bare checkpoint
    table:       its name
    changes:     whether the table's changes are read, as a stream, or its rows
    batch:       of a batch read: as of this batch; None for the newest when the read is planned
    columns:     only these; None for all
    where:       of a batch read: conditions that all rows meet; as an option one text, or a JSON
                 list of texts
    expired:     of a batch read: whether to show rows whose TTL has passed before Spark has removed
                 them
    start:       of a stream: `all` begins with the whole table as inserts, `latest` with the changes
                 after the newest batch
    max_batches: of a stream: how many of the table's batches one micro-batch takes; None for all
                 that are there
    tasks:       how many tasks read; each reads some partitions of the state.  Eight keep the cores
                 of a machine busy, and a task costs some ten milliseconds
    allow:       a place outside the pond that it may name
    """

    pond: str
    table: str
    changes: bool
    batch: int | None
    columns: tuple[str, ...] | None
    where: tuple[str, ...]
    expired: bool
    start: str
    max_batches: int | None
    tasks: int
    allow: tuple[str, ...]


_KNOWN = (
    *("pond", "path", "table", "columns", "tasks", "allow"),
    *("batch", "where", "expired"),
    *("changes", "startingBatch", "maxBatchesPerTrigger"),
)


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Turn Spark's options (text; names in any case) into ours.

    Raises:  INVALID_REQUEST if one is missing, unknown or wrong.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in _KNOWN}
    for name in sorted(given.keys() - known):
        raise RequestError(
            "INVALID_REQUEST",
            f"The source has no option {name!r:.80}.",
            hint=f"Its options are {', '.join(name for name in _KNOWN if name != 'path')}.",
            option=name,
        )
    pond, table = given.get("pond") or given.get("path"), given.get("table")
    if not pond:
        raise _invalid("pond", pond, "the folder of a pond or a checkpoint")
    if not table:
        raise _invalid("table", table, "the name of a table")
    start = given.get("startingbatch", "all")
    if start not in STARTS:
        raise _invalid("startingBatch", start, "all or latest")
    columns = given.get("columns")
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    if names is not None and (not all(names) or len(set(names)) < len(names)):
        raise _invalid("columns", columns, "different names with a comma between them")
    return SourceOptions(
        pond=pond,
        table=table,
        changes=_flag(given, "changes"),
        batch=_number(given, "batch", 0),
        columns=names,
        where=_conditions(given.get("where")),
        expired=_flag(given, "expired"),
        start=start,
        max_batches=_number(given, "maxBatchesPerTrigger", 1),
        tasks=_number(given, "tasks", 1) or 8,
        allow=(given["allow"],) if given.get("allow") else (),
    )


def _conditions(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    if not text.lstrip().startswith("["):
        return (text,)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _invalid("where", text, "one condition, or a JSON list of conditions")
    return tuple(found)


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise _invalid(name, text, "true or false")
    return text == "true"


def _number(given: Mapping[str, str], name: str, least: int) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and least <= int(text) < 2**31):
        raise _invalid(name, text, f"a whole number from {least} on")
    return int(text)


def _invalid(name: str, value: object, wanted: str) -> RequestError:
    return RequestError("INVALID_REQUEST", f"The option {name} is {value!r:.100}.", hint=f"Give {name} as {wanted}.", option=name)
