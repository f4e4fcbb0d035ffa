"""What a server keeps of tables beside their rows, from words: `page_views=100`, `page_minutes=24h`, `visits=no`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from millpond.catalogue import open_jobs
from millpond.errors import MillpondError, RequestError
from millpond.settings import Retention
from millpond.tables.cold import find_names
from millpond.tables.pond import unknown_table

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIME = re.compile(r"(\d{1,9})([smhd])")


def parse_retention(history: Iterable[str], closed: Iterable[str]) -> dict[str, Retention]:
    """What is kept, by table.

    history:  `TABLE=N` batches, `TABLE=24h`, `TABLE=forever`
    closed:   rows that expired: `TABLE=24h`, `TABLE=forever`, `TABLE=no`
    Raises:   INVALID_REQUEST.
    """
    out: dict[str, Retention] = {}
    for word in history:
        table, text = _split("--history", word)
        kept = out.get(table, Retention())
        if text.isascii() and text.isdigit() and len(text) < 10:
            out[table] = replace(kept, history_batches=int(text))
        else:
            out[table] = replace(kept, history_batches=None, history_seconds=_seconds("--history", text))
    for word in closed:
        table, text = _split("--keep-closed", word)
        out[table] = replace(out.get(table, Retention()), closed_seconds=0.0 if text == "no" else _seconds("--keep-closed", text))
    return out


def retention_by_pond(retention: Mapping[str, Retention], places: Iterable[str]) -> dict[str, dict[str, Retention]]:
    """The same for each pond: of `pond/table` in that pond, of a table's own name in each that has it."""
    out: dict[str, dict[str, Retention]] = {place: {} for place in places}
    for name, kept in retention.items():
        pond, slash, table = name.partition("/")
        if slash and pond in out:
            out[pond][table] = kept
        else:
            for tables in out.values():
                tables.setdefault(name, kept)
    return out


def check_retention(retention: Mapping[str, Retention], places: Mapping[str, str]) -> list[str]:
    """Refuse names that no table has, so that nobody believes that something is kept.

    places:  pond's name -> where it lies
    Returns: names that no table has yet: some job hasn't committed a batch, or can't be read
    Raises:  UNKNOWN_TABLE.
    """
    if not retention:
        return []
    known: set[str] = set()
    whole = True
    for pond, place in places.items():
        try:
            for folder in open_jobs(place):
                names, all_of_them = find_names(folder)
                known |= {shown for name in names for shown in (name, f"{pond}/{name}")}
                whole = whole and all_of_them
        except MillpondError:
            whole = False  # what is wrong there, reads will say
    missing = sorted(set(retention) - known)
    if missing and whole:
        raise unknown_table(missing[0], ", ".join(places.values()), known)
    return missing


def _split(option: str, word: str) -> tuple[str, str]:
    table, equals, text = word.rpartition("=")
    if not equals or not table:
        raise RequestError("INVALID_REQUEST", f"{option} {word!r} names no table and time.", hint=f"Write {option} TABLE=24h.")
    return table, text


def _seconds(option: str, text: str) -> float | None:
    """So many seconds; None for ever."""
    if text == "forever":
        return None
    found = _TIME.fullmatch(text)
    if found is None:
        raise RequestError("INVALID_REQUEST", f"{option} {text!r} is no time.", hint="Write it like 30m, 24h, 7d or forever.")
    return float(int(found[1]) * _SECONDS[found[2]])
