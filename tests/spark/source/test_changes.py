"""The stream of a table's changes, against those that a replica with history shows of the same batches."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import millpond
from inputs.event_file import write_event_file
from live_jobs.event_files import PROVIDERS
from millpond.storage.names import path_of
from suite.sizes import a_few

SCHEMA = "time timestamp, page string, v int"


def windows(events):
    from pyspark.sql import functions as F

    counted = events.withWatermark("time", "10 minutes").groupBy(F.window("time", "5 minutes"), "page")
    return counted.agg(F.count("*").alias("hits"), F.avg("v").alias("mean"), F.collect_list("v").alias("all"))


def totals(events):
    """HAVING hides a group and shows it again."""
    from pyspark.sql import functions as F

    found = events.groupBy("page").agg(F.sum("v").alias("total"), F.max("v").alias("most"))
    return found.where(F.col("total") % 3 != 0)


QUERIES = {"windows": windows, "totals": totals}


def feed(folder: Path, number: int, random_: random.Random) -> None:
    rows = [
        {
            "time": f"2026-03-01T12:{min(59, 4 * number + random_.randrange(6)):02d}:00Z",
            "page": f"/{random_.randrange(9)}",
            "v": random_.randrange(5),
        }
        for _ in range(random_.randrange(1, 25))
    ]
    write_event_file(folder, number, rows)


def run(spark, pond: Path, folder: Path, **options: Any) -> list[tuple[int, list[dict[str, Any]]]]:
    """(micro-batch, its changes) of the stream until it has read all that is there."""
    found: list[tuple[int, list[dict[str, Any]]]] = []
    changes = millpond.read_changes(spark, pond, "t", **options)
    query = (
        changes.writeStream.option("checkpointLocation", str(folder))
        .foreachBatch(lambda frame, batch: found.append((batch, frame.toArrow().to_pylist())))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def text(values: dict[str, Any] | None) -> str:
    """Values in a form that compares: two zones may have one name."""
    return json.dumps(values, sort_keys=True, default=lambda time: time.isoformat())


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    key = {name: value for name, value in row.items() if not name.startswith("_")}
    return row["_batch"], row["_kind"], text(key), text(row["_old"]), text(row["_new"])


def of_replica(table, change) -> tuple[Any, ...]:
    names = list(table.key_order)
    key = {name: change.row[name] for name in names}
    sides = [None if side is None else {n: v for n, v in side.items() if n not in names} for side in (change.old, change.new)]
    return change.batch, change.kind, text(key), text(sides[0]), text(sides[1])


@pytest.mark.parametrize(
    ("query", "provider"),
    a_few([(q, p) for q in QUERIES for p in PROVIDERS], 0, long=1),
)
def test_a_stream_has_the_changes_of_a_replica(spark, tmp_path, monkeypatch, query, provider):
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    random_, source, pond = random.Random(f"{query}{provider}"), tmp_path / "in", tmp_path / "pond"
    source.mkdir()
    feed(source, 0, random_)
    kept = {name: spark.conf.get(name) for name in PROVIDERS[provider]}
    for name, value in PROVIDERS[provider].items():
        spark.conf.set(name, value)
    try:
        events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
        job = millpond.start(QUERIES[query](events), table="t", pond=str(pond), partitions=2)
    finally:
        for name, value in kept.items():
            spark.conf.set(name, value)
    try:
        job.query.processAllAvailable()
        with millpond.open(str(pond), retention=millpond.Retention(history_batches=None)) as opened:
            table = opened["t"]
            begun = table.scan(bounds=millpond.Bounds(wait_seconds=60)).batch
            ((_, first),) = run(spark, pond, tmp_path / "ck")
            at = first[0]["_batch"] if first else begun
            assert {(row["_kind"], row["_batch"], repr(row["_old"])) for row in first} <= {("insert", at, "None")}
            assert len(first) == len(table.live().at(batch=at).scan())
            for number in range(1, 9):
                feed(source, number, random_)
                job.query.processAllAvailable()
            newest = max(int(f.name) for f in (Path(path_of(job.checkpoint)) / "commits").glob("[0-9]*"))
            bounds = millpond.Bounds(min_batch=newest, wait_seconds=60)
            expected = sorted(of_replica(table, change) for change in table.changes(at, bounds=bounds))
            batches = run(spark, pond, tmp_path / "ck", maxBatchesPerTrigger=3)
            found = [plain(row) for _, rows in batches for row in rows]
            assert sorted(found) == expected
            assert {"insert", "update", "expire" if query == "windows" else "delete"} <= {kind for _, kind, *_ in found}
            assert len(batches) == -(-(newest - at) // 3)
            assert all(len({row["_batch"] for row in rows}) <= 3 for _, rows in batches)

            # Killed before its last commit, the query reads the same rows again.
            number, rows = batches[-1]
            for name in (f"{number}", f".{number}.crc"):
                (tmp_path / "ck" / "commits" / name).unlink()
            ((again, same),) = run(spark, pond, tmp_path / "ck", maxBatchesPerTrigger=1)
            assert (again, sorted(map(plain, same))) == (number, sorted(map(plain, rows)))
    finally:
        job.stop()
    refused(spark, tmp_path, pond, Path(path_of(job.checkpoint)))


def refused(spark, tmp_path: Path, pond: Path, checkpoint: Path) -> None:
    """Another run of the job, and files that are gone, end the query; nothing is skipped."""
    from pyspark.errors import StreamingQueryException

    whole = tmp_path / "whole"
    shutil.copytree(checkpoint, whole)
    commit = max((checkpoint / "commits").glob("[0-9]*"), key=lambda f: int(f.name))
    commit.unlink()
    with pytest.raises(StreamingQueryException, match="JOB_REPLACED"):
        run(spark, pond, tmp_path / "ck")
    commit.write_bytes((whole / "commits" / commit.name).read_bytes())
    assert run(spark, pond, tmp_path / "ck") == []
    offset = tmp_path / "old"
    assert len(run(spark, pond, offset, startingBatch="latest")) == 1
    for number in range(int(commit.name)):
        for folder in ("commits", "offsets"):
            (checkpoint / folder / f"{number}").unlink()
    # A query that stands at a batch that Spark has forgotten.
    (tmp_path / "ck" / "commits").rename(tmp_path / "commits")
    (tmp_path / "ck" / "commits").mkdir()
    for name in ("0", ".0.crc"):
        shutil.copy(tmp_path / "commits" / name, tmp_path / "ck" / "commits" / name)
    for file in (tmp_path / "ck" / "offsets").iterdir():
        if file.name.strip(".").split(".")[0] not in ("0",):
            file.unlink()
    with pytest.raises(StreamingQueryException, match="HISTORY_GONE"):
        run(spark, pond, tmp_path / "ck")


def test_a_stream_says_what_it_needs(spark, tmp_path):
    from pyspark.errors import PySparkException

    for options, said in (
        ({}, "INVALID_REQUEST"),
        ({"pond": tmp_path}, "INVALID_REQUEST"),
        ({"pond": tmp_path, "table": "t"}, "NO_CHECKPOINT"),
        ({"pond": tmp_path, "table": "t", "tasks": "0"}, "tasks"),
        ({"pond": tmp_path, "table": "t", "speed": "1"}, "no option 'speed'"),
    ):
        with pytest.raises(PySparkException, match=said):
            spark.readStream.format("millpond").options(**options).load()
