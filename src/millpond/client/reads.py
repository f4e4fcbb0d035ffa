"""The reads of a table as exchanges with a server: the table's definition encodes keys and decodes rows.

A definition may change while a client runs.  Every answer names its definition.  If that isn't the
client's, the client gets the new one and asks again.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from msgspec import structs, to_builtins

from millpond.client.exchange import Exchange, Reply, Request, get, not_a_server, post, read_answer, read_facts
from millpond.client.sql import ask_sql
from millpond.errors import MillpondError, RequestError
from millpond.replica.row_stamp import as_final, stamp, stamp_at_most
from millpond.schema.convert import to_python
from millpond.schema.definition.resolutions import BUCKET
from millpond.schema.definition.table import KeyColumn, TableDefinition, ValueColumn, key_parts, parse_definition
from millpond.schema.moment import time_micros
from millpond.schema.values import Json, encode_json, from_json, to_json
from millpond.settings import ClientSettings
from millpond.tables.answer import Count, Row, Rows
from millpond.tables.buckets.answer import Series, Span, Total
from millpond.tables.by_value.reads import By, parse_by
from millpond.tables.failed import ERRORS, free_name, values_from_json
from millpond.tables.finish.estimates import Estimate
from millpond.tables.forms.frames import to_pandas, to_polars
from millpond.tables.history.changes import Changes, RowChange
from millpond.tables.history.find_event import EventAnswer
from millpond.tables.history.reads import check_limit, check_when
from millpond.tables.history.versions import Version, Versions
from millpond.tables.job.bounds import ARRIVING, Bounds
from millpond.tables.job.cut_token import CutToken
from millpond.tables.job.stored_rows import StoredRows, StoredSpan
from millpond.tables.scan.keys import Key, KeyReader, given_keys, stored_values
from millpond.tables.sql.answer import SqlAnswer
from millpond.wire.aggregates import AggregatesAnswer, AggregateVersion
from millpond.wire.answers import (
    AlignedAnswer,
    ChangeJson,
    ChangesAnswer,
    CountAnswer,
    CutAnswer,
    EstimatesJson,
    EventFound,
    OperationAnswer,
    RowsAnswer,
    SavepointAnswer,
    SavepointsAnswer,
    SeriesAnswer,
    StoredAnswer,
    TablesAnswer,
    TotalAnswer,
    VersionJson,
    VersionsAnswer,
    read_time,
)
from millpond.wire.questions import (
    Align,
    AsOf,
    CountRows,
    CreateSavepoint,
    FindEvent,
    FindTotal,
    Keys,
    ListChanges,
    ListSeries,
    ListVersions,
    Question,
    ReadStored,
    Scan,
    VerifySavepoint,
)
from millpond.wire.rows import JsonRow

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
_DEFINITION = "millpond-definition"
# Errors that an outdated definition may cause.
STALE = frozenset({"UNKNOWN_COLUMN", "NOT_A_KEY_COLUMN", "KEY_MISSING", "WRONG_TYPE", "INVALID_RANGE", "NO_WINDOW"})
_TRIES = 4
# Keys of these kinds, and not longer, are sent in the URL.
_PLAIN, _URL_BYTES = frozenset({"string", "byte", "short", "integer", "long"}), 1000
# A request for a table that doesn't exist yet waits so long; then the client asks again.
_WAIT_SECONDS = 10.0
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Known:
    """A definition, with functions that encode keys and decode rows by it."""

    def __init__(self, definition: TableDefinition, digest: str) -> None:
        self.definition = definition
        self.digest = digest
        self.keys = KeyReader(definition)
        self._writers = {c.name: (to_python(c.type), to_json(c.type)) for c in key_parts(definition)}
        columns: list[KeyColumn | ValueColumn] = [*definition.key, *definition.values]
        self._readers = [(c.name, from_json(c.type, column=c.name)) for c in columns]
        self._errors = free_name(ERRORS, definition.columns)
        self._in_urls = _in_urls(definition) if self.keys.columns is not None else None

    def key(self, key: Any, columns: Key | None = None) -> dict[str, Json]:
        """A key, or a part of it, as JSON.  Raises as `Table.get`."""
        return {name: self._write(name, value) for name, value in self.keys.stored(self.keys.given(key, columns)).items()}

    def query(self, key: Any, columns: Key | None = None) -> str | None:
        """A whole key as the query of a URL; None if it is to be sent in a body.  Raises as `Table.get`."""
        if self._in_urls is None:
            return None
        values, texts = self.key(key, columns), []
        for column, name in self._in_urls:
            value = values.get(column)
            if type(value) is not str and type(value) is not int:  # also one that is missing
                return None
            try:
                texts.append(f"{name}={quote(str(value), safe='')}")
            except UnicodeEncodeError:
                return None
        query = "&".join(texts)
        return query if len(texts) == len(values) and len(query) <= _URL_BYTES else None

    def values(self, key: Any, columns: Key | None = None) -> dict[str, Json]:
        """Values of any columns, as JSON.  Raises as `Table.top`."""
        stored, types = stored_values(self.definition, self.keys.given(key, columns)), self.definition.types
        return {name: to_json(types[name])(to_python(types[name])(value)) for name, value in stored.items()}

    def rows(self, answer: RowsAnswer) -> Rows:
        """The rows of an answer; an empty row for each key without one."""
        cut, final, evicted, maybe = answer.cut, set(answer.final), set(answer.evicted), set(answer.maybe_evicted)
        rows = []
        for place, (row, changed) in enumerate(zip(answer.rows, answer.changed, strict=True)):
            if row is None:
                rows.append(Row((), cut, evicted=None if place in maybe else place in evicted))
                continue
            stored = stamp_at_most(0) if changed is None else stamp(changed)
            rows.append(Row(self._values(row), cut, as_final(stored) if place in final else stored))
        return Rows(rows, cut, more=answer.more, token=answer.token)

    def total(self, answer: TotalAnswer) -> Total:
        """One row of a span."""
        return Total.of(self._merged(answer.row or {}), answer.cut, answer.span, self._estimates(answer.estimates))

    def series(self, answer: SeriesAnswer) -> Series:
        """A row for each step of a span."""
        cut, rows = answer.cut, []
        estimates = answer.estimates or [{} for _ in answer.rows]
        for row, until, each in zip(map(self._merged, answer.rows), answer.untils, estimates, strict=True):
            rows.append(Total.of(row, cut, Span(row[BUCKET], read_time(until), ()), self._estimates(each)))
        return Series.of(rows, cut, answer.span)

    def change(self, change: ChangeJson) -> RowChange:
        """A change."""
        old, new, final = (None if row is None else self._values(row) for row in (change.old, change.new, change.final))
        return RowChange(
            kind=change.kind,
            batch=change.batch,
            first_batch=change.first_batch,
            old=old,
            new=new,
            final=final,
            repaired=change.repaired,
        )

    def version(self, version: VersionJson) -> Version:
        """A version of a row."""
        return Version(**{**structs.asdict(version), "row": self._values(version.row)})

    def _values(self, row: JsonRow) -> dict[str, Any]:
        return values_from_json({name: read(row[name]) for name, read in self._readers}, row.get(self._errors))

    def _merged(self, row: JsonRow) -> dict[str, Any]:
        return {name: read(row[name]) for name, read in self._readers if name in row}

    def _estimates(self, found: EstimatesJson) -> dict[str, Estimate]:
        lower, upper = (self._merged({name: getattr(e, limit) for name, e in found.items()}) for limit in ("lower", "upper"))
        return {name: Estimate(lower[name], upper[name], e.confidence) for name, e in found.items() if name in lower}

    def _write(self, name: str, stored: Any) -> Json:
        convert, write = self._writers[name]
        return write(convert(stored))


def _in_urls(definition: TableDefinition) -> list[tuple[str, str]] | None:
    """Each key column with its name as a URL has it; None if a value isn't plainly a text there."""
    names = [column.name for column in definition.key]
    if definition.many or any(name.startswith("_") or name.endswith("__isnull") for name in names):
        return None
    if any(column.type.kind not in _PLAIN for column in definition.key):
        return None
    try:
        return [(name, quote(name, safe="")) for name in names]
    except UnicodeEncodeError:
        return None


class ServerReads:
    """The reads of a server."""

    def tables(self) -> Exchange[list[str]]:
        """The names of all tables that may be read, sorted."""
        reply = yield get("/tables")
        return [table["table"] for table in read_answer(reply, TablesAnswer).tables]

    def described(self) -> Exchange[list[dict[str, Any]]]:
        """All tables that may be read, each as the server describes it."""
        reply = yield get("/tables")
        return read_answer(reply, TablesAnswer).tables

    def ready(self, max_behind_seconds: float = 30.0) -> Exchange[tuple[bool, str]]:
        """Whether every job can be read and isn't further behind than this; if not, why."""
        try:
            yield get(f"/readyz?_max_behind_seconds={max_behind_seconds!r}")
        except MillpondError as error:
            if error.condition != "REPLICA_BEHIND":
                raise
            return False, error.message
        return True, "ready"

    def sql(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        bounds: Bounds | None = None,
        separate: bool = False,
        at: int | str | None = None,
    ) -> Exchange[SqlAnswer]:
        """As `Pond.sql`; the server's limits hold.  Parameters are texts, numbers, lists of them, or None.

        Raises:  as `Pond.sql`; SQL_ENDED, TOO_MANY_ANSWERS.
        """
        return ask_sql(statement, parameters, bounds=bounds, separate=separate, at=at)

    def at(self, tables: Iterable[str], *, offsets: Mapping[str, Any] | None = None) -> Exchange[dict[str, int]]:
        """By table, the batch at which it has read the same input.  Raises as `Pond.at`."""
        reply = yield post("/at", Align(tables=list(tables), offsets=None if offsets is None else dict(offsets)))
        return {table.table: table.batch for table in read_answer(reply, AlignedAnswer).tables}

    def versions(self, name: str | None = None) -> Exchange[list[AggregateVersion]]:
        """The versions of one aggregate, or of all, by name and number: which is current, and how far each is.

        Names whose versions can't be read are left out.

        Raises:  UNKNOWN_VERSION, NOT_ALLOWED; CORRUPT_FILE of that one.
        """
        path = "/aggregates" if name is None else f"/aggregates/{_quoted(name)}"
        return read_answer((yield get(path)), AggregatesAnswer).versions

    def savepoints(self) -> Exchange[SavepointsAnswer]:
        """All savepoints of the server's ponds.  Raises NOT_ALLOWED."""
        return read_answer((yield get("/savepoints")), SavepointsAnswer)

    def savepoint(self, name: str) -> Exchange[SavepointAnswer]:
        """One savepoint.  Raises UNKNOWN_SAVEPOINT, NOT_ALLOWED, …"""
        return read_answer((yield get(f"/savepoints/{_quoted(name)}")), SavepointAnswer)

    def create_savepoint(
        self, name: str, *, job: str | None = None, batch: int | None = None, note: str = "", count: bool = True
    ) -> Exchange[OperationAnswer]:
        """Begin to make a savepoint, as `plan_savepoint`; the operation tells how far it is.

        name:    with several ponds POND/NAME
        Raises:  NOT_ALLOWED, TOO_MANY_OPERATIONS, SAVEPOINT_EXISTS, …
        """
        question = CreateSavepoint(name=name, job=job, batch=batch, note=note, count=count)
        return read_answer((yield post("/savepoints", question, is_read=False)), OperationAnswer)

    def verify_savepoint(self, name: str) -> Exchange[OperationAnswer]:
        """Begin to verify a savepoint, as `millpond.verify_savepoint`.

        Raises:  UNKNOWN_SAVEPOINT, NOT_ALLOWED, TOO_MANY_OPERATIONS, …
        """
        request = post(f"/savepoints/{_quoted(name)}/verify", VerifySavepoint(), is_read=False)
        return read_answer((yield request), OperationAnswer)

    def operation(self, operation: str) -> Exchange[OperationAnswer]:
        """How far an operation is, and its result.  Raises UNKNOWN_OPERATION, NOT_ALLOWED."""
        return read_answer((yield get(f"/operations/{_quoted(operation)}")), OperationAnswer)


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")


@dataclass(slots=True)
class _Definition:
    """A client's definition of a table, shared by all states of the table that it reads."""

    known: Known | None = None


class TableReads:
    """The reads of one table in one state: the newest batch or an earlier one."""

    def __init__(self, name: str, settings: ClientSettings) -> None:
        self.name = name
        self._definition = _Definition()
        self._settings = settings
        self._path = f"/tables/{_quoted(name)}"
        self._as_of = AsOf()

    @property
    def known(self) -> Known | None:
        """The table's definition as the server last named it; None if it hasn't been asked."""
        return self._definition.known

    def forget(self) -> None:
        """Ask for the definition again at the next read."""
        self._definition.known = None

    @property
    def known_definition(self) -> TableDefinition | None:
        """The table's definition; None if the server hasn't been asked for it."""
        return self._definition.known.definition if self._definition.known else None

    def load(self) -> Exchange[Known]:
        """The table's definition: the client's if it has one, else the server's."""
        return self._definition.known or (yield from self._load())

    def live(self) -> Self:
        """As `Table.live`."""
        return self._meant(structs.replace(self._as_of, closed=False))

    def with_closed(self) -> Self:
        """As `Table.with_closed`."""
        return self._meant(structs.replace(self._as_of, closed=True))

    def at(self, *, batch: int | None = None, time: dt.datetime | str | None = None, cut: str | None = None) -> Exchange[Self]:
        """As `Table.at`; the server says at once whether it has that batch."""
        check_when(batch, time, cut)
        as_of = AsOf(batch=batch, time=None if time is None else time_text(time), cut=cut, closed=self._as_of.closed)
        first = yield from self._meant(as_of).get_all(())
        return self._meant(as_of if cut is not None else structs.replace(as_of, batch=first.batch))

    def as_of(self, as_of: AsOf) -> Self:
        """The table in a state that the server has confirmed, or that the first read checks."""
        return self._meant(as_of)

    def cut(self, *, bounds: Bounds | None = None) -> Exchange[CutToken]:
        """As `Table.cut`."""
        given = {} if bounds is None else to_builtins(bounds)
        query = "&".join(f"_{name}={quote(_control(value), safe='')}" for name, value in given.items())
        wait = 0.0 if bounds is None else bounds.wait_seconds
        reply = yield Request(method="GET", path=f"{self._path}/cut?{query}".rstrip("?"), wait_seconds=wait)
        answer = read_answer(reply, CutAnswer)
        return CutToken(answer.cut, token=answer.cut_token, seconds=answer.seconds, state=answer.state)

    def get(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Row]:
        """As `Table.get`."""
        is_newest = bounds is None and self._as_of == AsOf()

        def question(known: Known) -> Keys:
            return Keys(keys=[known.key(key, columns)], bounds=bounds)

        def request(known: Known) -> Request:
            query = known.query(key, columns) if is_newest else None
            # Servers answer a URL the quickest way.
            return self._post("rows:get", question(known), JSON) if query is None else get(f"{self._path}/rows?{query}")

        known, reply = yield from self._asked(request)
        answer = read_answer(reply, RowsAnswer)
        found = known.rows(answer)
        if answer.more or len(found) > 1 or _DEFINITION not in reply.headers:  # the key may have other columns meanwhile
            found = yield from self._rows("rows:get", question)
        return found[0] if found else Row((), answer.cut, evicted=None if answer.maybe_evicted else bool(answer.evicted))

    def get_all(self, keys: Iterable[Any], *, bounds: Bounds | None = None) -> Exchange[Rows]:
        """As `Table.get_all`."""
        wanted = given_keys(keys)
        return (yield from self._rows("rows:get", lambda known: Keys(keys=[known.key(key) for key in wanted], bounds=bounds)))

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

        def question(known: Known) -> Scan:
            return Scan(key=known.key(key, columns), limit=limit, reverse=reverse, token=token, bounds=bounds)

        return (yield from self._pages(question, limit, token))

    def range(
        self,
        key: Any = None,
        /,
        *,
        start: Key | None = None,
        end: Key | None = None,
        by: By | None = None,
        limit: int | None = None,
        reverse: bool = False,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Rows]:
        """As `Table.range`."""
        order = None if by is None else list(parse_by(by))

        def question(known: Known) -> Scan:
            encode = known.key if order is None else known.values
            return Scan(
                key=encode(key, columns),
                start=encode(start or {}),
                end=encode(end or {}),
                by=order,
                limit=limit,
                reverse=reverse,
                token=token,
                bounds=bounds,
            )

        return (yield from self._pages(question, limit, token))

    def top(
        self,
        by: By,
        /,
        limit: int | None = 10,
        *,
        key: Any = None,
        token: str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Rows]:
        """As `Table.top`."""
        return (yield from self.range(key, by=by, limit=limit, reverse=True, token=token, bounds=bounds, **columns))

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

        def question(known: Known) -> Scan:
            column = known.keys.window_start(known.keys.given(key, columns))
            start, end = ({} if time is None else known.key({column: time}) for time in (since, until))
            return Scan(key=known.key(key, columns), start=start, end=end, limit=limit, reverse=reverse, token=token, bounds=bounds)

        return (yield from self._pages(question, limit, token))

    def count(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Count]:
        """As `Table.count`."""
        _, reply = yield from self._ask("rows:count", lambda known: CountRows(key=known.key(key, columns), bounds=bounds))
        answer = read_answer(reply, CountAnswer)
        return Count(answer.count, answer.cut)

    def stored_rows(self, span: StoredSpan | None, *, facts: bool = False, bounds: Bounds | None = None) -> Exchange[StoredRows]:
        """As `Table.stored_rows`."""
        question = ReadStored(span=span, facts=facts, bounds=bounds)
        known, reply = yield from self._ask("rows:stored", lambda _: question)
        answer = read_answer(reply, StoredAnswer)
        return StoredRows(answer.rows, answer.cut, more=answer.more, facts=answer.facts, definition=known.digest)

    def changes(
        self,
        since: str | int | None = None,
        *,
        limit: int | None = None,
        wait_seconds: float = 0.0,
        bounds: Bounds | None = None,
    ) -> Exchange[Changes]:
        """As `Table.changes`; without a limit at most 1000 at a time."""
        check_limit(limit)
        question = ListChanges(since=since, limit=limit, wait_seconds=wait_seconds, bounds=bounds)
        known, reply = yield from self._ask("changes", lambda _: question)
        answer = read_answer(reply, ChangesAnswer)
        return Changes(map(known.change, answer.changes), answer.cut, token=answer.token, more=answer.more)

    def to_arrow(self, key: Any = None, /, *, bounds: Bounds | None = None, **columns: Any) -> Exchange[Any]:
        """As `Table.to_arrow`."""
        from millpond.tables.forms.arrow import pyarrow, read_ipc_stream

        pyarrow()
        _, reply = yield from self._ask("rows:scan", lambda known: Scan(key=known.key(key, columns), bounds=bounds), accept=ARROW)
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
        """As `Table.history`.  Raises ANSWER_TOO_LARGE if, without a limit, one answer can't have all."""
        check_limit(limit)
        times = ListVersions(since=_when(since), until=_when(until), limit=limit, bounds=bounds)

        def question(known: Known) -> ListVersions:
            edges = {name: known.key(edge) for name, edge in (("start", start), ("end", end)) if edge}
            return structs.replace(times, key=known.key(key, columns), **edges)

        known, reply = yield from self._ask("versions", question)
        answer = read_answer(reply, VersionsAnswer)
        if limit is None and answer.more:
            raise RequestError(
                "ANSWER_TOO_LARGE",
                f"{self.name} has more versions there than one answer can have, {len(answer.versions)}.",
                hint="Give a limit, fewer keys, or a shorter time.",
                table=self.name,
            )
        return Versions(map(known.version, answer.versions), answer.cut, more=answer.more)

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
        path = None if file is None else os.fspath(file)
        time = None if event_time is None else time_text(event_time)
        event = FindEvent(offset=offset, file=path, line=line, event_time=time, bounds=bounds)

        def question(known: Known) -> FindEvent:
            return structs.replace(event, key=(known.key(key) or None) if key is not None else None)

        _, reply = yield from self._ask("event", question)
        found = read_answer(reply, EventFound)
        return EventAnswer(found.cut, batch_read=found.batch_read, applied=found.applied, late=found.late, reason=found.reason)

    def total(
        self,
        key: Any = None,
        /,
        *,
        since: dt.datetime | str | None = None,
        until: dt.datetime | str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Total]:
        """As `Table.total`."""
        span = FindTotal(since=_edge(since), until=_edge(until), bounds=bounds)
        known, reply = yield from self._ask("total", lambda known: structs.replace(span, key=known.key(key, columns)))
        return known.total(read_answer(reply, TotalAnswer))

    def series(
        self,
        key: Any = None,
        /,
        *,
        step: str,
        since: dt.datetime | str | None = None,
        until: dt.datetime | str | None = None,
        bounds: Bounds | None = None,
        **columns: Any,
    ) -> Exchange[Series]:
        """As `Table.series`.  Raises ANSWER_TOO_LARGE if one answer can't have all rows."""
        span = ListSeries(step=step, since=_edge(since), until=_edge(until), bounds=bounds)
        known, reply = yield from self._ask("series", lambda known: structs.replace(span, key=known.key(key, columns)))
        return known.series(read_answer(reply, SeriesAnswer))

    def _meant(self, as_of: AsOf) -> Self:
        """The same table in another state."""
        other = copy(self)
        other._as_of = as_of
        return other

    def wait(self, timeout_seconds: float) -> Exchange[Known]:
        """The same, as soon as the server has the table and its first batch.

        Raises:  UNKNOWN_TABLE, … after the timeout.
        """
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

    def _rows(self, route: str, question: Callable[[Known], Question]) -> Exchange[Rows]:
        known, reply = yield from self._ask(route, question)
        return known.rows(read_answer(reply, RowsAnswer))

    def _ask(self, route: str, question: Callable[[Known], Question], *, accept: str = JSON) -> Exchange[tuple[Known, Reply]]:
        """Ask with the table's definition; ask again if the server has a newer one."""
        return self._asked(lambda known: self._post(route, question(known), accept))

    def _asked(self, request: Callable[[Known], Request]) -> Exchange[tuple[Known, Reply]]:
        """The same for any request."""
        fresh = self._definition.known is None
        for _ in range(_TRIES):
            known = yield from self.load()
            try:
                reply = yield request(known)
            except MillpondError as error:
                if fresh or error.condition not in STALE:
                    raise
                self._definition.known, fresh = None, True
                continue
            if reply.headers.get(_DEFINITION, known.digest) == known.digest:
                return known, reply
            self._definition.known, fresh = None, True
        raise not_a_server("the table's definition changes with every answer")

    def _pages(self, question: Callable[[Known], Scan], limit: int | None, token: str | None) -> Exchange[Rows]:
        """All rows up to the limit, all of one batch, in as many requests as it takes.

        If the server loses that batch between two requests, the caller hasn't seen any row of it
        yet, so this reads all again from a newer batch.
        """
        check_limit(limit)
        for left in reversed(range(_TRIES)):
            try:
                return (yield from self._read_pages(question, limit))
            except MillpondError as error:
                if error.condition != "TOKEN_EXPIRED" or token is not None or not left:
                    raise
        raise AssertionError

    def _read_pages(self, question: Callable[[Known], Scan], limit: int | None) -> Exchange[Rows]:
        rows: list[Row] = []
        rest: dict[str, Any] = {}

        def of_page(known: Known) -> Scan:
            return structs.replace(question(known), **rest)

        while True:
            size = self._settings.page_rows if limit is None else min(limit - len(rows), self._settings.page_rows)
            rest["limit"] = size
            page = yield from self._rows("rows:scan", of_page)
            rows += page
            if not page.more or (limit is not None and len(rows) >= limit):
                return Rows(rows, page.cut, more=page.more, token=page.token)
            rest |= {"token": page.token, "bounds": None}

    def _post(self, route: str, question: Question, accept: str) -> Request:
        """A question about this table in this state."""
        question = structs.replace(question, **structs.asdict(self._as_of))
        return post(f"{self._path}/{route}", question, accept=accept, wait_seconds=question.patience_seconds)


def _when(when: int | dt.datetime | str | None) -> int | str | None:
    """A batch, or a time as text.  Raises WRONG_TYPE for what isn't one."""
    return when if when is None or isinstance(when, int) else time_text(when)


def _edge(time: dt.datetime | str | None) -> str | None:
    """A time as text, if there is one."""
    return None if time is None else time_text(time)


def time_text(time: dt.datetime | str) -> str:
    """A time as a text that questions have."""
    return time if isinstance(time, str) else (_EPOCH + dt.timedelta(microseconds=time_micros(time))).isoformat()


def _control(value: Any) -> str:
    """A bound as text for a URL."""
    if isinstance(value, list):
        return ",".join(value)
    return encode_json(value).decode() if isinstance(value, dict) else str(value)
