"""`POST /sql` of one key, answered at once: see `serve.hot.lookups`.

The application answers the first request with a statement, and all that is unusual.  Both give the
same bytes, which a test compares.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.errors import MillpondError
from millpond.schema.prepared import ready
from millpond.schema.types import SparkType
from millpond.schema.values import encode_json
from millpond.serve.hot.lookups import MOST_BYTES, LookupPlan, LookupViews, Plans, is_utf8, plan_lookup
from millpond.serve.sql import messages as say
from millpond.tables.sql.reading.scan import TableRead
from millpond.wire.answers import sql_cuts, sql_ends, sql_reads
from millpond.wire.rows import WriteRow, columns_writer

if TYPE_CHECKING:
    from millpond.serve.app import HttpDoor

Headers = list[tuple[bytes, bytes]]
_HEAD = b"content-type: application/json\r\ncache-control: no-store\r\ncontent-length: %d\r\n\r\n%b"


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The questions that are answered here: those with a statement and a list of values."""

    statement: str
    parameters: list[Any]


_decode = msgspec.json.Decoder(ready(_Asked)).decode
Key = tuple[str, int]
"""a statement, and the number of its parameters"""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A lookup.

    columns:  names of the answer's columns, and of the table's
    found, missing:  what stands before and after the rows, with the batch between them
    """

    lookup: LookupPlan
    columns: list[tuple[str, str]]
    write: WriteRow
    begin: bytes
    found: bytes
    missing: bytes


class HotSql:
    """Answers statements of one key for a door.

    defer:  calls a function before the event loop looks for requests again
    """

    def __init__(self, door: HttpDoor, defer: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._door = door
        self._plans = Plans[Key, _Plan]()
        self._views = LookupViews(door, defer or (lambda function: asyncio.get_running_loop().call_soon(function)))

    def note(self, statement: str, parameters: Any, head: say.Head, reads: list[TableRead]) -> None:
        """A process has answered this question whole, of the newest batch and without bounds; it may be a lookup."""
        lookup = head.lookup
        if lookup is None or len(statement) > MOST_BYTES or len(reads) != 1 or not isinstance(parameters, list):
            return
        try:
            plan = plan_lookup(self._door.ponds[lookup.table].definition, lookup)
        except MillpondError:
            return
        if plan is None or plan.columns_of(parameters) is None:
            return
        if {place for _, place, _ in plan.key} != set(range(len(parameters))):
            return
        types = [plan.definition.types[name] for name in plan.columns]
        if [str(type_) for type_ in types] != [type_ for _, type_ in head.columns]:
            return
        self._plans.note((statement, len(parameters)), _plan(plan, head, types, reads[0]))

    def answer(self, headers: dict[bytes, bytes], body: bytes, client: str) -> bytes | None:
        """The answer after the status line and the server's own headers; None if the application must answer."""
        began, door = time.perf_counter(), self._door
        try:
            asked = _decode(body)
            plan = self._plans.find((asked.statement, len(asked.parameters)))
            if plan is None or not door.settings.sql:
                return None
            reader = door.access.peek(headers)
            answer = self._answer(plan, reader, asked.parameters)
            if answer is None or len(answer) > door.settings.max_answer_bytes or len(answer) >= door.settings.gzip_bytes:
                return None
            door.access.count(reader, client)
        except (MillpondError, msgspec.DecodeError, UnicodeError):
            return None
        door.meter.count("sql", 200, time.perf_counter() - began, tables=(plan.lookup.table,))
        return _HEAD % (len(answer), answer)

    def _answer(self, plan: _Plan, reader: Any, values: list[Any]) -> bytes | None:
        key = plan.lookup.columns_of(values)
        lookups = None if key is None else self._views.of(plan.lookup, reader)
        if lookups is None or key is None:
            return None
        row = lookups.row_of(key)
        if not row and lookups.binding.may_expire:
            return None
        written, after = b"", plan.missing
        if row:
            shown = {name: row[column] for name, column in plan.columns}
            if any(type(value) is str and not is_utf8(value) for value in shown.values()):
                return None
            written, after = encode_json(plan.write(shown)), plan.found
        return b"".join((plan.begin, written, b'],"jobs":', sql_cuts([lookups.cut]).encode(), after))


def _plan(plan: LookupPlan, head: say.Head, types: list[SparkType], read: TableRead) -> _Plan:
    names = [name for name, _ in head.columns]
    after = [f',"reads":{sql_reads([TableRead(read.table, read.how, read.columns, rows)])}}}'.encode() for rows in (1, 0)]
    write = columns_writer(list(zip(names, types, strict=True)))
    return _Plan(plan, list(zip(names, plan.columns, strict=True)), write, sql_ends(head.columns, (), ())[0], *after)
