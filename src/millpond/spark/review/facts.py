"""What is known of a program's queries, as data that another process can read."""

from __future__ import annotations

import msgspec


class KeyColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column by which an operator groups, joins or tells duplicates.

    watermarked:  whether it has a watermark
    window:       whether it is a window or session of time
    drawn:        the function that gives another value at each run; None if there is none
    """

    name: str
    watermarked: bool
    window: bool
    drawn: str | None


class KeptList(msgspec.Struct, frozen=True, kw_only=True):
    """An aggregate that keeps a list of values.

    instead:  the aggregate that gives what is read of the list; None if the list itself is read
    """

    function: str
    call: str
    instead: str | None


class UnreadFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a struct that an aggregate keeps, and nothing reads.

    bytes:  what they take in a row, at least
    """

    call: str
    unread: tuple[str, ...]
    read: tuple[str, ...]
    bytes: int


class JoinSide(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a join of two streams.

    watermarked:  whether any of its columns has a watermark
    bounded:      whether Spark removes its rows by a watermark
    """

    name: str
    watermarked: bool
    bounded: bool


class QueryOperator(msgspec.Struct, frozen=True, kw_only=True):
    """A stateful operator of a query.

    name:       Spark's name of it
    watermarks: the columns below it that have a watermark
    row_bytes:  what a row of its state takes, at least; of a join, a row of either side
    """

    name: str
    keys: tuple[KeyColumn, ...] = ()
    lists: tuple[KeptList, ...] = ()
    unread: tuple[UnreadFields, ...] = ()
    sides: tuple[JoinSide, ...] = ()
    watermarks: tuple[str, ...] = ()
    row_bytes: int = 0


class BatchFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function of a foreachBatch.

    uses_batch_id: whether its code reads its second parameter
    appends:       how it appends to something outside; None if no such call is in its code
    """

    name: str
    line: int
    uses_batch_id: bool
    appends: str | None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query that the program would have started.

    line:        where; None if that isn't in the program's own file
    trigger_ms:  the interval of its trigger; None if it has another one
    sink:        the sink's format, or foreachBatch or foreach
    checkpoint:  its checkpointLocation; None without one
    conf:        settings of the session that matter, by Spark's name
    """

    name: str
    line: int | None
    output_mode: str
    trigger_ms: int | None
    sink: str
    function: BatchFunction | None
    checkpoint: str | None
    conf: dict[str, str]
    operators: tuple[QueryOperator, ...]
    watermarks: tuple[str, ...]


class Review(msgspec.Struct, kw_only=True):
    """All queries of a program.

    master:  where it would run; None if the program doesn't say
    notes:   what couldn't be looked at, or was replaced, a sentence each
    error:   why the program ended early; None if it didn't
    ended:   a sentence on what it asked for that only a running query has, where it ended; None if
             it didn't
    declared: how many declared aggregates it starts
    """

    queries: list[Query] = []
    master: str | None = None
    notes: list[str] = []
    error: str | None = None
    ended: str | None = None
    declared: int = 0
