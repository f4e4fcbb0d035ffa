"""Writes golden checkpoints with real Spark, and the content that Spark finds in them.

    python tests/golden/make_golden.py [CELL …]

Each cell is a folder, and packed from there (`packing`):

    checkpoint/       as Spark left it, without .crc files
    state.json        per operator, per batch: the rows that Spark's own `statestore` reader finds, in stored form
    emitted.json      per batch: the rows that the query emitted in update mode (update cells only)
    definition.json   what the table means, where it is an aggregation
    about.json        versions and settings

Stored form as JSON: decimals are {"decimal": text}, bytes {"binary": hex}, floats that JSON lacks {"double": text}.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cells import CHANGELOG, DEFAULTS, SNAPSHOTS, STORE, stored, write_json
from packing import made, pack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import millpond
from millpond.spark import derive

BATCHES = 12
SCHEMA = "page string, host string, time timestamp, bytes long, price decimal(9,2), score double, flag boolean"


def events(batch: int) -> list[dict[str, Any]]:
    """The input of a batch: some keys in every batch, some in few, NULLs, text that isn't ASCII."""
    rows = []
    for i in range(40):
        n = batch * 40 + i
        page = ["/", "/index.html", "/ü/ß", "/a\u0000b", "", None, "/x" * 20][n * 7 % 7] if i % 3 else f"/page/{n % 60}"
        rows.append(
            {
                "page": page,
                "host": f"h{n % 13}",
                "time": f"2026-01-01T00:{batch:02d}:{i:02d}.{n:06d}Z",
                "bytes": None if n % 11 == 0 else n * 1_000_003,
                "price": f"{n}.{n % 100:02d}",
                "score": n / 7,
                "flag": n % 5 == 0,
            }
        )
    return rows


def counts(df: DataFrame) -> DataFrame:
    """Many functions, keyed by one text."""
    return df.groupBy("page").agg(
        F.count("*").alias("hits"),
        F.sum("bytes").alias("bytes"),
        F.avg("bytes").alias("mean_bytes"),
        F.sum("price").alias("revenue"),
        F.min("time").alias("first_seen"),
        F.max("time").alias("last_seen"),
        F.approx_count_distinct("host").alias("visitors"),
        F.collect_set("host").alias("hosts"),
        F.stddev("score").alias("spread"),
        F.max_by("host", "score").alias("best_host"),
        F.bool_or("flag").alias("flagged"),
        (F.max("bytes") - F.min("bytes")).alias("range"),
    )


def windows(df: DataFrame) -> DataFrame:
    """Windows that leave the state when they close."""
    return df.withWatermark("time", "2 minutes").groupBy(F.window("time", "1 minute"), "host").agg(F.count("*").alias("hits"))


def keyless(df: DataFrame) -> DataFrame:
    """One row, in partition 0."""
    return df.agg(F.count("*").alias("hits"), F.sum("bytes").alias("bytes"))


def chained(df: DataFrame) -> DataFrame:
    """Two stateful operators: distinct pairs, counted by page."""
    return df.dropDuplicates(["page", "host"]).groupBy("page").agg(F.count("*").alias("visitors"))


CELLS: dict[str, tuple[Callable[[DataFrame], DataFrame], dict[str, str]]] = {
    "counts-hdfs": (counts, {}),
    "counts-hdfs-zstd": (counts, {STORE + "compression.codec": "zstd"}),
    "counts-hdfs-snappy": (counts, {STORE + "compression.codec": "snappy"}),
    "counts-hdfs-lzf": (counts, {STORE + "compression.codec": "lzf"}),
    "counts-rocksdb-changelog": (counts, CHANGELOG),
    "counts-rocksdb-format2": (counts, {**CHANGELOG, STORE + "checkpointFormatVersion": "2"}),
    "counts-rocksdb-snapshots": (counts, SNAPSHOTS),
    "windows-hdfs": (windows, {}),
    "windows-rocksdb-changelog": (windows, CHANGELOG),
    "keyless-hdfs": (keyless, {}),
    "chained-rocksdb-changelog": (chained, CHANGELOG),
}


def write_cell(spark: SparkSession, name: str) -> None:
    """Run one query over all batches, one file each, and write what Spark says of its state."""
    make, conf = CELLS[name]
    for key, value in {**DEFAULTS, **conf}.items():
        spark.conf.set(key, value)
    target = made(name)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        for batch in range(BATCHES):
            text = "\n".join(json.dumps(row) for row in events(batch))
            Path(scratch, f"in-{batch:03d}.json").write_text(text)
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(scratch)
        df = make(source)
        definition = derive(df, table="counts")
        emitted: dict[int, list[Any]] = {}

        def keep(rows: DataFrame, batch: int) -> None:
            emitted[batch] = [stored(r) for r in rows.collect()]
            time.sleep(0.3)  # lets the maintenance thread write snapshots

        checkpoint = target / "checkpoint"
        query = (
            df.writeStream.outputMode("update")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(keep)
            .start()
        )
        query.awaitTermination()
    last = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())
    state: dict[str, dict[str, Any]] = {}
    for operator in sorted(p.name for p in (checkpoint / "state").iterdir()):
        state[operator] = {}
        for batch in sorted({0, 4, last // 2, last - 1, last}):
            rows = spark.read.format("statestore").option("operatorId", operator).option("batchId", batch)
            found = rows.load(str(checkpoint)).select("key", "value", "partition_id").collect()
            state[operator][str(batch)] = [[stored(r.key), stored(r.value), r.partition_id] for r in found]
    for crc in checkpoint.rglob(".*.crc"):
        crc.unlink()
    columns = [f.name for f in StructType(df.schema.fields).fields]
    write_json(target / "state.json", state)
    write_json(target / "emitted.json", {"columns": columns, "batches": emitted})
    write_json(target / "definition.json", definition.to_json())
    write_json(target / "about.json", {"spark": spark.version, "millpond": millpond.__version__, "batches": last + 1, "conf": conf})
    pack(name, target)


def main(names: list[str]) -> None:
    """Write the named cells, or all."""
    spark = millpond.session(
        "golden", **{"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    )
    try:
        for name in names or CELLS:
            write_cell(spark, name)
            print(name, flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
