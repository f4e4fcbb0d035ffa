"""The reads of a table as exchanges with a server: keys are written, and rows read, by the table's definition.

A definition may change while a client lives.  Every answer names the one it was written by; where that isn't the client's, it gets
the new one and asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from millpond.checkpoint.position import Batch, Position
from millpond.client.exchange import Exchange, Reply, Request, get, not_a_server, post, read_json
from millpond.errors import MillpondError
from millpond.replica.stamp import stamp, stamp_at_most, stamp_final
from millpond.schema.convert import to_python
from millpond.schema.definition import KeyColumn, TableDefinition, ValueColumn, parse_definition
from millpond.settings import ClientSettings
from millpond.tables.answer import Count, Cut, Lag, Row, Rows
from millpond.tables.bounds import Bounds
from millpond.tables.changes import Changes, RowChange
from millpond.tables.keys import Key, KeyReader
from millpond.tables.past import check_limit
from millpond.tables.values import Json, from_json, to_json

ARROW = "application/vnd.apache.arrow.stream"
_DEFINITION = "millpond-definition"
# Errors that a definition may be the cause of that isn't the newest.
_STALE = frozenset({"UNKNOWN_COLUMN", "NOT_A_KEY_COLUMN", "KEY_MISSING", "WRONG_TYPE", "INVALID_RANGE", "NO_WINDOW"})
_TRIES = 4


class Known:
    """A definition, and what it takes to write keys and read rows by it."""

    def __init__(self, definition: TableDefinition, digest: str) -> None:
        self.definition = definition
        self.digest = digest
        self.keys = KeyReader(definition)
        self._writers = {c.name: (to_python(c.type), to_json(c.type)) for c in definition.key}
        columns: list[KeyColumn | ValueColumn] = [*definition.key, *definition.values]
        self._readers = [(c.name, from_json(c.type, column=c.name)) for c in columns]

    def key(self, key: Key) -> dict[str, Json]:
        """A key, or a part of it, as JSON.  Raises as `Table.get`."""
        return {name: self._write(name, value) for name, value in self.keys.stored(key).items()}

    def rows(self, data: Json) -> Rows:
        """The rows of an answer; empty ones where there are none."""
        cut, final, evicted, maybe = cut_of(data), set(data["final"]), set(data["evicted"]), set(data["maybe_evicted"])
        rows = []
        for place, (row, changed) in enumerate(zip(data["rows"], data["changed"], strict=True)):
            if row is None:
                rows.append(Row((), cut, evicted=None if place in maybe else place in evicted))
                continue
            write = stamp_final if place in final else stamp
            stored = stamp_at_most(0) if changed is None else write(changed)
            rows.append(Row(self._values(row), cut, stored))
        return Rows(rows, cut, more=data["more"], token=data["token"])

    def change(self, data: Json) -> RowChange:
        """A change from JSON."""
        old, new, final = (None if data[name] is None else self._values(data[name]) for name in ("old", "new", "final"))
        kind, batch, first = data["kind"], data["batch"], data["first_batch"]
        return RowChange(kind=kind, batch=batch, first_batch=first, old=old, new=new, final=final)

    def _values(self, row: Json) -> dict[str, Any]:
        return {name: read(row[name]) for name, read in self._readers}

    def _write(self, name: str, stored: Any) -> Json:
        convert, write = self._writers[name]
        return write(convert(stored))


class ServerReads:
    """The reads of a server."""

    def tables(self) -> Exchange[list[str]]:
        """The names of all tables that may be read, sorted."""
        reply = yield get("/tables")
        return [table["table"] for table in read_json(reply)["tables"]]

    def ready(self, max_behind_seconds: float = 30.0) -> Exchange[tuple[bool, str]]:
        """Whether every job can be read and isn't further behind; if not, why."""
        try:
            yield get(f"/readyz?_max_behind_seconds={max_behind_seconds!r}")
        except MillpondError as error:
            if error.condition != "REPLICA_BEHIND":
                raise
            return False, error.message
        return True, "ready"


class TableReads:
    """The reads of one table."""

    def __init__(self, name: str, settings: ClientSettings) -> None:
        self.name = name
        self.known: Known | None = None
        self._settings = settings
        self._path = f"/tables/{quote(name, safe='', errors='surrogateescape')}"

    def load(self) -> Exchange[Known]:
        """The table's definition: the one that is known, else the server's."""
        return self.known or (yield from self._definition())

    def get(self, key: Key | None = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Row]:
        """As `Table.get`."""
        rows = yield from self.get_all([{**(key or {}), **columns}], bounds=bounds)
        return rows[0]

    def get_all(self, keys: Iterable[Key], *, bounds: Bounds | None = None) -> Exchange[Rows]:
        """As `Table.get_all`."""
        wanted = list(keys)

        def ask(known: Known) -> Request:
            return post(f"{self._path}/rows:get", {"keys": [known.key(key) for key in wanted], **_bounded(bounds)})

        known, reply = yield from self._ask(ask)
        return known.rows(read_json(reply))

    def scan(
        self,
        key: Key | None = None,
        /,
        *,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Rows]:
        """As `Table.scan`."""
        given = {**(key or {}), **columns}
        return (yield from self._pages(lambda known: {"key": known.key(given)}, limit, reverse, token, bounds))

    def range(
        self,
        key: Key | None = None,
        /,
        *,
        start: Key | None = None,
        end: Key | None = None,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Rows]:
        """As `Table.range`."""
        given = {**(key or {}), **columns}

        def question(known: Known) -> dict[str, Json]:
            return {"key": known.key(given), "start": known.key(start or {}), "end": known.key(end or {})}

        return (yield from self._pages(question, limit, reverse, token, bounds))

    def windows(
        self,
        key: Key | None = None,
        /,
        *,
        since: Any = None,
        until: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Rows]:
        """As `Table.windows`."""
        given = {**(key or {}), **columns}

        def question(known: Known) -> dict[str, Json]:
            column = known.keys.window_start(given)
            start, end = ({} if time is None else known.key({column: time}) for time in (since, until))
            return {"key": known.key(given), "start": start, "end": end}

        return (yield from self._pages(question, limit, reverse, token, bounds))

    def count(self, key: Key | None = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Count]:
        """As `Table.count`."""
        given = {**(key or {}), **columns}

        def ask(known: Known) -> Request:
            return post(f"{self._path}/rows:count", {"key": known.key(given), **_bounded(bounds)})

        _, reply = yield from self._ask(ask)
        data = read_json(reply)
        return Count(data["count"], cut_of(data))

    def changes(
        self,
        since: str | int | None = None,
        *,
        limit: int | None = None,
        wait_seconds: float = 0.0,
    ) -> Exchange[Changes]:
        """As `Table.changes`; at most 1000 at a time where no limit is given."""
        check_limit(limit)
        given = {"_since": since, "_limit": limit, "_wait_seconds": wait_seconds}
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in given.items() if value is not None)

        def ask(_known: Known) -> Request:
            return Request(method="GET", path=f"{self._path}/changes?{query}", wait_seconds=wait_seconds)

        known, reply = yield from self._ask(ask)
        data = read_json(reply)
        return Changes(map(known.change, data["changes"]), cut_of(data), token=data["token"], more=data["more"])

    def to_arrow(self, key: Key | None = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Any]:
        """As `Table.to_arrow`."""
        from millpond.tables.arrow import pyarrow, read_ipc_stream

        pyarrow()
        given = {**(key or {}), **columns}

        def ask(known: Known) -> Request:
            return post(f"{self._path}/rows:scan", {"key": known.key(given), **_bounded(bounds)}, accept=ARROW)

        _, reply = yield from self._ask(ask)
        return read_ipc_stream(reply.body)

    def _definition(self) -> Exchange[Known]:
        """The definition, from the server."""
        reply = yield get(f"{self._path}/definition")
        try:
            self.known = Known(parse_definition(read_json(reply)), reply.headers[_DEFINITION])
        except KeyError:
            raise not_a_server("it doesn't name the definition") from None
        return self.known

    # ------------------------------------------------------------ asking

    def _ask(self, ask: Callable[[Known], Request]) -> Exchange[tuple[Known, Reply]]:
        """Ask by the table's definition, anew where that isn't the server's any more."""
        fresh = self.known is None
        for _ in range(_TRIES):
            known = self.known or (yield from self._definition())
            try:
                reply = yield ask(known)
            except MillpondError as error:
                if fresh or error.condition not in _STALE:
                    raise
                self.known, fresh = None, True
                continue
            if reply.headers.get(_DEFINITION, known.digest) == known.digest:
                return known, reply
            self.known, fresh = None, True
        raise not_a_server("the table's definition changes all the time")

    def _pages(
        self,
        question: Callable[[Known], dict[str, Json]],
        limit: int | None,
        reverse: bool,
        token: str | None,
        bounds: Bounds | None,
    ) -> Exchange[Rows]:
        """All rows up to the limit: all of one batch, as many requests as it takes."""
        check_limit(limit)
        rows: list[Row] = []
        while True:
            size = self._settings.page_rows if limit is None else min(limit - len(rows), self._settings.page_rows)
            rest = {"limit": size, "reverse": reverse, **({} if token is None else {"token": token}), **_bounded(bounds)}

            def ask(known: Known, rest: dict[str, Json] = rest) -> Request:
                return post(f"{self._path}/rows:scan", {**question(known), **rest})

            known, reply = yield from self._ask(ask)
            page = known.rows(read_json(reply))
            rows += page
            if not page.more or (limit is not None and len(rows) >= limit):
                return Rows(rows, page.cut, more=page.more, token=page.token)
            token, bounds = page.token, None


def _bounded(bounds: Bounds | None) -> dict[str, Json]:
    if bounds is None:
        return {}
    names = bounds.__struct_fields__
    given = {name: getattr(bounds, name) for name in names if getattr(bounds, name) is not None}
    return {"bounds": {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}}


def cut_of(data: Json) -> Cut:
    """The cut of an answer.  Times of commits are in milliseconds over the wire."""
    position, lag = data["position"], data["lag"]
    return Cut(
        job=data["job"],
        position=Position(
            batch=Batch(data["batch"]),
            offsets=position["offsets"],
            watermark_ms=position["watermark_ms"],
            batch_started_ms=position["batch_started_ms"],
            committed_ns=position["committed_ms"] * 1_000_000,
        ),
        lag=Lag(
            behind_batches=lag["behind_batches"],
            behind_seconds=float(lag["behind_seconds"]),
            age_seconds=float(lag["age_seconds"]),
            age_from=lag["age_from"],
            event_lag_seconds=None if lag["event_lag_seconds"] is None else float(lag["event_lag_seconds"]),
        ),
        job_state=data["job_state"],
    )
