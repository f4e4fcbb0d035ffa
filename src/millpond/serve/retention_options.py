"""The retention of a server's tables from words: `page_views=100`, `page_minutes=24h`, `visits=no`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from millpond.catalogue import open_jobs
from millpond.errors import MillpondError, RequestError
from millpond.settings import Retention, RetentionWords
from millpond.storage import open_storage
from millpond.tables.cold.table import find_names
from millpond.tables.default_tables import unknown_table
from millpond.versions import list_names, parse_job


def parse_retention(history: Iterable[str], closed: Iterable[str]) -> dict[str, RetentionWords]:
    """The named parts of retentions, by table; definitions decide the others.

    history:  `TABLE=` and a word for `history` of `Retention.parse`
    closed:   the same for `keep_closed`
    Raises:   INVALID_REQUEST.
    """
    out: dict[str, RetentionWords] = {}
    for word in history:
        table, text = _split("--history", word)
        out[table] = replace(out.get(table, RetentionWords()), history=text)
    for word in closed:
        table, text = _split("--keep-closed", word)
        out[table] = replace(out.get(table, RetentionWords()), keep_closed=text)
    for words in out.values():
        words.over(Retention())
    return out


def retention_by_pond(retention: Mapping[str, RetentionWords], places: Iterable[str]) -> dict[str, dict[str, RetentionWords]]:
    """The same for each pond: `pond/table` counts for that pond, a table's own name for each that has it."""
    out: dict[str, dict[str, RetentionWords]] = {place: {} for place in places}
    for name, words in retention.items():
        pond, slash, table = name.partition("/")
        if slash and pond in out:
            out[pond][table] = words
        else:
            for tables in out.values():
                tables.setdefault(name, words)
    return out


def check_retention(retention: Mapping[str, RetentionWords], places: Mapping[str, str], allow: Iterable[str] = ()) -> list[str]:
    """Refuse names that no table has, since their retention would have no effect.

    places:  pond's name -> its place
    allow:   as for `millpond.open`
    Returns: names that no table has yet, if a job hasn't committed a batch, can't be read, or
             doesn't exist
    Raises:  UNKNOWN_TABLE.
    """
    if not retention:
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
    missing = sorted(set(retention) - known)
    if missing and whole:
        raise unknown_table(missing[0], ", ".join(places.values()), known)
    return missing


def _split(option: str, word: str) -> tuple[str, str]:
    table, equals, text = word.rpartition("=")
    if not equals or not table:
        raise RequestError("INVALID_REQUEST", f"{option} {word!r} has no table and time.", hint=f"Write {option} TABLE=24h.")
    return table, text
