"""dropDuplicates by many columns in a checkpoint of the time before Spark fixed the order of its key: that of a Scala set.

The state's key is bound by position, and columns of one type can't be told apart: somebody who names them by today's order
shows each value under another name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.spark.upgrade.check import check_upgrade
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = list("abcdef")
KINDS = {"texts": "string string string string string string", "of many types": "string int double string date int"}
_ORDER = "spark.sql.dropDuplicates.deterministicKeyOrder.enabled"


@contextmanager
def order(spark: SparkSession, is_given: bool) -> Iterator[None]:
    spark.conf.set(_ORDER, str(is_given).lower())
    try:
        yield
    finally:
        spark.conf.unset(_ORDER)


def value(kind: str, column: str, n: int) -> Any:
    return {"string": f"{column}{n}", "int": n, "double": n / 2, "date": f"2026-01-{n + 1:02}"}[kind]


def write_rows(folder: Path, first: int, kinds: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    values = {
        "string": lambda c, n: f"{c}{n}",
        "int": lambda c, n: n,
        "double": lambda c, n: n / 2,
        "date": lambda c, n: f"2026-01-{n + 1:02}",
    }
    rows = [{c: values[kind](c, n) for c, kind in zip(COLUMNS, kinds, strict=True)} for n in range(first, first + 4)]
    (folder / f"{first}.json").write_text("\n".join(map(json.dumps, rows)))


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(str(tuple(str(row[c]) for c in COLUMNS)) for row in frame.collect())


def shown(rows: Any) -> list[str]:
    return sorted(str(tuple(str(row[c]) for c in COLUMNS)) for row in rows)


@pytest.mark.parametrize(("was_given", "kinds"), a_few([(False, "texts"), (False, "of many types"), (True, "texts")], 1))
def test_names_are_those_of_spark_s_reader(spark: SparkSession, tmp_path: Path, was_given: bool, kinds: str) -> None:
    types = KINDS[kinds].split()
    write_rows(tmp_path / "in", 0, types)
    pond, checkpoint = tmp_path / "pond", tmp_path / "checkpoint"

    def frame() -> DataFrame:
        schema = ", ".join(f"{c} {kind}" for c, kind in zip(COLUMNS, types, strict=True))
        return spark.readStream.schema(schema).json(str(tmp_path / "in")).dropDuplicates(COLUMNS)

    def state(checkpoint: Path) -> list[str]:
        return rows_of(spark.read.format("statestore").load(str(checkpoint)).select("key.*"))

    with order(spark, was_given):
        query = frame().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination()
        job = millpond.start(frame(), table="seen", pond=pond, trigger="available-now")
        job.query.awaitTermination()
        job.stop()
    with order(spark, not was_given):
        millpond.define(frame(), checkpoint, table="seen")
        with millpond.open(checkpoint, replica_dir="memory://") as opened:
            assert shown(opened["seen"].scan()) == state(checkpoint)
        upgrade = check_upgrade(frame(), pond, "seen")
        assert upgrade.verdict == "compatible", upgrade
        write_rows(tmp_path / "in", 2, types)  # two of them are known
        job = millpond.start(frame(), table="seen", pond=pond, trigger="available-now")
        job.query.awaitTermination()
        job.stop()
        with millpond.open(pond, replica_dir="memory://") as opened:
            rows = shown(opened["seen"].scan())
            assert rows == state(pond / "jobs/seen/checkpoint")
            assert len(rows) == 6
