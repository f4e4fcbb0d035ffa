"""The questions about tables, declared once: each class is the JSON body of a question.

From these come the parsers of JSON and of URLs (`parse`), the client's requests, the OpenAPI
document and options of the command line.  A field's description is the text that all of them show.

    POST  …/rows:scan   {"key": {"page": "/"}, "start": {"minute": "…"}, "reverse": true, "limit": 10, "bounds": {"min_batch": 41}}
    GET   …/rows?page=/&_start={"minute":"…"}&_reverse=1&_limit=10&_min_batch=41
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import structs

from millpond.errors import RequestError
from millpond.schema.definition.table import TableDefinition
from millpond.tables.answer import Answer, Rows
from millpond.tables.job.bounds import Bounds
from millpond.tables.job.stored_rows import StoredSpan
from millpond.wire.declare import says
from millpond.wire.keys import Key, parse_object

# How many rows of a download are in memory at a time.
_PAGE_ROWS = 8192
AnyTable = TypeVar("AnyTable", bound=Any)
When = str | int | None
"""a token or a time, or a batch's number"""
if TYPE_CHECKING:
    BoundsField = Bounds
else:  # in JSON's form, until they are parsed
    BoundsField = dict[str, Any]


class AsOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which state of a table to read: the newest or an earlier one, with expired rows or without."""

    batch: Annotated[int | None, says("As of this batch, if its history is kept.")] = None
    time: Annotated[str | None, says("As of the newest batch that was committed by this time.")] = None
    cut: Annotated[str | None, says("As of the batch of a cut.")] = None
    closed: Annotated[bool | None, says("With expired rows, or without; the default depends on the table.")] = None

    @property
    def is_newest(self) -> bool:
        """Whether it is the state as it is now."""
        return self.batch is None and self.time is None and self.cut is None

    def as_of(self) -> AsOf:
        """Only these members, to compare and to hash."""
        return AsOf(batch=self.batch, time=self.time, cut=self.cut, closed=self.closed)

    def state_of(self, table: AnyTable) -> AnyTable:
        """The table in this state.  Raises as `Table.at`."""
        if not self.is_newest:
            table = table.at(batch=self.batch, time=self.time, cut=self.cut)
        if self.closed is not None:
            table = table.with_closed() if self.closed else table.live()
        return table


class Question(AsOf, frozen=True, kw_only=True):
    """The members of every question about one table: which state to read, and which bounds to meet.

    Keys have JSON's form until `typed` makes Python values of them.
    """

    bounds: Annotated[BoundsField | None, says("What the answer must reflect.", **{"$ref": "#/components/schemas/Bounds"})] = None
    is_large: ClassVar[bool] = False

    @property
    def patience_seconds(self) -> float:
        """How long the question waits for its table."""
        return self.bounds.wait_seconds if self.bounds is not None else 0.0

    @property
    def is_by_value(self) -> bool:
        """Whether its columns may be any of the table, and not the key's only."""
        return False

    def typed(self, definition: TableDefinition) -> Self:  # noqa: ARG002 - for those that have keys
        """The same, its keys by the types of a table.  Raises WRONG_TYPE, INVALID_REQUEST."""
        return self

    def ask(self, table: Any) -> Answer:
        """The answer of a table in the right state.  Raises as the table's read."""
        raise NotImplementedError


def _typed(question: Any, definition: TableDefinition, *names: str) -> Any:
    given = {name: getattr(question, name) for name in names}
    typed = {n: parse_object(definition, key, by_value=question.is_by_value) for n, key in given.items() if key is not None}
    return structs.replace(question, **typed)


_KEY = says("Key columns, all or some, by name.")
_START = says("Begin with this key: the next key columns, by name.")
_END = says("End before this.")


class Scan(Question, frozen=True, kw_only=True):
    """Rows in order of their key, or of an index: of a part of it, of a range, or of windows between two times."""

    key: Annotated[Key, _KEY] = {}
    start: Annotated[Key | None, _START] = None
    end: Annotated[Key | None, _END] = None
    since: Annotated[str | None, says("Only windows that begin at this time or later.")] = None
    until: Annotated[str | None, says("Only windows that begin before this time.")] = None
    by: Annotated[
        list[str] | None, says("In the order of an index by these columns; key, start and end then name columns of the index.")
    ] = None
    limit: Annotated[int | None, says("The largest number of rows.", minimum=1)] = None
    reverse: Annotated[bool, says("Against the order of the key.")] = False
    token: Annotated[str | None, says("The next page: the token of the answer before.")] = None

    def typed(self, definition: TableDefinition) -> Scan:
        return _typed(self, definition, "key", "start", "end")  # type: ignore[no-any-return]

    @property
    def is_everything(self) -> bool:
        """Whether it asks for all rows of the table, in key order."""
        return not (self.key or self.reverse or self.limit or self.token or self.by) and not self._is_ranged

    @property
    def is_by_value(self) -> bool:
        return self.by is not None

    @property
    def _is_ranged(self) -> bool:
        return any(edge is not None for edge in (self.start, self.end, self.since, self.until))

    def is_lookup(self, definition: TableDefinition) -> bool:
        """Whether it asks for the one row of a whole key."""
        if self._is_ranged or self.token is not None or self.reverse or self.by is not None:
            return False
        return len(self.key) == len(definition.key) and all(c.name in self.key for c in definition.key)

    def ask(self, table: Any) -> Rows:
        """Raises as `Table.scan`, `range` and `windows`; INVALID_REQUEST if it mixes two of these."""
        page: dict[str, Any] = {"limit": self.limit, "reverse": self.reverse, "token": self.token, "bounds": self.bounds}
        is_timed = self.since is not None or self.until is not None
        rows: Rows
        if self.start is not None or self.end is not None or self.by is not None:
            if is_timed:
                raise RequestError(
                    "INVALID_REQUEST",
                    "The question mixes start, end or by, of a range, with since or until, of windows.",
                    hint="Use one of the two.",
                )
            rows = table.range(self.key, start=self.start, end=self.end, by=self.by, **page)
        elif is_timed:
            rows = table.windows(self.key, since=self.since, until=self.until, **page)
        else:
            rows = table.scan(self.key, **page)
        return rows

    def pages(self, table: Any) -> Iterator[Rows]:
        """All rows, some at a time; at least one page.

        table:  in the right state, and of one batch, so that all pages are of that batch

        The iterator raises as `ask`, and CUT_EXPIRED.
        """
        page = structs.replace(self, limit=_PAGE_ROWS).ask(table)
        yield page
        while page.more:
            page = structs.replace(self, limit=_PAGE_ROWS, token=page.token, bounds=None).ask(table)
            yield page


class Keys(Question, frozen=True, kw_only=True):
    """Rows by their whole keys, in the order of the keys."""

    keys: Annotated[list[Key], says("Whole keys: each an object with every key column.")]

    def typed(self, definition: TableDefinition) -> Keys:
        return structs.replace(self, keys=[parse_object(definition, key) for key in self.keys])

    def ask(self, table: Any) -> Rows:
        rows: Rows = table.get_all(self.keys, bounds=self.bounds)
        return rows


class CountRows(Question, frozen=True, kw_only=True):
    """How many rows there are, in all or for a part of the key."""

    key: Annotated[Key, _KEY] = {}

    def typed(self, definition: TableDefinition) -> CountRows:
        return _typed(self, definition, "key")  # type: ignore[no-any-return]

    def ask(self, table: Any) -> Answer:
        answer: Answer = table.count(self.key, bounds=self.bounds)
        return answer


class ListVersions(Question, frozen=True, kw_only=True):
    """Every version of a row, or of the rows of a part of the key or a range of keys."""

    key: Annotated[Key, _KEY] = {}
    start: Annotated[Key | None, _START] = None
    end: Annotated[Key | None, _END] = None
    since: Annotated[When, says("Only versions that were current at this batch or time, or later.")] = None
    until: Annotated[When, says("Only versions that were current at this batch or time, or earlier.")] = None
    limit: Annotated[int | None, says("The largest number of versions.", minimum=1)] = None
    is_large: ClassVar[bool] = True

    def typed(self, definition: TableDefinition) -> ListVersions:
        return _typed(self, definition, "key", "start", "end")  # type: ignore[no-any-return]

    def ask(self, table: Any) -> Answer:
        span = {"start": self.start, "end": self.end, "since": self.since, "until": self.until, "limit": self.limit}
        answer: Answer = table.history(self.key, **span, bounds=self.bounds)
        return answer


class ListChanges(Question, frozen=True, kw_only=True):
    """What happened to rows, in order."""

    since: Annotated[When, says("The token of an earlier answer, or a batch: all changes after it.  Without it: from now on.")] = (
        None
    )
    limit: Annotated[int | None, says("The largest number of changes.", minimum=1)] = None
    wait_seconds: Annotated[float, says("Wait so long if there are none yet.", minimum=0)] = 0.0

    @property
    def patience_seconds(self) -> float:
        return max(self.wait_seconds, super().patience_seconds)

    def ask(self, table: Any) -> Answer:
        """The present changes."""
        answer: Answer = table.changes(self.since, limit=self.limit, bounds=self.bounds)
        return answer


class FindEvent(Question, frozen=True, kw_only=True):
    """Where one event is: which batch read it, whether it is applied, whether it was late."""

    offset: Annotated[str | None, says("The event's own offset, topic:partition:offset, as a Kafka producer gets it.")] = None
    file: Annotated[str | None, says("The event's file, for a file source.")] = None
    line: Annotated[int | None, says("Its line in the file, for a log that is read line by line.", minimum=1)] = None
    event_time: Annotated[str | None, says("The event's own time, if its row isn't known.")] = None
    key: Annotated[Key | None, says("Key columns of the row to which it belongs.")] = None

    def typed(self, definition: TableDefinition) -> FindEvent:
        return _typed(self, definition, "key")  # type: ignore[no-any-return]

    def ask(self, table: Any) -> Answer:
        event = {"offset": self.offset, "file": self.file, "line": self.line, "event_time": self.event_time}
        answer: Answer = table.find_event(**event, key=self.key or None, bounds=self.bounds)
        return answer


class FindTotal(Question, frozen=True, kw_only=True):
    """The buckets of a group from one time until another, merged to one row."""

    key: Annotated[Key, says("The columns of the group, by name.")] = {}
    since: Annotated[str | None, says("From the bucket that has this time; without it, from the first one.")] = None
    until: Annotated[str | None, says("Only before this time; without it, all until now.")] = None
    is_large: ClassVar[bool] = True

    def typed(self, definition: TableDefinition) -> Self:
        return _typed(self, definition, "key")  # type: ignore[no-any-return]

    def ask(self, table: Any) -> Answer:
        answer: Answer = table.total(self.key, since=self.since, until=self.until, bounds=self.bounds)
        return answer


class ListSeries(FindTotal, frozen=True, kw_only=True):
    """The same with a row for each step."""

    step: Annotated[str, says('The length of a step, as "1 hour": one of the resolutions, or a longer one.')]

    def ask(self, table: Any) -> Answer:
        answer: Answer = table.series(self.key, step=self.step, since=self.since, until=self.until, bounds=self.bounds)
        return answer


class ReadStored(Question, frozen=True, kw_only=True):
    """Rows as they are stored, for routers, which merge those of several shards."""

    span: Annotated[StoredSpan | None, says("Which of them; without it none.")] = None
    facts: Annotated[bool, says("With what is needed to read them.")] = False

    def ask(self, table: Any) -> Answer:
        answer: Answer = table.stored_rows(self.span, facts=self.facts, bounds=self.bounds)
        return answer


class KeepCut(Question, frozen=True, kw_only=True):
    """The newest batch, which stays readable for a while."""

    def ask(self, table: Any) -> Answer:
        answer: Answer = table.cut(bounds=self.bounds)
        return answer


class Define(Question, frozen=True, kw_only=True):
    """A table's definition, as soon as there is one."""

    def ask(self, table: Any) -> Answer:
        answer: Answer = table.get_all((), bounds=self.bounds)  # a table that nobody defined is defined by the newest state
        return answer


class Align(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The batches at which tables of several jobs have read the same input."""

    tables: Annotated[list[str], says("Names of tables.", minItems=1)]
    offsets: Annotated[dict[str, Any] | None, says("The ends of the sources; without them, the newest that all jobs have.")] = None


class AskSql(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A SELECT over tables."""

    statement: Annotated[str, says("One SELECT, in DuckDB's SQL.", minLength=1)]
    parameters: Annotated[list[Any] | dict[str, Any] | None, says("Values for `?`, or by name for `$name`.")] = None
    separate: Annotated[bool, says("Whether tables of several jobs may be of batches that end at different offsets.")] = False
    bounds: Annotated[BoundsField | None, says("What the tables must reflect.", **{"$ref": "#/components/schemas/Bounds"})] = None
    at: Annotated[int | str | None, says("A batch, or a time as an ISO text, for all tables that have no AT.")] = None


class SubscribeSql(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A SELECT from one table, and what each batch changes in its answer."""

    statement: Annotated[str, says("One SELECT from one table, in DuckDB's SQL.", minLength=1)]
    parameters: Annotated[list[Any] | dict[str, Any] | None, says("Values for `?`, or by name for `$name`.")] = None
    by: Annotated[list[str] | None, says("Columns that name a row; empty for answers of one row.")] = None
    since: Annotated[str | None, says("The id of an event: go on after it.")] = None


class CreateSavepoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new savepoint of a job."""

    name: Annotated[str, says("The savepoint's name; with several ponds POND/NAME.", minLength=1)]
    job: Annotated[str | None, says("The job, in a pond with several.")] = None
    batch: Annotated[int | None, says("Another committed batch than the newest.", minimum=0)] = None
    note: Annotated[str, says("A text for people.")] = ""
    count: Annotated[bool, says("Count the rows, which decodes all of the state.")] = True


class VerifySavepoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether all of a savepoint is as it was made."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether answers are fresh enough."""

    max_behind_seconds: Annotated[float | None, says("How far behind a job may be.", minimum=0)] = None
