"""Columns that stay in memory: of one batch and one definition, up to so many bytes, and with the same rows as without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.tables.sql.reading.column_cache import CACHE

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
STATEMENT = 'SELECT page, "count" FROM "{name}" ORDER BY ALL'


def test_each_batch_is_read_anew_and_then_once(golden: Callable[[str], Any], tmp_path: Path) -> None:
    copy = golden("counts-hdfs")
    copy.uncommit()
    with millpond.open(copy.checkpoint, replica_dir=tmp_path / "home", wait_seconds=0) as pond:
        before = None
        for batch in range(copy.last + 1):
            copy.commit(batch)
            pond.catch_up(20)
            (name,) = pond.tables()
            for _ in range(2):
                answer = pond.sql(STATEMENT.format(name=name))
                assert answer.batch == batch
                expected = pond[name].to_arrow().select(["page", "count"]).to_pylist()
                assert sorted(map(repr, answer.rows())) == sorted(map(repr, expected))
            assert expected != before
            before = expected
            places = {place for place, _ in CACHE._known if place.table and place.generation == answer.cuts[0].generation}
            assert [place.batch for place in places] == [batch], "columns of older batches are gone"
        counted = pond.sql(f'SELECT count(*) AS n, sum("sum") AS s FROM "{name}"').rows()[0]
        assert counted["n"] == len(expected), "one column was in memory, the other was read"


def test_its_bytes_are_bounded(golden: Callable[[str], Any], tmp_path: Path) -> None:
    copy = golden("counts-hdfs")
    with millpond.open(copy.checkpoint, replica_dir=tmp_path / "home") as pond:
        (name,) = pond.tables()
        size = pond[name].to_arrow().nbytes
        before = CACHE.size_bytes
        rows = pond.sql(f'SELECT * FROM "{name}"', limits=millpond.SqlLimits(cache_bytes=0)).rows()
        assert CACHE.size_bytes == before, "none is kept"
        assert pond.sql(f'SELECT * FROM "{name}"', limits=millpond.SqlLimits(cache_bytes=size // 2)).rows() == rows
        assert CACHE.size_bytes == before, "a table that is too large isn't collected either"
        for _ in range(2):
            assert pond.sql(f'SELECT * FROM "{name}"', limits=millpond.SqlLimits(cache_bytes=2 * size)).rows() == rows
        assert size // 2 < CACHE.size_bytes <= 2 * size
        pond.sql(f'SELECT page FROM "{name}" LIMIT 1', limits=millpond.SqlLimits(cache_bytes=size // 4))
        assert CACHE.size_bytes <= 2 * size
