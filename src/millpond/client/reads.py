"""The reads of a table as exchanges with a server: keys are written, and rows read, by the table's definition.

A definition may change while a client lives.  Every answer names the one it was written by; where that isn't the client's, it gets
the new one and asks again.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from millpond.checkpoint.position import Batch, Position
from millpond.client.exchange import Exchange, Reply, Request, get, not_a_server, post, read_facts, read_rows
from millpond.errors import MillpondError, RequestError
from millpond.replica.row_stamp import as_final, stamp, stamp_at_most
from millpond.schema.convert import to_python
from millpond.schema.definition.table import KeyColumn, TableDefinition, ValueColumn, key_parts, parse_definition
from millpond.schema.values import Json, encode_json, from_json, to_json, with_floats
from millpond.settings import ClientSettings
from millpond.tables.answer import Count, Cut, Lag, Row, Rows
from millpond.tables.failed import ERRORS, free_name, values_from_json
from millpond.tables.forms.frames import to_pandas, to_polars
from millpond.tables.history.changes import Changes, RowChange
from millpond.tables.history.find_event import EventAnswer
from millpond.tables.history.reads import check_limit
from millpond.tables.history.versions import Version, Versions
from millpond.tables.job.as_of import time_micros
from millpond.tables.job.bounds import ARRIVING, Bounds
from millpond.tables.job.cut_token import CutToken
from millpond.tables.scan.keys import Key, KeyReader, given_keys

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
_DEFINITION = "millpond-definition"
# Errors that a definition may be the cause of that isn't the newest.
_STALE = frozenset({"UNKNOWN_COLUMN", "NOT_A_KEY_COLUMN", "KEY_MISSING", "WRONG_TYPE", "INVALID_RANGE", "NO_WINDOW"})
_TRIES = 4
# A request for a table that isn't there yet waits so long; then it is asked again.
_WAIT_SECONDS = 10.0
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Known:
    """A definition, and what it takes to write keys and read rows by it."""

    def __init__(self, definition: TableDefinition, digest: str) -> None:
        self.definition = definition
        self.digest = digest
        self.keys = KeyReader(definition)
        self._writers = {c.name: (to_python(c.type), to_json(c.type)) for c in key_parts(definition)}
        columns: list[KeyColumn | ValueColumn] = [*definition.key, *definition.values]
        self._readers = [(c.name, from_json(c.type, column=c.name)) for c in columns]
        self._errors = free_name(ERRORS, definition.columns)

    def key(self, key: Any, columns: Key | None = None) -> dict[str, Json]:
        """A key, or a part of it, as JSON.  Raises as `Table.get`."""
        return {name: self._write(name, value) for name, value in self.keys.stored(self.keys.given(key, columns)).items()}

    def rows(self, data: Json) -> Rows:
        """The rows of an answer; empty ones where there are none."""
        cut, final, evicted, maybe = cut_of(data), set(data["final"]), set(data["evicted"]), set(data["maybe_evicted"])
        rows = []
        for place, (row, changed) in enumerate(zip(data["rows"], data["changed"], strict=True)):
            if row is None:
                rows.append(Row((), cut, evicted=None if place in maybe else place in evicted))
                continue
            stored = stamp_at_most(0) if changed is None else stamp(changed)
            rows.append(Row(self._values(row), cut, as_final(stored) if place in final else stored))
        return Rows(rows, cut, more=data["more"], token=data["token"])

    def change(self, data: Json) -> RowChange:
        """A change from JSON."""
        old, new, final = (None if data[name] is None else self._values(data[name]) for name in ("old", "new", "final"))
        kind, batch, first = data["kind"], data["batch"], data["first_batch"]
        return RowChange(kind=kind, batch=batch, first_batch=first, old=old, new=new, final=final)

    def version(self, data: Json) -> Version:
        """A version of a row from JSON."""
        return Version(**{**data, "row": self._values(data["row"])})

    def _values(self, row: Json) -> dict[str, Any]:
        return values_from_json({name: read(row[name]) for name, read in self._readers}, row.get(self._errors))

    def _write(self, name: str, stored: Any) -> Json:
        convert, write = self._writers[name]
        return write(convert(stored))


class ServerReads:
    """The reads of a server."""

    def tables(self) -> Exchange[list[str]]:
        """The names of all tables that may be read, sorted."""
        reply = yield get("/tables")
        return [table["table"] for table in read_facts(reply)["tables"]]

    def ready(self, max_behind_seconds: float = 30.0) -> Exchange[tuple[bool, str]]:
        """Whether every job can be read and isn't further behind; if not, why."""
        try:
            yield get(f"/readyz?_max_behind_seconds={max_behind_seconds!r}")
        except MillpondError as error:
            if error.condition != "REPLICA_BEHIND":
                raise
            return False, error.message
        return True, "ready"

    def at(self, tables: Iterable[str], *, offsets: Mapping[str, Any] | None = None) -> Exchange[dict[str, int]]:
        """At which batch each of these tables has read the same input.  Raises as `Pond.at`."""
        body: dict[str, Json] = {"tables": list(tables)}
        reply = yield post("/at", body if offsets is None else {**body, "offsets": dict(offsets)})
        return {table["table"]: table["batch"] for table in read_facts(reply)["tables"]}


@dataclass(slots=True)
class _Definition:
    """A table's definition as a client knows it: one for all states of the table that it reads."""

    known: Known | None = None


class TableReads:
    """The reads of one table, in one of its states."""

    def __init__(self, name: str, settings: ClientSettings) -> None:
        self.name = name
        self._definition = _Definition()
        self._settings = settings
        self._path = f"/tables/{quote(name, safe='', errors='surrogateescape')}"
        # What every question says of the state that is meant, as `serve.as_of` has it.
        self._as_of: dict[str, Json] = {}

    @property
    def known_definition(self) -> TableDefinition | None:
        """The table's definition where the server has been asked for it."""
        return self._definition.known.definition if self._definition.known else None

    def load(self) -> Exchange[Known]:
        """The table's definition: the one that is known, else the server's."""
        return self._definition.known or (yield from self._load())

    def live(self) -> Self:
        """As `Table.live`."""
        return self._meant({**self._as_of, "closed": False})

    def with_closed(self) -> Self:
        """As `Table.with_closed`."""
        return self._meant({**self._as_of, "closed": True})

    def at(self, *, batch: int | None = None, time: dt.datetime | str | None = None, cut: str | None = None) -> Exchange[Self]:
        """As `Table.at`; the server says at once whether it has that batch."""
        given: dict[str, Json] = {"batch": batch, "time": None if time is None else _when(time), "cut": cut}
        given = {name: value for name, value in given.items() if value is not None}
        if (cut is None) == (batch is None and time is None):
            raise RequestError("INVALID_REQUEST", "Give a batch, a time or one cut.", hint="Write table.at(batch=41).")
        closed = {name: value for name, value in self._as_of.items() if name == "closed"}
        first = yield from self._meant({**closed, **given}).get_all(())
        return self._meant({**closed, **given, **({} if cut is not None else {"batch": first.batch})})

    def as_of_batch(self, batch: int) -> Self:
        """The table as of a batch that the server has, as it has said."""
        return self._meant({"batch": batch})

    def as_of_cut(self, token: str) -> Self:
        """The table as of a cut, which the first read holds against its job."""
        return self._meant({"cut": token})

    def cut(self, *, bounds: Bounds | None = None) -> Exchange[CutToken]:
        """As `Table.cut`."""
        given = _bounded(bounds).get("bounds", {})
        query = "&".join(f"_{name}={quote(_control(value), safe='')}" for name, value in given.items())
        wait = given.get("wait_seconds", 0.0)
        reply = yield Request(method="GET", path=f"{self._path}/cut?{query}".rstrip("?"), wait_seconds=wait)
        data = read_facts(reply)
        return CutToken(cut_of(data), token=data["cut"], seconds=float(data["seconds"]))

    def get(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Row]:
        """As `Table.get`."""

        def ask(known: Known) -> Request:
            return self._post("rows:get", {"keys": [known.key(key, columns)]}, bounds)

        known, reply = yield from self._ask(ask)
        return known.rows(read_rows(reply))[0]

    def get_all(self, keys: Iterable[Any], *, bounds: Bounds | None = None) -> Exchange[Rows]:
        """As `Table.get_all`."""
        wanted = given_keys(keys)

        def ask(known: Known) -> Request:
            return self._post("rows:get", {"keys": [known.key(key) for key in wanted]}, bounds)

        known, reply = yield from self._ask(ask)
        return known.rows(read_rows(reply))

    def scan(
        self,
        key: Any = None,
        /,
        *,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Rows]:
        """As `Table.scan`."""
        return (yield from self._pages(lambda known: {"key": known.key(key, columns)}, limit, reverse, token, bounds))

    def range(
        self,
        key: Any = None,
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

        def question(known: Known) -> dict[str, Json]:
            return {"key": known.key(key, columns), "start": known.key(start or {}), "end": known.key(end or {})}

        return (yield from self._pages(question, limit, reverse, token, bounds))

    def windows(
        self,
        key: Any = None,
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

        def question(known: Known) -> dict[str, Json]:
            column = known.keys.window_start(known.keys.given(key, columns))
            start, end = ({} if time is None else known.key({column: time}) for time in (since, until))
            return {"key": known.key(key, columns), "start": start, "end": end}

        return (yield from self._pages(question, limit, reverse, token, bounds))

    def count(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Count]:
        """As `Table.count`."""

        def ask(known: Known) -> Request:
            return self._post("rows:count", {"key": known.key(key, columns)}, bounds)

        _, reply = yield from self._ask(ask)
        data = read_facts(reply)
        return Count(data["count"], cut_of(data))

    def changes(
        self,
        since: str | int | None = None,
        *,
        limit: int | None = None,
        wait_seconds: float = 0.0,
        bounds: Bounds | None = None,
    ) -> Exchange[Changes]:
        """As `Table.changes`; at most 1000 at a time where no limit is given."""
        check_limit(limit)
        given = {"since": since, "limit": limit, "wait_seconds": wait_seconds}

        def ask(_known: Known) -> Request:
            return self._post("changes", given, bounds, wait_seconds=wait_seconds)

        known, reply = yield from self._ask(ask)
        data = read_rows(reply)
        return Changes(map(known.change, data["changes"]), cut_of(data), token=data["token"], more=data["more"])

    def to_arrow(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Any]:
        """As `Table.to_arrow`."""
        from millpond.tables.forms.arrow import pyarrow, read_ipc_stream

        pyarrow()

        def ask(known: Known) -> Request:
            return self._post("rows:scan", {"key": known.key(key, columns)}, bounds, accept=ARROW)

        _, reply = yield from self._ask(ask)
        return read_ipc_stream(reply.body)

    def to_pandas(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Any]:
        """As `Table.to_pandas`."""
        return to_pandas((yield from self.to_arrow(key, bounds=bounds, **columns)))

    def to_polars(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Any]:
        """As `Table.to_polars`."""
        return to_polars((yield from self.to_arrow(key, bounds=bounds, **columns)))

    def history(
        self,
        key: Any = None,
        /,
        *,
        start: Key | None = None,
        end: Key | None = None,
        since: int | dt.datetime | str | None = None,
        until: int | dt.datetime | str | None = None,
        limit: int | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Versions]:
        """As `Table.history`.  Raises ANSWER_TOO_LARGE where no limit is given and one answer doesn't take all."""
        check_limit(limit)
        times = {name: None if when is None else _when(when) for name, when in (("since", since), ("until", until))}

        def ask(known: Known) -> Request:
            edges = {name: known.key(edge) for name, edge in (("start", start), ("end", end)) if edge}
            return self._post("versions", {"key": known.key(key, columns), **edges, **times, "limit": limit}, bounds)

        known, reply = yield from self._ask(ask)
        data = read_rows(reply)
        if limit is None and data["more"]:
            raise RequestError(
                "ANSWER_TOO_LARGE",
                f"{self.name} has more than {len(data['versions'])} versions there, which is what one answer takes.",
                hint="Ask with a limit, for fewer keys, or for a shorter time.",
                table=self.name,
            )
        return Versions(map(known.version, data["versions"]), cut_of(data), more=data["more"])

    def find_event(
        self,
        *,
        offset: str | None = None,
        file: str | os.PathLike[str] | None = None,
        line: int | None = None,
        key: Any = None,
        event_time: dt.datetime | str | None = None,
        bounds: Bounds | None = None,
    ) -> Exchange[EventAnswer]:
        """As `Table.find_event`."""
        time = None if event_time is None else _when(event_time)
        given = {"offset": offset, "file": None if file is None else os.fspath(file), "line": line, "event_time": time}

        def ask(known: Known) -> Request:
            return self._post("event", {**given, "key": (known.key(key) or None) if key is not None else None}, bounds)

        _, reply = yield from self._ask(ask)
        data = read_facts(reply)
        facts = {name: data[name] for name in ("batch_read", "applied", "late", "reason")}
        return EventAnswer(cut_of(data), **facts)

    def _meant(self, as_of: dict[str, Json]) -> Self:
        """The same table in another state."""
        other = copy(self)
        other._as_of = as_of
        return other

    def wait(self, timeout_seconds: float) -> Exchange[Known]:
        """The same, as soon as the server has the table and its first batch.  Raises UNKNOWN_TABLE, … after the timeout."""
        ends = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, ends - time.monotonic())
            try:
                return self._definition.known or (yield from self._load(min(left, _WAIT_SECONDS)))
            except MillpondError as error:
                if error.condition not in ARRIVING or not left:
                    raise

    def _load(self, wait_seconds: float = 0.0) -> Exchange[Known]:
        """The definition, from the server."""
        query = f"?_wait_seconds={wait_seconds:.3f}" if wait_seconds else ""
        reply = yield Request(method="GET", path=f"{self._path}/definition{query}", wait_seconds=wait_seconds)
        try:
            known = self._definition.known = Known(parse_definition(read_facts(reply)), reply.headers[_DEFINITION])
        except KeyError:
            raise not_a_server("it doesn't name the definition") from None
        return known

    # ------------------------------------------------------------ asking

    def _ask(self, ask: Callable[[Known], Request]) -> Exchange[tuple[Known, Reply]]:
        """Ask by the table's definition, anew where that isn't the server's any more."""
        fresh = self._definition.known is None
        for _ in range(_TRIES):
            known = yield from self.load()
            try:
                reply = yield ask(known)
            except MillpondError as error:
                if fresh or error.condition not in _STALE:
                    raise
                self._definition.known, fresh = None, True
                continue
            if reply.headers.get(_DEFINITION, known.digest) == known.digest:
                return known, reply
            self._definition.known, fresh = None, True
        raise not_a_server("the table's definition changes all the time")

    def _pages(
        self,
        question: Callable[[Known], dict[str, Json]],
        limit: int | None,
        reverse: bool,
        token: str | None,
        bounds: Bounds | None,
    ) -> Exchange[Rows]:
        """All rows up to the limit: all of one batch, as many requests as it takes.

        Where that batch is lost between two requests, nothing of it was given to anybody: all is read again, of a newer batch.
        """
        check_limit(limit)
        for left in reversed(range(_TRIES)):
            try:
                return (yield from self._read_pages(question, limit, reverse, token, bounds))
            except MillpondError as error:
                if error.condition != "TOKEN_EXPIRED" or token is not None or not left:
                    raise
        raise AssertionError

    def _read_pages(
        self,
        question: Callable[[Known], dict[str, Json]],
        limit: int | None,
        reverse: bool,
        token: str | None,
        bounds: Bounds | None,
    ) -> Exchange[Rows]:
        rows: list[Row] = []
        while True:
            size = self._settings.page_rows if limit is None else min(limit - len(rows), self._settings.page_rows)
            rest = {"limit": size, "reverse": reverse, "token": token}

            def ask(known: Known, rest: dict[str, Json] = rest, bounds: Bounds | None = bounds) -> Request:
                return self._post("rows:scan", {**question(known), **rest}, bounds)

            known, reply = yield from self._ask(ask)
            page = known.rows(read_rows(reply))
            rows += page
            if not page.more or (limit is not None and len(rows) >= limit):
                return Rows(rows, page.cut, more=page.more, token=page.token)
            token, bounds = page.token, None

    def _post(
        self, route: str, question: Mapping[str, Json], bounds: Bounds | None, *, accept: str = JSON, wait_seconds: float = 0.0
    ) -> Request:
        """A question about this table in the state that is meant; what is None isn't sent."""
        body = {name: value for name, value in {**question, **self._as_of}.items() if value is not None}
        given = _bounded(bounds)
        wait_seconds += given.get("bounds", {}).get("wait_seconds", 0.0)
        return post(f"{self._path}/{route}", {**body, **given}, accept=accept, wait_seconds=wait_seconds)


def _bounded(bounds: Bounds | None) -> dict[str, Json]:
    if bounds is None:
        return {}
    names = bounds.__struct_fields__
    given = {name: getattr(bounds, name) for name in names if getattr(bounds, name) is not None}
    return {"bounds": {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}}


def _when(when: int | dt.datetime | str) -> Json:
    """A batch, or a time as text.  Raises WRONG_TYPE for what isn't one."""
    if isinstance(when, int | str):
        return when
    return (_EPOCH + dt.timedelta(microseconds=time_micros(when))).isoformat()


def _control(value: Any) -> str:
    """A bound as it stands in a URL."""
    if isinstance(value, list):
        return ",".join(value)
    return encode_json(value).decode() if isinstance(value, dict) else str(value)


def cut_of(data: Json) -> Cut:
    """The cut of an answer.  Times of commits are in milliseconds over the wire."""
    position, lag = data["position"], data["lag"]
    return Cut(
        job=data["job"],
        position=Position(
            batch=Batch(data["batch"]),
            offsets=with_floats(position["offsets"]),
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
