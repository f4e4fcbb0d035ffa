"""`check_upgrade` of every other operator, of sources and of settings: what Spark does after it is what it said.

For each case a job runs, and goes on with another query on a restored copy.  Where Spark refuses, its error class is compared.
Where it goes on, the test names what is right, and looks at the state that Spark then has, by Spark's own reader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.cloudpickle
import pytest

import millpond
from inputs.event_file import write_event_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pyspark.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import a test
SCHEMA = "page string, host string, a long, b long, time timestamp"
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",  # each partition starts a Python worker
}
AVRO = {**ROCKSDB, "spark.sql.streaming.stateStore.encodingFormat": "avro"}
NO_CHECK = {"spark.sql.streaming.stateStore.stateSchemaCheck": "false"}


class Inputs:
    """The streams of a case: two folders of files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def stream(self, side: str = "left") -> DataFrame:
        (self.folder / side).mkdir(exist_ok=True)
        return self.spark.readStream.schema(SCHEMA).json(str(self.folder / side))

    def feed(self, batch: int) -> None:
        for side in ("left", "right"):
            (self.folder / side).mkdir(exist_ok=True)
            rows = [
                {"page": f"/{n}", "host": f"h{n}", "a": n, "b": 100 + n, "time": f"2026-01-01T00:00:{batch * 10 + n:02d}Z"}
                for n in range(4)
            ]
            write_event_file(self.folder / side, batch, rows)


Query = Callable[[Inputs], "DataFrame"]


def counting(states: dict[str, tuple[str, str]], time_mode: str = "none", mode: str = "update", ttl_ms: int = 0) -> Query:
    """transformWithState with these variables: name -> (kind, schema)."""

    def query(inputs: Inputs) -> DataFrame:
        from pyspark.sql import Row
        from pyspark.sql.streaming import StatefulProcessor

        class Counting(StatefulProcessor):
            def init(self, handle: Any) -> None:
                get = {"value": handle.getValueState, "list": handle.getListState}
                ttl = (ttl_ms,) if ttl_ms else ()
                self._states = [(schema, get[kind](name, schema, *ttl)) for name, (kind, schema) in states.items()]

            def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
                for row in rows:
                    for schema, state in self._states:
                        values = tuple(
                            str(row["host"]) if "string" in column else int(row["a" if n % 2 == 0 else "b"])
                            for n, column in enumerate(schema.split(","))
                        )
                        if hasattr(state, "appendValue"):
                            state.appendValue(values)
                        else:
                            state.update(values)
                yield Row(page=key[0])

            def close(self) -> None:
                pass

        return (
            inputs.stream()
            .groupBy("page")
            .transformWithState(statefulProcessor=Counting(), outputStructType="page string", outputMode=mode, timeMode=time_mode)
        )

    return query


def pandas_state(schema: str) -> Query:
    def query(inputs: Inputs) -> DataFrame:
        def count(key: Any, frames: Any, state: Any) -> Any:
            import pandas as pd

            rows = sum(len(frame) for frame in frames)
            state.update(tuple(rows if "string" not in column else "x" for column in schema.split(",")))
            yield pd.DataFrame({"page": [key[0]]})

        return inputs.stream().groupBy("page").applyInPandasWithState(count, "page string", schema, "update", "NoTimeout")

    return query


def join(right_columns: str = "host, b", key: str = "page", how: str = "inner") -> Query:
    def query(inputs: Inputs) -> DataFrame:
        left = inputs.stream("left").withWatermark("time", "1 hour").selectExpr("page", "host as lhost", "a", "time")
        right = (
            inputs.stream("right")
            .withWatermark("time", "1 hour")
            .selectExpr("page as rpage", *right_columns.split(", "), "time as at")
        )
        from pyspark.sql import functions as sf

        near = f"{key} = rpage and at between time - interval 1 minute and time + interval 1 minute"
        return left.join(right, sf.expr(near), how)

    return query


def dedupe(*columns: str) -> Query:
    return lambda inputs: inputs.stream().dropDuplicates(list(columns))


def within(delay: str, *columns: str) -> Query:
    return lambda inputs: inputs.stream().withWatermark("time", delay).dropDuplicatesWithinWatermark(list(columns))


def sessions(gap: str, *aggregates: str) -> Query:
    def query(inputs: Inputs) -> DataFrame:
        from pyspark.sql import functions as sf

        rows = inputs.stream().withWatermark("time", "1 hour")
        return rows.groupBy(sf.session_window("time", gap), "page").agg(*[sf.expr(text) for text in aggregates])

    return query


def sums(*sides: str) -> Query:
    def query(inputs: Inputs) -> DataFrame:
        from pyspark.sql import functions as sf

        streams = [inputs.stream(side) for side in sides]
        every = streams[0]
        for stream in streams[1:]:
            every = every.union(stream)
        return every.groupBy("page").agg(sf.sum("a").alias("a"))

    return query


def windows(*sides: str) -> Query:
    """As `sums`, with a last batch that reads nothing, since the watermark makes Spark plan one more."""

    def query(inputs: Inputs) -> DataFrame:
        from pyspark.sql import functions as sf

        every = inputs.stream(sides[0])
        for side in sides[1:]:
            every = every.union(inputs.stream(side))
        return every.withWatermark("time", "1 second").groupBy(sf.window("time", "1 second")).agg(sf.sum("a").alias("a"))

    return query


def limited(rows: int) -> Query:
    return lambda inputs: inputs.stream().limit(rows)


@dataclass(frozen=True)
class Case:
    """One query after another.

    verdict:  what `check_upgrade` says
    error:    Spark's error class; None if it goes on
    """

    old: Query
    new: Query
    verdict: str
    error: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)
    modes: tuple[str, str] = ("update", "update")


KEY, VALUE = "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
OPERATOR = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
APPEND = ("append", "append")
ONE = {"n": ("value", "x long, y long")}
CASES = {
    "tws, same": Case(counting(ONE), counting(ONE), "compatible", None, ROCKSDB),
    "tws, columns swapped": Case(counting(ONE), counting({"n": ("value", "y long, x long")}), "silently_wrong", None, ROCKSDB),
    "tws, column renamed": Case(counting(ONE), counting({"n": ("value", "x long, z long")}), "unknown", None, ROCKSDB),
    "tws, column added": Case(counting(ONE), counting({"n": ("value", "x long, y long, z long")}), "fixable", VALUE, ROCKSDB),
    "tws, column removed": Case(counting(ONE), counting({"n": ("value", "x long")}), "fixable", VALUE, ROCKSDB),
    "tws, column retyped": Case(counting(ONE), counting({"n": ("value", "x long, y string")}), "refused", VALUE, ROCKSDB),
    "tws, variable added": Case(counting(ONE), counting({**ONE, "m": ("value", "s string")}), "compatible", None, ROCKSDB),
    "tws, variable removed": Case(counting({**ONE, "m": ("value", "s string")}), counting(ONE), "compatible", None, ROCKSDB),
    "tws, variable renamed": Case(counting(ONE), counting({"m": ONE["n"]}), "silently_wrong", None, ROCKSDB),
    "tws, time mode": Case(
        counting(ONE), counting(ONE, "processingTime"), "fixable", "STATE_STORE_INVALID_CONFIG_AFTER_RESTART", ROCKSDB
    ),
    "tws, a TTL": Case(counting(ONE), counting(ONE, "processingTime", ttl_ms=60_000), "fixable", VALUE, ROCKSDB),
    "tws, output mode": Case(
        counting(ONE),
        counting(ONE, mode="append"),
        "fixable",
        "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
        ROCKSDB,
        {},
        ("update", "append"),
    ),
    "avro, columns swapped": Case(counting(ONE), counting({"n": ("value", "y long, x long")}), "compatible", None, AVRO),
    "avro, column added": Case(counting(ONE), counting({"n": ("value", "x long, y long, z long")}), "compatible", None, AVRO),
    "avro, column removed": Case(counting(ONE), counting({"n": ("value", "x long")}), "compatible", None, AVRO),
    "avro, column renamed": Case(counting(ONE), counting({"n": ("value", "x long, z long")}), "silently_wrong", None, AVRO),
    "avro, column widened": Case(
        counting({"n": ("value", "x int")}), counting({"n": ("value", "x long")}), "compatible", None, AVRO
    ),
    "avro, column narrowed": Case(
        counting({"n": ("value", "x long")}),
        counting({"n": ("value", "x int")}),
        "refused",
        "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
        AVRO,
    ),
    "pandas, same": Case(pandas_state("n long"), pandas_state("n long"), "compatible"),
    "pandas, renamed": Case(pandas_state("n long"), pandas_state("m long"), "unknown"),
    "pandas, retyped": Case(pandas_state("n long"), pandas_state("n string"), "refused", VALUE),
    "join, same": Case(join(), join(), "compatible", None, {}, {}, APPEND),
    "join, columns swapped": Case(join("a as v, b as w"), join("b as w, a as v"), "silently_wrong", None, {}, {}, APPEND),
    "join, other key": Case(join(), join(key="lhost"), "silently_wrong", None, {}, {}, APPEND),
    "join, column added": Case(join("host"), join("host, b"), "fixable", VALUE, {}, {}, APPEND),
    "join, outer": Case(join(), join(how="left_outer"), "compatible", None, {}, {}, APPEND),
    "dedupe, same": Case(dedupe("page"), dedupe("page"), "compatible", None, {}, {}, APPEND),
    "dedupe, other column": Case(dedupe("page"), dedupe("host"), "silently_wrong", None, {}, {}, APPEND),
    "dedupe, one more": Case(dedupe("page"), dedupe("page", "host"), "refused", KEY, {}, {}, APPEND),
    "within, other delay": Case(within("1 hour", "page"), within("2 hours", "page"), "compatible", None, {}, {}, APPEND),
    "within, other column": Case(within("1 hour", "page"), within("1 hour", "host"), "silently_wrong", None, {}, {}, APPEND),
    "sessions, other gap": Case(
        sessions("10 seconds", "sum(a)"), sessions("20 seconds", "sum(a)"), "silently_wrong", None, {}, {}, APPEND
    ),
    "sessions, swapped": Case(
        sessions("10 seconds", "sum(a)", "sum(b)"),
        sessions("10 seconds", "sum(b)", "sum(a)"),
        "silently_wrong",
        None,
        {},
        {},
        APPEND,
    ),
    "sessions, one more": Case(
        sessions("10 seconds", "sum(a)"), sessions("10 seconds", "sum(a)", "sum(b)"), "fixable", VALUE, {}, {}, APPEND
    ),
    "limit, other number": Case(limited(3), limited(5), "compatible", None, {}, {}, APPEND),
    "limit gone": Case(limited(3), dedupe("page"), "refused", OPERATOR, {}, {}, APPEND),
    "one more source": Case(sums("left"), sums("left", "right"), "refused", "java.lang.AssertionError"),
    "one source less": Case(sums("left", "right"), sums("left"), "refused", "java.lang.AssertionError"),
    "sources swapped": Case(sums("left", "right"), sums("right", "left"), "refused", "java.lang.IllegalArgumentException"),
    "another folder": Case(sums("left"), sums("right"), "refused", "java.lang.IllegalArgumentException"),
    "sources swapped, nothing read last": Case(windows("left", "right"), windows("right", "left"), "silently_wrong"),
    "another folder, nothing read last": Case(windows("left"), windows("right"), "compatible"),
    "other settings": Case(
        sums("left"),
        sums("left"),
        "compatible",
        None,
        {},
        {"spark.sql.shuffle.partitions": "5", "spark.sql.streaming.stateStore.compression.codec": "zstd", **ROCKSDB},
    ),
    "no check": Case(
        sessions("10 seconds", "sum(a)", "sum(b)"), sessions("10 seconds", "sum(a)"), "silently_wrong", None, {}, NO_CHECK, APPEND
    ),
    "invalid": Case(
        sums("left"), sums("left"), "refused", "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION", {}, {}, ("update", "append")
    ),
}

QUICK = ("dedupe, one more", "one more source")
"""Without a Python worker, and without a join's many tasks."""


def run(df: DataFrame, checkpoint: Path, mode: str) -> None:
    writer = df.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(60):
        query.stop()  # processing time: it never ends by itself


def with_conf(spark: SparkSession, conf: dict[str, str], call: Callable[[], Any]) -> Any:
    before = {name: spark.conf.get(name, None) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        return call()
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def disagreements(spark: SparkSession, folder: Path, case: Case) -> list[str]:
    from pyspark.errors import PySparkException

    from spark.upgrade.test_restarts import error_of

    inputs = Inputs(spark, folder)
    inputs.feed(0)
    with_conf(spark, case.conf, lambda: run(case.old(inputs), folder / "ck", case.modes[0]))
    millpond.plan_savepoint(folder / "ck", "before").run()
    millpond.plan_restore(folder / "ck", "before", folder / "copy").run()
    before = {p: p.stat().st_mtime_ns for p in (folder / "ck").rglob("*")}
    inputs.feed(1)
    now = {**case.conf, **case.now}
    found = with_conf(
        spark,
        now,
        lambda: millpond.check_upgrade(case.new(inputs), folder / "ck", output_mode=case.modes[1], old=case.old(inputs)),
    )
    wrong = []
    if {p: p.stat().st_mtime_ns for p in (folder / "ck").rglob("*")} != before:
        wrong.append("it wrote into the checkpoint")
    error = None
    try:
        with_conf(spark, now, lambda: run(case.new(inputs), folder / "copy", case.modes[1]))
    except PySparkException as failed:
        error = error_of(failed)
    said = {finding.spark_error for finding in found.findings}
    if error != case.error:
        wrong.append(f"Spark: {error}")
    if found.verdict != case.verdict or case.error not in said | {None}:
        wrong.append(found.describe())
    return wrong


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in CASES])
def test_what_spark_does_is_what_was_said(spark: SparkSession, tmp_path: Path, name: str) -> None:
    assert disagreements(spark, tmp_path, CASES[name]) == []
