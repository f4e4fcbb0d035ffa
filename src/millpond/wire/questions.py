"""What a caller asks of one table: a key or a part of it, a range, a page, and bounds; from a URL or from JSON.

GET   …/rows?page=/&_start={"minute":"…"}&_reverse=1&_limit=10&_min_batch=41
POST  …/rows:scan   {"key": {"page": "/"}, "start": {"minute": "…"}, "reverse": true, "limit": 10, "bounds": {"min_batch": 41}}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.schema.values import Json, decode_json, with_floats
from millpond.settings import ServeSettings
from millpond.tables.answer import Rows
from millpond.tables.job.bounds import Bounds
from millpond.tables.table import Table
from millpond.wire.as_of import MEMBERS, NOW, AsOf, as_of_controls, as_of_members, parse_flag, text_of
from millpond.wire.keys import Key, parse_object, parse_pairs
from millpond.wire.query import Pairs, parse_limit

_BOUNDS = frozenset(
    {
        "min_batch",
        "min_offsets",
        "contains_offset",
        "contains_file",
        "max_behind_seconds",
        "max_age_seconds",
        "wait_seconds",
    }
)
# Rows of a download that are in memory at a time.
_PAGE_ROWS = 8192
_SECONDS = ("max_behind_seconds", "max_age_seconds", "wait_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A read of rows, as `Table.scan`, `range` and `windows` have it.

    limit:  None where none was named
    """

    key: Key
    start: Key | None = None
    end: Key | None = None
    since: str | None = None
    until: str | None = None
    limit: int | None = None
    reverse: bool = False
    token: str | None = None
    bounds: Bounds | None = None
    as_of: AsOf = NOW

    def is_lookup(self, definition: TableDefinition) -> bool:
        """Whether it asks for the one row of a whole key."""
        ranged = any(edge is not None for edge in (self.start, self.end, self.since, self.until, self.token))
        if ranged or self.reverse:
            return False
        return len(self.key) == len(definition.key) and all(c.name in self.key for c in definition.key)

    def ask(self, table: Table) -> Rows:
        """The rows of a table as it is meant.  Raises as `Table.scan`, `range` and `windows`; INVALID_REQUEST where it is two."""
        page: dict[str, Any] = {"limit": self.limit, "reverse": self.reverse, "token": self.token, "bounds": self.bounds}
        timed = self.since is not None or self.until is not None
        if self.start is not None or self.end is not None:
            if timed:
                raise RequestError(
                    "INVALID_REQUEST",
                    "A range has start and end, windows have since and until; both are given.",
                    hint="Use one of the two.",
                )
            return table.range(self.key, start=self.start, end=self.end, **page)
        if timed:
            return table.windows(self.key, since=self.since, until=self.until, **page)
        return table.scan(self.key, **page)

    @property
    def is_everything(self) -> bool:
        """Whether it asks for all rows of the table that is meant, in its order."""
        edges = (self.start, self.end, self.since, self.until)
        return not (self.key or self.reverse or self.limit or self.token) and all(edge is None for edge in edges)


def iter_pages(table: Table, question: Question) -> Iterator[Rows]:
    """All rows that a question asks for, some at a time; at least one page.

    table:  as it is meant, and of one batch, so that all pages are
    Raises (as it goes on):  as `Question.ask`; CUT_EXPIRED.
    """
    page = replace(question, limit=_PAGE_ROWS).ask(table)
    yield page
    while page.more:
        page = replace(question, limit=_PAGE_ROWS, token=page.token, bounds=None).ask(table)
        yield page


def parse_url(definition: TableDefinition, columns: Pairs, controls: dict[str, str], settings: ServeSettings) -> Question:
    """A question from columns and controls.

    Raises:  WRONG_TYPE, INVALID_LIMIT, INVALID_BOUND, INVALID_REQUEST.
    """
    return Question(
        key=parse_pairs(definition, columns),
        start=parse_edge(definition, "_start", controls),
        end=parse_edge(definition, "_end", controls),
        since=controls.get("_since"),
        until=controls.get("_until"),
        limit=parse_limit(controls.get("_limit"), settings.max_rows),
        reverse=parse_flag("_reverse", controls.get("_reverse", "0")),
        token=controls.get("_token"),
        bounds=bounds_of_controls(controls, settings),
        as_of=as_of_controls(controls),
    )


def parse_json(definition: TableDefinition, data: Json, settings: ServeSettings) -> Question:
    """A question from a decoded JSON object.  Raises as `parse_url`."""
    members = check_members(data, {"key", "start", "end", "since", "until", "limit", "reverse", "token", "bounds"} | MEMBERS)
    reverse = members.get("reverse", False)
    if not isinstance(reverse, bool):
        raise RequestError("INVALID_REQUEST", "reverse must be true or false.", hint="Leave it out for the order of the key.")
    return Question(
        key=parse_object(definition, members.get("key", {})),
        start=edge_of("start", definition, members),
        end=edge_of("end", definition, members),
        since=text_of("since", members),
        until=text_of("until", members),
        limit=limit_of(members, settings),
        reverse=reverse,
        token=text_of("token", members),
        bounds=parse_bounds(members.get("bounds"), settings),
        as_of=as_of_members(members),
    )


def parse_since(text: str | None) -> str | int | None:
    """A token of changes, or a batch's number."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else text


def parse_at(data: Json) -> tuple[list[str], dict[str, Json] | None]:
    """Names of tables, and the offsets at which they are to be read, None for the newest that all have.  Raises INVALID_REQUEST."""
    members = check_members(data, {"tables", "offsets"})
    names, offsets = members.get("tables"), members.get("offsets")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise RequestError("INVALID_REQUEST", "tables must be a list of names.", hint='Send {"tables": ["page_views", "hosts"]}.')
    if not isinstance(offsets, dict | None):
        raise RequestError("INVALID_REQUEST", "offsets must be an object.", hint="Give those of an answer's position, or none.")
    return names, with_floats(offsets)


def check_members(data: Json, known: set[str]) -> dict[str, Json]:
    """The members of an object.  Raises INVALID_REQUEST where it is none, or has others."""
    if not isinstance(data, dict) or not data.keys() <= known:
        raise RequestError(
            "INVALID_REQUEST",
            "The body must be an object with no other members than those that the route takes.",
            hint=f"Its members may be: {', '.join(sorted(known))}.",
        )
    return data


def bounds_of_controls(controls: dict[str, str], settings: ServeSettings) -> Bounds | None:
    """The bounds that controls give, None where they give none.  Raises INVALID_BOUND."""
    given: dict[str, Any] = {name[1:]: text for name, text in controls.items() if name[1:] in _BOUNDS}
    for name in ("min_batch", *_SECONDS):
        if name in given:
            given[name] = _number(name, given[name])
    if "min_offsets" in given:
        try:
            given["min_offsets"] = decode_json(given["min_offsets"])
        except ValueError as wrong:
            raise _invalid(f"_min_offsets is no JSON: {wrong}") from None
    if "contains_offset" in given:
        given["contains_offset"] = given["contains_offset"].split(",")
    return parse_bounds(given or None, settings)


def wait_of_controls(controls: dict[str, str], settings: ServeSettings) -> float:
    """How long a request by URL waits for a table; 0 where that makes no sense, which is told once there is one."""
    try:
        return wait_of_members({"wait_seconds": float(controls.get("_wait_seconds", 0))}, settings)
    except ValueError:
        return 0.0


def wait_of_members(body: Json, settings: ServeSettings) -> float:
    """The same of a JSON body, by its bounds or its own member."""
    levels = [body, body.get("bounds")] if isinstance(body, dict) else []
    found = [each.get("wait_seconds") for each in levels if isinstance(each, dict)]
    seconds = [float(value) for value in found if isinstance(value, int | float | Decimal) and not isinstance(value, bool)]
    return max([0.0, *(value for value in seconds if value <= settings.max_seconds)])


def parse_bounds(data: Json, settings: ServeSettings) -> Bounds | None:
    """Bounds from a decoded JSON object; None from null.  Raises INVALID_BOUND."""
    if data is None:
        return None
    if not isinstance(data, dict) or not data.keys() <= _BOUNDS:
        raise _invalid(f"bounds must be an object of {', '.join(sorted(_BOUNDS))}")
    given: dict[str, Any] = {name: float(value) if isinstance(value, Decimal) else value for name, value in data.items()}
    # JSON's null would be no bound at all.
    if any(value is None for value in given.values()):
        raise _invalid("a bound is null")
    bounds = Bounds(**given)
    if bounds.wait_seconds > settings.max_seconds:
        raise _invalid(f"wait_seconds is {bounds.wait_seconds:g}, and a request may take {settings.max_seconds:g}")
    return bounds


def _number(name: str, text: str) -> int | float:
    try:
        return int(text) if name == "min_batch" else float(text)
    except ValueError:
        raise _invalid(f"_{name}={text[:40]} is no number") from None


def parse_edge(definition: TableDefinition, name: str, controls: dict[str, str]) -> Key | None:
    if name not in controls:
        return None
    try:
        data = decode_json(controls[name])
    except ValueError as wrong:
        raise RequestError(
            "INVALID_REQUEST", f"{name} is no JSON: {wrong}.", hint=f'Write it like {name}={{"page":"/"}}.'
        ) from None
    return parse_object(definition, data)


def edge_of(name: str, definition: TableDefinition, members: dict[str, Json]) -> Key | None:
    return None if members.get(name) is None else parse_object(definition, members[name])


def limit_of(members: dict[str, Json], settings: ServeSettings) -> int | None:
    limit = members.get("limit")
    return parse_limit(None if limit is None else repr(limit), settings.max_rows)


def _invalid(what: str) -> RequestError:
    return RequestError("INVALID_BOUND", f"{what}.", hint="Write bounds as docs/reads.md and docs/http.md show them.")
