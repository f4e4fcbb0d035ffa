"""Which state of a table is meant: the newest, or an earlier one; with the rows that expired, or without.

GET   …?_batch=41   …?_time=2026-03-01T12:00:00Z   …?_cut=TOKEN   …&_closed=0
POST  {"batch": 41}  {"time": "…"}                 {"cut": "…"}   {"closed": false}
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.errors import RequestError
from millpond.schema.values import Json
from millpond.tables.table import Table

MEMBERS = frozenset({"batch", "time", "cut", "closed"})
_WORDS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """Which state of a table is meant.

    batch, time:  as of when, where history is kept
    cut:          a token of `GET /tables/{table}/cut`
    closed:       whether rows that expired are shown; None: as the table does by default
    """

    batch: int | None = None
    time: str | None = None
    cut: str | None = None
    closed: bool | None = None

    @property
    def is_newest(self) -> bool:
        """Whether it is the state as it is now."""
        return self.batch is None and self.time is None and self.cut is None

    def of(self, table: Table) -> Table:
        """The table as it is meant.  Raises as `Table.at`."""
        if not self.is_newest:
            table = table.at(batch=self.batch, time=self.time, cut=self.cut)
        if self.closed is None:
            return table
        return table.with_closed() if self.closed else table.live()


NOW = AsOf()


def as_of_controls(controls: dict[str, str]) -> AsOf:
    """What controls say.  Raises INVALID_REQUEST."""
    batch = controls.get("_batch")
    closed = controls.get("_closed")
    try:
        number = None if batch is None else int(batch)
    except ValueError:
        raise RequestError(
            "INVALID_REQUEST", f"_batch={str(batch)[:40]} is no batch.", hint="Write its number, like _batch=41."
        ) from None
    return AsOf(
        batch=number,
        time=controls.get("_time"),
        cut=controls.get("_cut"),
        closed=None if closed is None else parse_flag("_closed", closed),
    )


def as_of_members(members: dict[str, Json]) -> AsOf:
    """What a decoded JSON object says.  Raises INVALID_REQUEST."""
    batch, closed = members.get("batch"), members.get("closed")
    if isinstance(batch, bool) or not isinstance(batch, int | None):
        raise RequestError("INVALID_REQUEST", "batch must be the number of a batch.", hint="Leave it out for the newest.")
    if not isinstance(closed, bool | None):
        raise RequestError("INVALID_REQUEST", "closed must be true or false.", hint="Leave it out for the table's own way.")
    return AsOf(batch=batch, time=text_of("time", members), cut=text_of("cut", members), closed=closed)


def text_of(name: str, members: dict[str, Json]) -> str | None:
    """A member that is a string.  Raises INVALID_REQUEST."""
    text = members.get(name)
    if not isinstance(text, str | None):
        raise RequestError("INVALID_REQUEST", f"{name} must be a string.", hint="Leave it out where there is none.", member=name)
    return text


def parse_flag(name: str, text: str) -> bool:
    """Yes or no.  Raises INVALID_REQUEST."""
    if text not in _WORDS:
        raise RequestError("INVALID_REQUEST", f"{name}={text[:40]} says nothing.", hint=f"Write {name}=1, or leave it out.")
    return _WORDS[text]
