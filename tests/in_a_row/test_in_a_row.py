"""Savepoints of a job at full speed, one after the other, while Spark keeps two batches: all verify, all restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from in_a_row.row import ROWS, Row, expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# `make savepoints` makes 200 of each provider.
@pytest.mark.long
@pytest.mark.parametrize(("provider", "count"), [("changelog", 10), ("hdfs", 40), ("snapshots", 40)])
def test_savepoints_in_a_row_all_restore(spark: SparkSession, tmp_path: Path, provider: str, count: int) -> None:
    row = Row(spark, tmp_path, provider)
    row.run(count, every=count)
    assert not row.wrong, "\n".join(row.wrong)
    assert count <= len(row.made) == row.counts["restored"] == row.counts["verified"] // 2


def test_what_is_expected_is_what_the_rows_say() -> None:
    assert expected(ROWS) == (expected(ROWS)[0], {(value, 1_767_225_600_000) for value in range(ROWS)})
    windows, seen = expected(ROWS * 70)
    assert sum(n for n, _ in windows.values()) == ROWS * 10  # the first minute is over, and its rows are let go
    assert len(seen) == ROWS * 6
