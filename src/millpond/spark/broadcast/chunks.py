"""Events on their way to a shard: many in one row, as an Arrow stream.

PySpark passes rows to a state function one by one before it makes DataFrames of them, which costs
more than most functions do.  A row with thousands of events costs as much as a row with one.

Shape:  shard, and the bytes of one Arrow IPC stream of the events' columns; as many events as Spark
        puts into an Arrow batch
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millpond.schema.shards import SHARD

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

EVENTS = "millpond_events"
PACKED = f"{SHARD} int, {EVENTS} binary"
_AT_ONCE_BYTES = 4 << 20


def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack Arrow batches that have a column for the shard: a row for each shard of a batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([(SHARD, pa.int32()), (EVENTS, pa.binary())])
    for batch in batches:
        events = pa.Table.from_batches([batch])
        shards = events.column(SHARD)
        events = events.drop_columns([SHARD])
        for shard in pc.unique(shards).to_pylist():
            some = events.filter(pc.equal(shards, shard))
            yield pa.RecordBatch.from_pydict({SHARD: [shard], EVENTS: [_to_bytes(some)]}, schema)


def iter_together(chunks: list[bytes]) -> Iterator[list[bytes]]:
    """The chunks, some at a time, since a call for few events costs as much as one for many.

    Chunks are dropped from memory when the caller asks for the next ones.
    """
    chunks.reverse()
    while chunks:
        some = [chunks.pop()]
        while chunks and sum(map(len, some)) + len(chunks[-1]) <= _AT_ONCE_BYTES:
            some.append(chunks.pop())
        yield some


def unpack(chunks: list[bytes]) -> pa.Table:
    """The events of some chunks."""
    import pyarrow as pa

    return pa.concat_tables([pa.ipc.open_stream(chunk).read_all() for chunk in chunks])


def to_pandas(events: pa.Table, timezone: str) -> pd.DataFrame:
    """Events as Spark passes them to a pandas function, but whole numbers stay whole beside NULL (Int64).

    timezone:  the session's; pandas gets local times in it
    Shape:     nested values as pyarrow converts them: numpy arrays; structs and maps as dicts
    """
    import pandas as pd
    import pyarrow as pa

    frame = pd.DataFrame({name: to_series(events.column(i)) for i, name in enumerate(events.column_names)})
    for name, field in zip(events.column_names, events.schema, strict=True):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            frame[name] = frame[name].dt.tz_convert(timezone).dt.tz_localize(None)
    return frame


def to_series(column: pa.ChunkedArray) -> pd.Series:
    """A column.  Without a type of their own, whole numbers beside a NULL would become floats."""
    import pandas as pd
    import pyarrow as pa

    if column.null_count and pa.types.is_integer(column.type):
        return column.to_pandas(types_mapper={t: d() for t, d in _whole(pa, pd)}.get)
    return column.to_pandas(date_as_object=True, maps_as_pydicts="strict")


def _whole(pa: Any, pd: Any) -> list[tuple[Any, Any]]:
    return [
        (pa.int8(), pd.Int8Dtype),
        (pa.int16(), pd.Int16Dtype),
        (pa.int32(), pd.Int32Dtype),
        (pa.int64(), pd.Int64Dtype),
    ]


def _to_bytes(events: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, events.schema) as stream:
        stream.write_table(events)
    data: bytes = sink.getvalue().to_pybytes()
    return data
