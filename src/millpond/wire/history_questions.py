"""What a caller asks of a table beside its rows: changes, versions, where an event is; from a URL or from JSON.

GET   …/versions?page=/&_since=40          POST  {"key": {"page": "/"}, "since": 40}
GET   …/changes?_since=TOKEN&_limit=100    POST  {"since": "TOKEN", "limit": 100}
GET   …/event?_offset=views:0:11170        POST  {"offset": "views:0:11170"}

Each question reads the table that its `as_of` means; the limit is None where none was named.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import Json
from millpond.settings import ServeSettings
from millpond.tables.history.changes import Changes
from millpond.tables.history.find_event import EventAnswer
from millpond.tables.history.versions import Versions
from millpond.tables.job.bounds import Bounds
from millpond.tables.table import Table
from millpond.wire.as_of import MEMBERS, AsOf, as_of_controls, as_of_members, text_of
from millpond.wire.keys import Key, parse_object, parse_pairs
from millpond.wire.query import Pairs, parse_limit, parse_seconds
from millpond.wire.questions import (
    bounds_of_controls,
    check_members,
    edge_of,
    limit_of,
    parse_bounds,
    parse_edge,
    parse_since,
)

When = str | int | None
"""a token or a time, or a batch's number"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsQuestion:
    """As `Table.history` has it."""

    key: Key
    start: Key | None
    end: Key | None
    since: When
    until: When
    limit: int | None
    bounds: Bounds | None
    as_of: AsOf

    def ask(self, table: Table, limit: int) -> Versions:
        """The versions, at most so many where no limit was named.  Raises as `Table.history`."""
        most = self.limit or limit
        return table.history(
            self.key, start=self.start, end=self.end, since=self.since, until=self.until, limit=most, bounds=self.bounds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesQuestion:
    """As `Table.changes` has it."""

    since: When
    limit: int | None
    wait_seconds: float
    bounds: Bounds | None
    as_of: AsOf

    def ask(self, table: Table, since: When, limit: int, wait_seconds: float) -> Changes:
        """Changes from a place on.  Raises as `Table.changes`."""
        return table.changes(since, limit=limit, wait_seconds=wait_seconds, bounds=self.bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuestion:
    """As `Table.find_event` has it."""

    offset: str | None
    file: str | None
    line: int | None
    key: Key | None
    event_time: str | None
    bounds: Bounds | None
    as_of: AsOf

    def ask(self, table: Table) -> EventAnswer:
        """Where the event is.  Raises as `Table.find_event`."""
        return table.find_event(
            offset=self.offset, file=self.file, line=self.line, key=self.key, event_time=self.event_time, bounds=self.bounds
        )


def versions_of_url(
    definition: TableDefinition, columns: Pairs, controls: dict[str, str], settings: ServeSettings
) -> VersionsQuestion:
    """A question about versions.  Raises WRONG_TYPE, INVALID_LIMIT, INVALID_BOUND, INVALID_REQUEST."""
    return VersionsQuestion(
        key=parse_pairs(definition, columns),
        start=parse_edge(definition, "_start", controls),
        end=parse_edge(definition, "_end", controls),
        since=parse_since(controls.get("_since")),
        until=parse_since(controls.get("_until")),
        limit=parse_limit(controls.get("_limit"), settings.max_rows) or settings.limit_rows,
        bounds=bounds_of_controls(controls, settings),
        as_of=as_of_controls(controls),
    )


def versions_of_json(definition: TableDefinition, data: Json, settings: ServeSettings) -> VersionsQuestion:
    """The same from JSON, without a limit where none is named.  Raises as `versions_of_url`."""
    members = check_members(data, {"key", "start", "end", "since", "until", "limit", "bounds"} | MEMBERS)
    return VersionsQuestion(
        key=parse_object(definition, members.get("key", {})),
        start=edge_of("start", definition, members),
        end=edge_of("end", definition, members),
        since=_when("since", members),
        until=_when("until", members),
        limit=limit_of(members, settings),
        bounds=parse_bounds(members.get("bounds"), settings),
        as_of=as_of_members(members),
    )


def changes_of_url(controls: dict[str, str], last_event_id: str | None, settings: ServeSettings) -> ChangesQuestion:
    """A question about changes.

    last_event_id:  where a stream of events that broke off had come to
    Raises:         INVALID_LIMIT, INVALID_REQUEST.
    """
    return ChangesQuestion(
        since=parse_since(controls.get("_since") or last_event_id),
        limit=parse_limit(controls.get("_limit"), settings.max_rows),
        wait_seconds=parse_seconds(controls.get("_wait_seconds"), default=0.0, maximum=settings.max_seconds),
        bounds=None,
        as_of=as_of_controls(controls),
    )


def changes_of_json(data: Json, settings: ServeSettings) -> ChangesQuestion:
    """The same from JSON.  Raises INVALID_LIMIT, INVALID_BOUND, INVALID_REQUEST."""
    members = check_members(data, {"since", "limit", "wait_seconds", "bounds"} | MEMBERS)
    wait = members.get("wait_seconds", 0)
    return ChangesQuestion(
        since=_when("since", members),
        limit=limit_of(members, settings),
        wait_seconds=parse_seconds(str(wait), default=0.0, maximum=settings.max_seconds),
        bounds=parse_bounds(members.get("bounds"), settings),
        as_of=as_of_members(members),
    )


def event_of_url(definition: TableDefinition, columns: Pairs, controls: dict[str, str], settings: ServeSettings) -> EventQuestion:
    """A question about an event.  Raises WRONG_TYPE, INVALID_BOUND, INVALID_REQUEST."""
    return EventQuestion(
        offset=controls.get("_offset"),
        file=controls.get("_file"),
        line=_line(parse_since(controls.get("_line"))),
        key=parse_pairs(definition, columns) or None,
        event_time=controls.get("_event_time"),
        bounds=bounds_of_controls(controls, settings),
        as_of=as_of_controls(controls),
    )


def event_of_json(definition: TableDefinition, data: Json, settings: ServeSettings) -> EventQuestion:
    """The same from JSON.  Raises as `event_of_url`."""
    members = check_members(data, {"offset", "file", "line", "key", "event_time", "bounds"} | MEMBERS)
    return EventQuestion(
        offset=text_of("offset", members),
        file=text_of("file", members),
        line=_line(members.get("line")),
        key=edge_of("key", definition, members) or None,
        event_time=text_of("event_time", members),
        bounds=parse_bounds(members.get("bounds"), settings),
        as_of=as_of_members(members),
    )


def _line(number: Json) -> int | None:
    if isinstance(number, bool) or not isinstance(number, int | None):
        raise RequestError(
            "INVALID_REQUEST", "line must be a whole number.", hint="Leave it out where there is none.", member="line"
        )
    return number


def _when(name: str, members: dict[str, Json]) -> When:
    when = members.get(name)
    if isinstance(when, bool) or not isinstance(when, str | int | None):
        raise RequestError(
            "INVALID_REQUEST",
            f"{name} must be a batch's number, or a string.",
            hint="Leave it out where there is none.",
            member=name,
        )
    return when
