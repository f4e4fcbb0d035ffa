"""Packing events for a shard and unpacking them gives the same events."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.schema.shards import SHARD
from millpond.spark.broadcast.chunks import EVENTS, iter_together, pack, to_pandas, unpack

ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 2, 5]),
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        st.one_of(st.none(), st.text()),
        st.one_of(st.none(), st.booleans()),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(ROWS)
def test_every_event_is_in_the_chunk_of_its_shard_once(rows: list[tuple[int, int | None, str | None, bool | None]]) -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), (SHARD, pa.int32()), ("flag", pa.bool_())])
    batch = pa.RecordBatch.from_pylist([{"n": n, "text": t, SHARD: s, "flag": f} for s, n, t, f in rows], schema)
    packed = [row for out in pack(iter([batch])) for row in out.to_pylist()]
    assert len({row[SHARD] for row in packed}) == len(packed)
    for row in packed:
        frame = to_pandas(unpack([row[EVENTS]]), "UTC")
        assert list(frame.columns) == ["n", "text", "flag"]
        found = [tuple(map(_plain, event)) for event in frame.astype(object).itertuples(index=False)]
        assert found == [(n, t, f) for s, n, t, f in rows if s == row[SHARD]]
    assert {row[SHARD] for row in packed} == {s for s, *_ in rows}


def _plain(value: Any) -> Any:
    return None if value is pd.NA else value


def test_times_are_the_sessions_and_what_is_nested_is_whole() -> None:
    noon = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
    event = {
        "at": noon,
        "local": dt.datetime(2026, 7, 1, 12),
        "day": dt.date(2026, 7, 1),
        "price": Decimal("1.10"),
        "list": [1, None],
        "map": {"a": 1},
        "struct": {"x": 1, "y": "z"},
    }
    types = {
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "price": pa.decimal128(5, 2),
        "list": pa.list_(pa.int64()),
        "map": pa.map_(pa.string(), pa.int64()),
        "struct": pa.struct([("x", pa.int64()), ("y", pa.string())]),
    }
    batch = pa.RecordBatch.from_pylist([{**event, SHARD: 1}], pa.schema([*types.items(), (SHARD, pa.int32())]))
    (packed,) = pack(iter([batch]))
    (row,) = to_pandas(unpack([packed.column(EVENTS)[0].as_py()]), "Europe/Berlin").to_dict("records")
    assert row["at"] == dt.datetime(2026, 7, 1, 14)  # Berlin's summer time
    assert row["local"] == event["local"]
    assert (row["day"], row["price"], row["map"], row["struct"]) == (event["day"], event["price"], event["map"], event["struct"])
    assert row["list"][0] == 1


def test_chunks_are_taken_together_up_to_a_size_and_each_once() -> None:
    chunks = [bytes([n]) * size for n, size in enumerate([3 << 20, 1 << 20, 1, 9 << 20, 5, 6])]
    together = list(iter_together(list(chunks)))
    assert [chunk for some in together for chunk in some] == chunks
    assert [len(some) for some in together] == [2, 1, 1, 2]
    assert list(iter_together([])) == []
