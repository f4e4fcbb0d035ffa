"""SQL statements as exchanges with a server; answers come as Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millpond.client.exchange import Exchange, not_a_server, post
from millpond.errors import RequestError
from millpond.schema.prepared import ready
from millpond.schema.values import decode_json
from millpond.tables.forms.arrow import pyarrow
from millpond.tables.job.bounds import Bounds
from millpond.tables.sql.answer import SqlAnswer
from millpond.tables.sql.reading.scan import TableRead
from millpond.wire.answers import CUTS, READS, FromCut, SqlRead
from millpond.wire.questions import AskSql

# A server's statement waits for its turn, and then runs, each up to `max_seconds`: asking anew sooner
# would only make it begin again.
_SERVER_SECONDS = 60.0
_ARROW = "application/vnd.apache.arrow.stream"


def ask_sql(
    statement: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None,
    *,
    bounds: Bounds | None,
    separate: bool,
    at: int | str | None,
) -> Exchange[SqlAnswer]:
    """As `Pond.sql`.  Raises also SQL_ENDED, TOO_MANY_ANSWERS, TOO_MANY_DOWNLOADS."""
    pyarrow()
    given = parameters if parameters is None else dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
    _check(given)
    question = AskSql(statement=statement, parameters=given, separate=separate, bounds=bounds, at=at)
    wait_seconds = _SERVER_SECONDS + (bounds.wait_seconds if bounds is not None else 0.0)
    reply = yield post("/sql", question, accept=_ARROW, wait_seconds=wait_seconds)
    return _read(reply.body, is_plan=statement.split(None, 1)[:1] != [] and statement.split(None, 1)[0].lower() == "explain")


def _check(value: Any) -> None:
    """Raise WRONG_TYPE for a parameter that JSON has no form of."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            _check(each)
    elif not isinstance(value, str | int | float | None):
        raise RequestError(
            "WRONG_TYPE",
            f"A parameter is {value!r:.80}, which JSON has no form of.",
            hint="Give it as a text, and write CAST(? AS TIMESTAMPTZ), CAST(? AS DATE), CAST(? AS DECIMAL(10,2)), …",
        )


def _read(body: bytes, *, is_plan: bool) -> SqlAnswer:
    pa = pyarrow()
    try:
        reader = pa.ipc.open_stream(body)
        batches, last = [], None
        for batch, metadata in reader.iter_batches_with_custom_metadata():
            batches.append(batch)
            last = metadata
        cuts = msgspec.convert(decode_json((reader.schema.metadata or {})[CUTS.encode()]), ready(list[FromCut]))
        reads = msgspec.convert(decode_json(dict(last or {})[READS.encode()]), ready(list[SqlRead]))
    except (ValueError, KeyError, OSError) as wrong:  # without the last batch, the answer was broken off
        raise not_a_server(f"its answer can't be read: {wrong!r:.200}") from None
    table = pa.Table.from_batches(batches, schema=reader.schema).replace_schema_metadata(None)
    made = tuple(TableRead(read.table, read.how, (), read.rows) for read in reads)
    return SqlAnswer(table, tuple(each.cut for each in cuts), made, is_plan)
