"""What a server keeps of tables beside their rows, from words: `page_views=100`, `page_minutes=24h`, `visits=no`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from millpond.errors import RequestError
from millpond.settings import Retention

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
