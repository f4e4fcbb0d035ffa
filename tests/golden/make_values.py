"""Write `values/`: a pond of jobs whose values are hard to show, and `expected.json`, the answers of Spark's batch engine.

    python tests/golden/make_values.py

Jobs, for each state store provider:
    structs            keyed by a struct that is NULL or has NULLs, and by a list of such structs
    struct_windows     keyed by such a struct of dates, and a window
    struct_sessions    keyed by such a struct of dates, and a session
    unfinished         windows in append mode: a ratio that divides by zero while a window has one event; a far date
    unfinished_kept    the same with a HAVING that divides
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import millpond

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "t timestamp, x int, d date, i int, l bigint"
STRUCT = "if(x > 0, named_struct('a', d, 'b', nullif(x, 1)), NULL)"
TIMES = "if(x > 0, named_struct('a', d), NULL)"
LIST = "array(if(x > 1, named_struct('n', if(x > 2, x, NULL)), NULL))"
# t, x, d, i, l by batch.
EVENTS: list[list[tuple[str, int, str | None, int, int]]] = [
    [
        ("12:00:00", 0, "2026-03-01", 1, 100),
        ("12:00:10", 1, None, 2, 200),
        ("12:00:20", 1, "+12345-03-01", 3, 300),
        ("12:00:30", 2, None, 4, 400),
        ("12:02:00", 3, "2026-03-01", 5, 500),
    ],
    [
        ("12:00:40", 0, None, 6, 600),
        ("12:02:05", 1, None, 7, 700),
        ("12:05:00", 2, "-0044-03-15", 8, 800),
        ("12:05:30", 3, "2026-03-01", 9, 900),
        ("12:07:00", 4, "2026-03-02", 10, 1000),
    ],
]
PROVIDERS = {"hdfs": "HDFSBackedStateStoreProvider", "rocksdb": "RocksDBStateStoreProvider"}


def tables(events: DataFrame) -> dict[str, tuple[DataFrame, str, list[str]]]:
    """Name -> (query, output mode, the key's columns in key order)."""
    from pyspark.sql import functions as F

    timed = events.withWatermark("t", "10 minutes")
    struct, items = F.expr(STRUCT).alias("s"), F.expr(LIST).alias("items")
    times = F.expr(TIMES).alias("s")
    ratio = F.expr("sum(i) / (count(*) - 1)").alias("ratio")
    late = events.withWatermark("t", "2 minutes")
    windows = late.groupBy(F.window("t", "1 minute")).agg(
        F.count("*").alias("n"), ratio, F.sum("l").alias("total"), F.max("d").alias("newest")
    )
    total = F.sum("l").alias("total")
    sessions = timed.groupBy(times, F.session_window("t", "30 seconds")).agg(total)
    return {
        "structs": (events.groupBy(struct, items).agg(total, F.max("d").alias("newest")), "update", ["s", "items"]),
        "struct_windows": (timed.groupBy(times, F.window("t", "1 minute")).agg(total), "update", ["s", "window"]),
        "struct_sessions": (sessions, "append", ["s", "session_window"]),
        "unfinished": (windows, "append", ["window"]),
        "unfinished_kept": (windows.where("total / (n - 1) > 0").drop("ratio"), "append", ["window"]),
    }


def write(spark: SparkSession, pond: Path) -> None:
    """Run each job in two batches, and write the batch engine's answer for all events, in the order of its keys."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        names = [part.split()[0] for part in SCHEMA.split(", ")]
        for batch, events in enumerate(EVENTS):
            lines = [json.dumps(dict(zip(names, (f"2026-03-01T{e[0]}Z", *e[1:]), strict=True))) for e in events]
            (source / f"{batch}.json").write_text("\n".join(lines))
        raw = SCHEMA.replace("d date", "d string")
        stream = spark.readStream.schema(raw).option("maxFilesPerTrigger", 1).json(str(source))
        whole = spark.read.schema(raw).json(str(source))
        for short, provider in PROVIDERS.items():
            spark.conf.set(
                "spark.sql.streaming.stateStore.providerClass", f"org.apache.spark.sql.execution.streaming.state.{provider}"
            )
            for name, (query, mode, _) in tables(stream.withColumn("d", stream["d"].cast("date"))).items():
                running = millpond.start(
                    query, table=f"{name}_{short}", pond=pond, trigger="available-now", partitions=2, output_mode=mode, strict=True
                )
                with running as job:
                    job.wait_for_end(120)
        # For a row that divides by zero, the batch engine would give only that error.
        spark.conf.set("spark.sql.ansi.enabled", "false")
        expected: dict[str, list[Any]] = {}
        options = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ssXXX"}
        from pyspark.sql import functions as F

        for name, (query, _, order) in tables(whole.withColumn("d", whole["d"].cast("date"))).items():
            rows = query.orderBy(*order).select(F.to_json(F.struct("*"), options)).collect()
            expected[name] = [json.loads(row[0]) for row in rows]
        (pond / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    from packing import made, pack

    target = made("values")
    shutil.rmtree(target, ignore_errors=True)
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    running = millpond.session("golden values", **conf)
    try:
        write(running, target)
    finally:
        running.stop()
    for checksum in target.rglob(".*.crc"):
        checksum.unlink()
    pack("values", target)
