"""What a job pays for being queryable: a replica beside it, or a sink to Redis or PostgreSQL, in one run.

    python benchmarks/sinks.py [--rows 200000] [--changed 20000 180000] [--batches 20] [--rounds 3] [--write]

One Spark job (count and sum by key, two cores, two partitions, batches as fast as they go) runs by turns as

    plain      Spark alone, its fastest setting: the HDFS-backed provider, no sink
    ours       `millpond.start`, with its settings, and nobody who reads
    replica    the same with `millpond.open` following in a process of its own, and another that asks for random keys, steadily
    redis      foreachBatch: what changed goes to Redis as JSON, in pipelines of MSET; nothing is written to disk there
    postgres   foreachBatch: what changed goes to PostgreSQL by COPY into a temporary table, and one INSERT … ON CONFLICT DO
               UPDATE from there; commits don't wait for the disk

Fairness: all share the machine's two cores, the servers of the sinks too.  The sinks write partition by partition in Spark's own
Python workers (mapInArrow), over connections of their own; nobody reads from them, while the replica is read.  At the end of each
round it is checked that every event was counted where the rows went.  The first batches of a round don't count.  Rates are rows of
input by the time that the batches took; ratios are medians of the rounds' own.  There are two shapes of input: each batch
changes a tenth of as many keys as it has rows, or nearly as many.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers import postgres_server, redis_server
from processes import processor_seconds
from results import write_result

SIDES = ("plain", "ours", "replica", "redis", "postgres")
KEYS = 1_000_000
PARTITIONS = 2
WARM_BATCHES = 5
READS_PER_SECOND = 1000
PAIRS = 5000
"""Of one MSET."""

FOLLOWER = """
import json, sys, time
import millpond
with millpond.open(sys.argv[1], replica_dir=sys.argv[2]) as pond:
    print("ready", flush=True)
    sys.stdin.readline()
    pond.catch_up(60)
    with pond.cut("counts") as cut:
        table = cut["counts"]
        rows = table.to_arrow()
        told = {"batch": cut.batch, "rows": rows.num_rows, "n": sum(rows["n"].to_pylist())}
    print(json.dumps({**told, **pond.statistics()["counts"]}, default=str), flush=True)
"""
READER = """
import random, sys, time
import millpond
pause, keys, asked = 1 / float(sys.argv[3]), int(sys.argv[4]), 0
with millpond.open(sys.argv[1], replica_dir=sys.argv[2], follow=False) as pond:
    table, due = pond["counts"], time.monotonic()
    while True:
        assert table.get(key=random.randrange(keys)).batch >= 0
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))
"""


def counted(spark: Any, rows: int, changed: int) -> Any:
    """Counts and sums by key: each batch has `rows` rows, which are spread over about `changed` of a million keys."""
    from pyspark.sql import functions as F

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    # Each batch has a stretch of the keys; a multiplication by an odd number mixes them.
    place = (F.col("value") / rows).cast("long") * changed + F.col("value") % changed
    key = (place * 7919) % KEYS
    return source.groupBy(key.alias("key")).agg(F.count("*").alias("n"), F.sum("value").alias("total"))


# ---------------------------------------------------------------- sinks


def to_redis(port: int) -> Any:
    """A function of foreachBatch."""

    def write(batches: Any) -> Iterator[Any]:
        import redis

        with redis.Redis(port=port) as server:
            for batch in batches:
                columns = [column.to_pylist() for column in batch.columns]
                pairs = [(f"counts:{k}", f'{{"n":{n},"total":{total}}}') for k, n, total in zip(*columns, strict=True)]
                pipe = server.pipeline(transaction=False)
                for first in range(0, len(pairs), PAIRS):
                    pipe.mset(dict(pairs[first : first + PAIRS]))
                pipe.execute()
        return iter(())

    return lambda batch, _: batch.mapInArrow(write, "done long").collect()


def to_postgres(address: str) -> Any:
    """A function of foreachBatch."""

    def write(batches: Any) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(address) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE changed (LIKE counts) ON COMMIT DROP")
            with cursor.copy("COPY changed FROM STDIN") as copy:
                for batch in batches:
                    columns = [column.to_pylist() for column in batch.columns]
                    copy.write("".join([f"{k}\t{n}\t{total}\n" for k, n, total in zip(*columns, strict=True)]))
            cursor.execute(
                "INSERT INTO counts SELECT * FROM changed ON CONFLICT (key) DO UPDATE SET n = EXCLUDED.n, total = EXCLUDED.total"
            )
        return iter(())

    return lambda batch, _: batch.mapInArrow(write, "done long").collect()


# ---------------------------------------------------------------- rounds


class Rounds:
    """Runs the job as one of the sides."""

    def __init__(self, spark: Any, rows: int, changed: int, batches: int, redis_port: int, postgres: str) -> None:
        self.spark = spark
        self.rows = rows
        self.changed = changed
        self.batches = batches
        self.redis_port = redis_port
        self.postgres = postgres
        self.jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())

    def run(self, side: str) -> dict[str, float]:
        """One round."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.ExitStack() as opened:
            self._empty(side)
            query = self._start(side, folder)
            opened.callback(query.stop)
            self._wait(query, WARM_BATCHES)
            beside = self._beside(folder, opened) if side == "replica" else {}
            first = self._newest(query) + 1
            before = {name: processor_seconds(process.pid) for name, process in beside.items()}
            spark_before = processor_seconds(self.jvm, children=True)
            self._wait(query, first + self.batches)
            used = processor_seconds(self.jvm, children=True) - spark_before
            facts: dict[str, float] = {"spark_cpu_seconds": round(used, 2)}
            for name, process in beside.items():
                facts[f"{name}_cpu_seconds"] = round(processor_seconds(process.pid) - before[name], 2)
            measured = [p for p in query.recentProgress if first <= p["batchId"] < first + self.batches]
            query.stop()
            seconds = sum(p["durationMs"]["triggerExecution"] for p in measured) / 1000
            facts["rows_per_second"] = round(sum(p["numInputRows"] for p in measured) / seconds)
            facts["batch_ms"] = round(1000 * seconds / len(measured))
            facts["changed_rows_a_batch"] = round(statistics.mean(p["stateOperators"][0]["numRowsUpdated"] for p in measured))
            self._check(side, folder, beside)
        return facts

    def _start(self, side: str, folder: str) -> Any:
        import millpond

        df = counted(self.spark, self.rows, self.changed)
        if side in ("ours", "replica"):
            return millpond.start(df, table="counts", pond=f"{folder}/pond", partitions=PARTITIONS).query
        writer = df.writeStream.outputMode("update").option("checkpointLocation", f"{folder}/checkpoint")
        if side == "plain":
            return writer.format("noop").start()
        return writer.foreachBatch(to_redis(self.redis_port) if side == "redis" else to_postgres(self.postgres)).start()

    def _beside(self, folder: str, opened: contextlib.ExitStack) -> dict[str, subprocess.Popen[str]]:
        """Who follows, and who reads."""
        places = [f"{folder}/pond", f"{folder}/home"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        follower = subprocess.Popen([sys.executable, "-c", FOLLOWER, *places], **pipes)  # type: ignore[call-overload]
        opened.callback(_end, follower)
        assert follower.stdout.readline() == "ready\n"
        command = [sys.executable, "-c", READER, *places, str(READS_PER_SECOND), str(KEYS)]
        reader = subprocess.Popen(command, text=True)
        opened.callback(_end, reader)
        return {"follower": follower, "reader": reader}

    def _newest(self, query: Any) -> int:
        progress = query.lastProgress
        return -1 if progress is None else int(progress["batchId"])

    def _wait(self, query: Any, batch: int) -> None:
        while self._newest(query) < batch:
            if query.exception() is not None:
                raise query.exception()
            time.sleep(0.02)

    def _empty(self, side: str) -> None:
        if side == "redis":
            import redis

            redis.Redis(port=self.redis_port).flushall()
        elif side == "postgres":
            import psycopg

            with psycopg.connect(self.postgres, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS counts")
                connection.execute("CREATE TABLE counts (key bigint PRIMARY KEY, n bigint, total bigint)")

    def _check(self, side: str, folder: str, beside: dict[str, subprocess.Popen[str]]) -> None:
        """Whether all that was committed is there: as many events were counted as the batches had."""
        if side in ("plain", "ours"):
            return
        place = f"{folder}/pond/jobs/counts/checkpoint" if side == "replica" else f"{folder}/checkpoint"
        committed = max(int(path.name) for path in Path(place, "commits").iterdir() if path.name.isdigit())
        counted_events = 0
        if side == "replica":
            assert beside["reader"].poll() is None
            printed, _ = beside["follower"].communicate("\n", timeout=120)
            found = json.loads(printed)
            assert found["batch"] == committed, found
            counted_events = found["n"]
        elif side == "redis":
            import redis

            server = redis.Redis(port=self.redis_port)
            for keys in _parts(list(server.scan_iter(count=10_000)), 10_000):
                counted_events += sum(json.loads(row)["n"] for row in server.mget(keys))
        else:
            import psycopg

            with psycopg.connect(self.postgres) as connection:
                counted_events = int(connection.execute("SELECT sum(n) FROM counts").fetchone()[0])
        # A sink may have a batch that isn't committed any more when the query is stopped.
        assert counted_events in (self.rows * (committed + 1), self.rows * (committed + 2)), (side, counted_events, committed)


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def measure(spark: Any, rows: int, changed: int, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """All sides by turns, for one shape of input: the rounds of each side."""
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    with redis_server() as (redis_port, _), postgres_server() as (postgres, _):
        runner = Rounds(spark, rows, changed, options.batches, redis_port, postgres)
        runner.run("plain")  # the JVM compiles
        for _ in range(options.rounds):
            for side in options.sides:
                rounds[side].append(runner.run(side))
                print(changed, side, rounds[side][-1], file=sys.stderr, flush=True)
    return rounds


def summary(rows: int, rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """What the rounds of one shape say."""

    def ratio(side: str) -> float:
        pairs = zip(rounds["replica"], rounds[side], strict=True)
        return round(statistics.median(a["rows_per_second"] / b["rows_per_second"] for a, b in pairs), 2)

    share = [r["follower_cpu_seconds"] / r["spark_cpu_seconds"] for r in rounds["replica"]]
    return {
        "rows_a_batch": rows,
        "changed_rows_a_batch": round(rounds["replica"][0]["changed_rows_a_batch"]),
        "median": {side: {k: statistics.median(r[k] for r in many) for k in many[0]} for side, many in rounds.items()},
        "replica_to_others_in_rows_per_second": {side: ratio(side) for side in rounds if side != "replica"},
        "follower_to_spark_in_cpu_seconds": round(statistics.median(share), 3),
    }


def main() -> None:
    """Two shapes of input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="of a batch")
    parser.add_argument("--changed", type=int, nargs="+", default=[20_000, 180_000], help="keys that a batch changes")
    parser.add_argument("--batches", type=int, default=20, help="that count in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=list(SIDES))
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/sinks.json")
    options = parser.parse_args()
    import millpond

    spark = millpond.session("sinks", **{"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "3g"})
    spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        rounds = {str(changed): measure(spark, options.rows, changed, options) for changed in options.changed}
    finally:
        spark.stop()
    result = {
        "what": "a job alone, with a replica and a reader, with a sink to Redis, with a sink to PostgreSQL",
        "size": {
            "keys": KEYS,
            "batches": options.batches,
            "reads_per_second": READS_PER_SECOND,
        },
        "shapes": [summary(options.rows, each) for each in rounds.values()],
    }
    print(json.dumps(result, indent=1))
    if options.write:
        write_result("sinks", result, rounds)


if __name__ == "__main__":
    main()
