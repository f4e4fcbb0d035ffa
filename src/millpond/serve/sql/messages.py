"""What the server and a process for statements say to each other, over a pair of sockets.

    server   Ask, then one reply to each question: Opened, bytes, Nothing, Lines, Failure
    process  the questions Open, Scan, More, Plan, Reads, Catalog; Head or PostgresHead, pieces of the answer as bytes, Done;
             or Failure

The process has no table, no file and no secret.  It asks the server for all that it reads, a piece
at a time, and the server takes the pieces of its answer when it wants them.  A reply to Scan and
More is a record batch in Arrow's IPC form, of the schema in Opened with the columns of the Scan.
"""

from __future__ import annotations

import json
import traceback
from multiprocessing.connection import Connection

import msgspec

from millpond.errors import CONDITIONS, MillpondError, ReplicaError
from millpond.schema.prepared import ready
from millpond.tables.sql.reading.order import Hint, Unordered
from millpond.tables.sql.statement import TableName

Stream = bytes
"""an Arrow stream"""


class Message(msgspec.Struct, frozen=True, tag=True):
    """One of those below."""


class Postgres(msgspec.Struct, frozen=True):
    """How a statement of PostgreSQL's protocol is answered.

    types:    of its parameters, 0 for those that the client doesn't say
    formats:  of the columns: none for text, one for all, or one each; 0 for text, 1 for binary
    is_described: whether only the types of parameters and columns are wanted
    session:  see `tree.Rewriter`
    """

    types: list[int]
    formats: list[int]
    is_described: bool
    session: dict[str, str]


class Ask(Message, frozen=True):
    """A statement.

    number:   by which it can be ended
    question: JSON of the statement and its parameters: texts may be no UTF-8, and numbers large
    form:     the name of the answer's form, of `serve.formats`
    rows, bytes, seconds:  see `SqlLimits`
    at:       see `run.start`
    postgres: for a statement of PostgreSQL's protocol, whose answer has that form
    values:   parameters in place of those in `question`: an Arrow stream with one row
    is_described: whether only schemas are wanted, of the answer and of the parameters: two pieces
    """

    number: int
    question: str
    form: str
    rows: int
    bytes: int
    seconds: float
    at: int | str | None
    postgres: Postgres | None = None
    values: Stream | None = None
    is_described: bool = False


class Open(Message, frozen=True):
    """Open tables; `is_dry` as in `open_tables`."""

    names: list[TableName]
    is_dry: bool


class Opened(Message, frozen=True):
    """Their schemas, in Arrow's IPC form, the columns by which each may have its rows in order; the cuts in JSON."""

    schemas: list[bytes]
    sortable: list[list[str]]
    cuts: str


class Scan(Message, frozen=True):
    """Begin to read a table, by its place in Open.  See `dataset.Relation`."""

    number: int
    table: int
    names: list[str]
    condition: bytes | None
    hint: Hint


class More(Message, frozen=True):
    """The next piece of a scan."""

    number: int


class Nothing(Message, frozen=True):
    """The scan has ended."""


class Plan(Message, frozen=True):
    """How were the tables read?"""


class Reads(Message, frozen=True):
    """How were the tables read, in JSON?"""


class Catalog(Message, frozen=True):
    """Which tables may the reader read?  The answer is one line of JSON, see `postgres.catalog`."""


class Lines(Message, frozen=True):
    """The answer to Plan, Reads and Catalog."""

    lines: list[str]


class Head(Message, frozen=True):
    """The answer begins: the names of its columns and their types, in Spark's words.  `lookup` says whether the statement may
    be one.
    """

    columns: list[tuple[str, str]]
    lookup: Lookup | None = None


class Lookup(msgspec.Struct, frozen=True):
    """A statement that looks one key of a table up.

    columns:  that it gives
    key:      columns with the numbers of their parameters, from 1
    """

    table: str
    columns: list[str]
    key: list[tuple[str, int]]


class PostgresHead(Message, frozen=True):
    """The answer begins: the types of the parameters, and of each column its name, type and modifier.  `lookup` says
    whether the statement may be one.

    The pieces that follow are a number of rows (4 bytes) and so many messages DataRow.
    """

    parameters: list[int]
    columns: list[tuple[str, int, int]]
    lookup: Lookup | None = None


class Done(Message, frozen=True):
    """The answer has ended.

    is_tired:  whether the process holds so much memory that it should end
    """

    is_tired: bool


class Failure(Message, frozen=True):
    """An error in place of a reply or an answer; an empty condition stands for Unordered."""

    condition: str
    message: str = ""
    hint: str = ""
    context: str = "{}"


# Of a traceback, in signs.
_MOST_TRACE = 8000
_Any = Ask | Open | Opened | Scan | More | Nothing | Plan | Reads | Catalog | Lines | Head | PostgresHead | Done | Failure
_encode = msgspec.msgpack.Encoder(enc_hook=str).encode
_decode = msgspec.msgpack.Decoder(ready(_Any)).decode
_MESSAGE, _BYTES = b"m", b"b"


def send(connection: Connection, message: _Any | bytes | memoryview) -> None:
    """Send a message, or bytes.  Raises OSError."""
    if isinstance(message, Message):
        connection.send_bytes(_MESSAGE + _encode(message))
    else:
        connection.send_bytes(_BYTES)
        connection.send_bytes(message)


def receive(connection: Connection) -> _Any | bytes:
    """The next message, or bytes.  Raises OSError, EOFError; ValueError for what is neither."""
    data = connection.recv_bytes()
    return connection.recv_bytes() if data == _BYTES else _decode(data[1:])


def failure_of(error: Exception) -> Failure:
    """An error as a message."""
    if not isinstance(error, MillpondError):
        assert isinstance(error, Unordered)
        return Failure("")
    message = error.message.encode("utf-8", "replace").decode()
    context = json.loads(json.dumps(error.context, default=str).encode("utf-8", "replace"))
    return Failure(error.condition, message, error.hint, json.dumps(context))


def mistake(error: Exception) -> MillpondError:
    """The error of a bug in Millpond; `trace` is for the server's log alone."""
    return MillpondError(
        "INTERNAL_ERROR",
        f"This is a bug in Millpond ({type(error).__name__}); the statement may be correct.",
        hint="Report it with the server's log.",
        trace="".join(traceback.format_exception(error))[-_MOST_TRACE:],
    )


def error_of(failure: Failure) -> Exception:
    """The error of a message."""
    if not failure.condition:
        return Unordered()
    kind = CONDITIONS[failure.condition].kind if failure.condition in CONDITIONS else ReplicaError
    context = {name: value for name, value in json.loads(failure.context).items() if name not in ("condition", "message", "hint")}
    return kind(failure.condition, failure.message, hint=failure.hint, **context)
