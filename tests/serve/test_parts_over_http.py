"""A table in parts over HTTP: the short way, the long way, the client, pages and changes all give the merged row."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

import millpond
from millpond.catalogue import create_beside
from millpond.schema.definition.expression import Expression, buffer_column
from millpond.schema.definition.parts import Parts
from millpond.schema.definition.table import TableDefinition, ValueColumn, key_columns
from millpond.schema.types import Field, atomic
from servers.serving import wait_until_ready
from spark_files.checkpoint import VALUE, WrittenCheckpoint

LONG = atomic("long")
KEY = (Field("salt", atomic("integer")), Field("k", atomic("string")))
SUM = Expression("aggregate", LONG, options={"function": "sum", "buffers": [0], "mode": "ansi"})
# The store cuts and hashes this key; it wouldn't without the part's bytes.
LONG_KEY = "z" * 504
AGE = re.compile(rb'"(age_seconds|event_lag_seconds)":[0-9.e+-]+')


def written(path: Path) -> WrittenCheckpoint:
    """Two batches: a is in all parts, b in one, c and a long key in two; the sum of overflow exceeds a long."""
    job = WrittenCheckpoint(path, key=KEY)
    table = TableDefinition(
        table="t",
        operator=0,
        key=key_columns(KEY),
        values=(ValueColumn("v", LONG, buffer_column(0, LONG)),),
        key_schema=KEY,
        value_schema=VALUE,
    )
    create_beside(str(path)).write_definition(table.over_parts(Parts(column=KEY[0], values=(0, 1, 2), merges=(SUM,))))
    most = (1 << 63) - 1
    job.plan([((0, "a"), 1), ((1, "a"), 10), ((2, "b"), 5), ((0, "overflow"), most), ((1, "overflow"), 1)], snapshot=False)
    job.commit()
    more = [((1, "c"), 1), ((2, "c"), 2), ((0, LONG_KEY), 3), ((2, LONG_KEY), 4), ((2, "a"), 100)]
    job.plan([*more, ((0, "é"), 7)], snapshot=False)
    job.commit()
    return job


def test_every_way_gives_the_merged_rows(serve: Callable[..., Any], tmp_path: Path) -> None:
    job = written(tmp_path / "ck")
    expected = {"a": 111, "b": 5, "c": 3, LONG_KEY: 7, "é": 7}
    with serve(job.path, "--history", "t=1h") as (url, _):
        with httpx.Client(base_url=url, timeout=30, headers={"accept-encoding": "identity"}) as http:
            wait_until_ready(http)
            for key in (*expected, "nothing"):
                path = f"/tables/t/rows?k={quote(key)}"
                short, long = http.get(path), http.get(path, headers={"if-none-match": '"none"'})
                assert AGE.sub(b"age", short.content) == AGE.sub(b"age", long.content)
                assert [row["v"] for row in short.json()["rows"]] == ([expected[key]] if key in expected else [])
            assert [table["key"] for table in http.get("/tables").json()["tables"]] == [["k"]]
            assert http.get("/tables/t/rows?k=overflow").json()["error"]["condition"] == "VALUE_OUT_OF_RANGE"
        # The overflowing row would end every scan with an error.
        job.plan([((0, "overflow"), None), ((1, "overflow"), None)], snapshot=False)
        job.commit()
        with millpond.connect(url) as pond:
            table = pond["t"]
            rows = table.scan(bounds=millpond.Bounds(min_batch=2, wait_seconds=30))
            assert {row["k"]: row["v"] for row in rows} == expected
            assert [row["k"] for row in rows] == sorted(expected)
            assert table.get(k="a") == {"k": "a", "v": 111}
            page = table.scan(limit=2)
            assert [*page, *table.scan(limit=9, token=page.token)] == rows
            assert table.count() == len(expected)
            assert table.at(batch=1).get(k="c")["v"] == 3
