"""What a server keeps of its tables, from words.

That is retention (`page_views=100`, `visits=no`) and indexes (`page_views=site,hits`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from millpond.catalogue import open_jobs
from millpond.errors import MillpondError, RequestError
from millpond.schema.definition.indexes import Index, Indexes, parse_indexes
from millpond.settings import Retention, RetentionWords
from millpond.storage import open_storage
from millpond.tables.cold.table import find_names
from millpond.tables.default_tables import unknown_table
from millpond.versions import list_names, parse_job

Kept = TypeVar("Kept")


def parse_retention(history: Iterable[str], closed: Iterable[str]) -> dict[str, RetentionWords]:
    """The named parts of retentions, by table; definitions decide the others.

    history:  `TABLE=` and a word for `history` of `Retention.parse`
    closed:   the same for `keep_closed`
    Raises:   INVALID_REQUEST.
    """
    out: dict[str, RetentionWords] = {}
    for word in history:
        table, text = _split("--history", word, "TABLE=24h")
        out[table] = replace(out.get(table, RetentionWords()), history=text)
    for word in closed:
        table, text = _split("--keep-closed", word, "TABLE=24h")
        out[table] = replace(out.get(table, RetentionWords()), keep_closed=text)
    for words in out.values():
        words.over(Retention())
    return out


def parse_index_words(words: Iterable[str]) -> dict[str, Indexes]:
    """Indexes by table, from `TABLE=COLUMN,COLUMN`.  Raises INVALID_REQUEST, INVALID_INDEX."""
    out: dict[str, list[Index]] = {}
    for word in words:
        table, text = _split("--index", word, "TABLE=COLUMN")
        out.setdefault(table, []).append(tuple(text.split(",")))
    return {table: parse_indexes(given) for table, given in out.items()}


def by_pond(named: Mapping[str, Kept], places: Iterable[str]) -> dict[str, dict[str, Kept]]:
    """The same for each pond: `pond/table` counts for that pond, a table's own name for each that has it."""
    out: dict[str, dict[str, Kept]] = {place: {} for place in places}
    for name, words in named.items():
        pond, slash, table = name.partition("/")
        if slash and pond in out:
            out[pond][table] = words
        else:
            for tables in out.values():
                tables.setdefault(name, words)
    return out


def check_names(wanted: Collection[str], places: Mapping[str, str], allow: Iterable[str] = ()) -> list[str]:
    """Refuse names that no table has, since what is wanted of them would have no effect.

    places:  pond's name -> its place
    allow:   as for `millpond.open`
    Returns: names that no table has yet, if a job hasn't committed a batch, can't be read, or
             doesn't exist
    Raises:  UNKNOWN_TABLE.
    """
    if not wanted:
        return []
    known: set[str] = set()
    whole = True
    for pond, place in places.items():
        try:
            folders = open_jobs(place, allow=allow)
            whole = whole and bool(folders)  # a pond without jobs may get some
            if any(parse_job(folder.job) for folder in folders):
                known |= {title for name in list_names(open_storage(place)) for title in (name, f"{pond}/{name}")}
            for folder in folders:
                names, all_of_them = find_names(folder)
                known |= {title for name in names for title in (name, f"{pond}/{name}")}
                whole = whole and all_of_them
        except MillpondError:
            whole = False  # reads will report the error
    missing = sorted(set(wanted) - known)
    if missing and whole:
        raise unknown_table(missing[0], ", ".join(places.values()), known)
    return missing


def _split(option: str, word: str, example: str) -> tuple[str, str]:
    table, equals, text = word.rpartition("=")
    if not equals or not table:
        raise RequestError("INVALID_REQUEST", f"{option} {word!r} isn't of the form {example}.", hint=f"Write {option} {example}.")
    return table, text
