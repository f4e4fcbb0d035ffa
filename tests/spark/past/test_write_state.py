"""A job that begins with its past has the state of the job that read everything as a stream, to the row, and emits the same."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from live_jobs.event_files import PROVIDERS
from live_jobs.past_queries import DAY_MS, QUERIES, SCHEMA, Expiring, aggregate, dedupe, rows, transform, windows
from millpond.errors import MillpondError
from spark_files.golden import SCRIPTS, load_script
from suite.sizes import a_few
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(SCRIPTS))  # where the script finds `cells`
_GOLDEN = load_script("make_operators")
PAST_FILES, FILES, EACH = 3, 6, 60
Emitted = dict[int, list[str]]


class Jobs:
    """The job with a past and the job without, over the same files; one file in each batch."""

    def __init__(self, spark: SparkSession, folder: Path, name: str, seed: int = 1, **conf: str) -> None:
        self.spark = spark.newSession()
        for key, value in {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC", **conf}.items():
            self.spark.conf.set(key, value)
        self.query, self.mode = QUERIES[name]
        self.folder = folder
        self.inputs = folder / "in"
        self.inputs.mkdir()
        self._rows = rows(seed, EACH * FILES)

    def feed(self, first: int, last: int) -> None:
        each = len(self._rows) // FILES
        for number in range(first, last):
            end = None if number == FILES - 1 else (number + 1) * each
            write_event_file(self.inputs, number, self._rows[number * each : end])

    def source(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.inputs))

    def past(self) -> DataFrame:
        return self.spark.read.schema(SCHEMA).json(str(self.inputs))

    def plan(self, **options: Any) -> Any:
        given = {"past": self.past(), "source": self.source(), "output_mode": self.mode, "partitions": 2, **options}
        return millpond.plan_write_state(self.folder / "new", self.query, **given)

    def run(self, checkpoint: str) -> Emitted:
        """Read what is there; returns what each batch emitted."""
        emitted: Emitted = {}
        writer = self.query(self.source()).writeStream.outputMode(self.mode).trigger(availableNow=True)
        writer = writer.foreachBatch(lambda df, batch: emitted.update({batch: sorted(map(repr, df.collect()))}))
        writer.option("checkpointLocation", str(self.folder / checkpoint)).start().awaitTermination()
        return emitted

    def state(self, checkpoint: str) -> dict[str, list[str]]:
        """Every store as Spark's own reader shows it."""
        place = self.folder / checkpoint
        found = _GOLDEN.read_batch(self.spark, place, _GOLDEN.last_batch(place))
        return {store: sorted(map(repr, content)) for store, content in found.items()}

    def arrow(self, checkpoint: str) -> dict[str, list[str]]:
        """Every table as Millpond reads it."""
        with millpond.open(self.folder / checkpoint, replica_dir="memory://", wait_seconds=60) as pond:
            names = pond.tables()
        return {
            name.partition(".")[2]: sorted(map(repr, millpond.read_arrow(self.folder / checkpoint, name).to_pylist()))
            for name in names
        }


def check_equal(jobs: Jobs, **options: Any) -> None:
    """Write the state of the first files; then both jobs read the rest."""
    jobs.feed(0, PAST_FILES)
    written = jobs.plan(**options).run()
    jobs.run("undisturbed")
    assert jobs.state("new") == jobs.state("undisturbed")
    assert any(jobs.state("new").values()), "a state without rows shows nothing"
    assert [path.name for path in jobs.folder.glob("new*")] == ["new"]
    jobs.feed(PAST_FILES, FILES)
    after, expected = jobs.run("new"), jobs.run("undisturbed")
    assert min(after) == written.batch + 1
    assert list(after.values()) == list(expected.values())
    assert jobs.state("new") == jobs.state("undisturbed")
    assert jobs.arrow("new") == jobs.arrow("undisturbed")


def test_a_job_begins_with_its_past(spark: SparkSession, tmp_path: Path) -> None:
    check_equal(Jobs(spark, tmp_path, "windows", **PROVIDERS["hdfs"]))


LONG = [(name, provider) for name in QUERIES for provider in PROVIDERS if not (name.startswith("transform") and provider == "hdfs")]


@pytest.mark.long
@pytest.mark.parametrize(("name", "provider"), a_few(LONG, 0, long=7))
def test_every_operator_begins_with_its_past(spark: SparkSession, tmp_path: Path, name: str, provider: str) -> None:
    check_equal(Jobs(spark, tmp_path, name, seed=LONG.index((name, provider)), **PROVIDERS[provider]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("aggregate", {"batches": 3}),
        ("windows", {"batches": 3, "order_by": "t"}),
        ("transform", {"batches": 4}),
        ("aggregate", {"batches": 12}),
    ],
)
def test_a_past_in_several_batches(spark: SparkSession, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    jobs = Jobs(spark, tmp_path, name, seed=7, **PROVIDERS["changelog"])
    check_equal(jobs, **options)
    # Maintenance had nothing to write into the folder that was removed: Spark itself writes the snapshot that new families need.
    assert not [path for path in (tmp_path / "new").rglob("*.zip") if 1 < int(path.stem) <= options["batches"]]


@pytest.mark.long
@pytest.mark.parametrize("name", ["aggregate", "windows"])
def test_a_past_under_other_formats(spark: SparkSession, tmp_path: Path, name: str) -> None:
    formats = {
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.offsetLog.formatVersion": "2",
        "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
    }
    check_equal(Jobs(spark, tmp_path, name, seed=8, **PROVIDERS["changelog"], **formats))


@pytest.mark.long
def test_a_ttl_counts_from_the_time_of_writing(spark: SparkSession, tmp_path: Path) -> None:
    jobs = Jobs(spark, tmp_path, "transform", seed=9, **PROVIDERS["changelog"])
    jobs.query = transform(Expiring, "processingTime")
    jobs.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    jobs.feed(0, PAST_FILES)
    plan = jobs.plan()
    assert "TTL count from the time when the state is written" in plan.describe()
    began = time.time() * 1000
    plan.run()
    ended = time.time() * 1000

    def shown(checkpoint: str) -> list[tuple[Any, ...]]:
        reader = jobs.spark.read.format("statestore").option("stateVarName", "total")
        return [
            (row.key[0], row.value["value"]["n"], row.value["ttlExpirationMs"])
            for row in reader.load(str(tmp_path / checkpoint)).collect()
        ]

    assert all(began <= expires - DAY_MS <= ended for _, _, expires in shown("new"))
    jobs.run("undisturbed")
    for files in ((PAST_FILES, PAST_FILES), (PAST_FILES, FILES)):
        jobs.feed(*files)
        jobs.run("new")
        jobs.run("undisturbed")
        assert {row[:2] for row in shown("new")} == {row[:2] for row in shown("undisturbed")}


@pytest.mark.long
def test_columns_that_are_never_null_share_their_counts(spark: SparkSession, tmp_path: Path) -> None:
    """count(v) of such a column is count(*), so both have one buffer; a stream of files may have NULL everywhere."""
    from pyspark.sql import functions as F

    jobs = Jobs(spark, tmp_path, "keyless", seed=10, **PROVIDERS["hdfs"])
    jobs.query = lambda events: events.groupBy("k").agg(F.count("*").alias("n"), F.count("v").alias("m"), F.max("v").alias("v"))
    source, past = jobs.source, jobs.past
    jobs.source = lambda: source().withColumn("v", F.coalesce("v", F.lit(0)))  # type: ignore[method-assign]
    jobs.past = lambda: past().withColumn("v", F.coalesce("v", F.lit(0)))  # type: ignore[method-assign]
    assert not jobs.source().schema["v"].nullable
    check_equal(jobs)


@pytest.mark.long
def test_the_files_that_the_past_has_are_not_read_again(spark: SparkSession, tmp_path: Path) -> None:
    jobs = Jobs(spark, tmp_path, "aggregate", seed=11)
    jobs.feed(0, PAST_FILES)
    elsewhere = str(tmp_path / "past.parquet")
    jobs.past().coalesce(1).write.parquet(elsewhere)
    past = jobs.spark.read.parquet(elsewhere)
    everything = jobs.plan(past=past)
    assert everything.beginning.offset is None
    assert "3 files (000000.json, 000001.json, 000002.json) and new ones" in everything.describe()
    two = jobs.plan(past=past, covered=[str(jobs.inputs / "00000[0-1].json")])
    assert "1 files (000002.json) and new ones; the past has 2 of the 3" in two.describe()
    all_of_it = jobs.plan(past=past, covered=[f"file://{jobs.inputs}/*"])
    assert "goes on     with new files; the past has 3 of the 3" in all_of_it.describe()
    with pytest.raises(MillpondError, match="no file") as wrong:
        jobs.plan(past=past, covered=["elsewhere/*.json"])
    assert wrong.value.condition == "INVALID_REQUEST"
    everything.run()
    once = {row["k"]: row["count"] for row in past.groupBy("k").count().collect()}
    jobs.run("new")
    counted: dict[Any, int] = {}
    for row in jobs.spark.read.format("statestore").load(str(tmp_path / "new")).collect():
        counted[row.key[0]] = counted.get(row.key[0], 0) + row.value[0]
    assert counted == {key: 2 * n for key, n in once.items()}


@pytest.mark.long
def test_old_files_that_the_stream_never_reads_are_named(spark: SparkSession, tmp_path: Path) -> None:
    jobs = Jobs(spark, tmp_path, "aggregate", seed=12)
    jobs.feed(0, PAST_FILES)
    week = dt.timedelta(days=8).total_seconds()
    oldest = jobs.inputs / "000000.json"
    os.utime(oldest, (oldest.stat().st_mtime - week,) * 2)
    past = jobs.spark.read.schema(SCHEMA).json([str(jobs.inputs / f"00000{n}.json") for n in (1, 2)])
    plan = jobs.plan(past=past)
    assert f"never read  file://{oldest}: older" in plan.describe()
    plan.run()
    before = jobs.state("new")
    jobs.run("new")
    assert jobs.state("new") == before


@pytest.mark.long
def test_a_job_of_a_pond_begins_with_its_past(spark: SparkSession, tmp_path: Path) -> None:
    jobs = Jobs(spark, tmp_path, "aggregate", seed=13)
    jobs.feed(0, PAST_FILES)
    pond = tmp_path / "pond"
    plan = millpond.plan_write_state(
        pond / "jobs" / "views" / "checkpoint", aggregate, past=jobs.past(), source=jobs.source(), partitions=2
    )
    plan.run()
    jobs.feed(PAST_FILES, FILES)
    with millpond.start(aggregate(jobs.source()), table="views", pond=pond, trigger="available-now") as job:
        job.query.awaitTermination()
    expected = {(row["k"], row["item"]): row["n"] for row in aggregate(jobs.past()).collect()}
    with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
        assert {(row["k"], row["item"]): row["n"] for row in opened["views"].scan()} == expected


@pytest.mark.long
def test_a_file_sink_gets_the_batches_of_the_past_too(spark: SparkSession, tmp_path: Path) -> None:
    """Its log is compacted at the tenth batch, which fails where an earlier one is missing."""
    jobs = Jobs(spark, tmp_path, "dedupe", seed=14)
    jobs.feed(0, PAST_FILES)
    emitted = tmp_path / "emitted"

    def sink(writer: Any) -> Any:
        return writer.format("parquet").option("path", str(emitted))

    jobs.plan(sink=sink).run()
    for number in range(12):
        write_event_file(jobs.inputs, 100 + number, rows(100 + number, 20))
    writer = sink(jobs.query(jobs.source()).writeStream.outputMode("append").trigger(availableNow=True))
    writer.option("checkpointLocation", str(tmp_path / "new")).start().awaitTermination()
    assert list((emitted / "_spark_metadata").glob("9.compact"))
    found = jobs.spark.read.parquet(str(emitted)).select("k", "v").collect()
    assert sorted(map(repr, found)) == sorted(map(repr, jobs.past().select("k", "v").distinct().collect()))


@pytest.mark.long
def test_a_source_with_a_clock_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's rate source counts from the time when its source was made."""
    own = spark.newSession()
    source = own.readStream.format("rate").option("rowsPerSecond", 50).load()
    past = own.createDataFrame([(dt.datetime(2026, 1, 1), -n) for n in range(1, 6)], source.schema)
    query = lambda events: events.groupBy((events.value < 0).alias("old")).count()  # noqa: E731
    millpond.plan_write_state(tmp_path / "new", query, past=past, source=source, partitions=2).run()
    running = (
        query(source).writeStream.format("noop").outputMode("update").option("checkpointLocation", str(tmp_path / "new")).start()
    )

    def state() -> dict[Any, int]:
        found = own.read.format("statestore").load(str(tmp_path / "new")).collect()
        read = {row.key[0]: row.value[0] for row in found}
        return read if read.get(False) else {}

    read = wait_until(state, "a new event in the state", seconds=120, unless=running.exception)
    running.stop()
    assert read[True] == 5


@pytest.mark.long
def test_what_would_differ_is_listed(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    jobs = Jobs(spark, tmp_path, "aggregate")
    jobs.feed(0, 1)

    def differences(query: Callable[[DataFrame], DataFrame], mode: str = "update", **options: Any) -> str:
        jobs.query, jobs.mode = query, mode
        return "\n".join(jobs.plan(**options).differences)

    for name in ("aggregate", "keyless", "dedupe"):
        assert differences(*QUERIES[name]) == "", name
    assert differences(windows).startswith("Late rows: a stream drops rows behind the watermark (t, 10 seconds)")
    assert "Closed windows" in differences(windows, "append")
    ordered = differences(lambda e: e.groupBy("k").agg(F.first("v"), F.collect_list("v"), F.sum(F.col("v") / 3), F.count("*")))
    assert (
        ordered == "Order of rows: collect_list, first, sum may give another value, or other last digits, in another order of rows."
    )
    assert "dropDuplicatesWithinWatermark" in differences(*QUERIES["dedupe-within"])
    assert "applyInPandasWithState calls your function once" in differences(*QUERIES["apply"])
    assert "transformWithState calls your function once" in differences(*QUERIES["transform"])
    assert "Timers:" in differences(*QUERIES["transform-timers"])
    assert "TTL count from" in differences(transform(Expiring, "processingTime"))
    timed = differences(lambda e: e.where(F.col("t") < F.current_timestamp()).where(F.rand() < 2).groupBy("k").count())
    assert "current_timestamp() has its value of when the state is written" in timed
    assert "aren't deterministic" in timed


def test_what_can_not_be_right_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    jobs = Jobs(spark, tmp_path, "aggregate")
    jobs.feed(0, 1)
    past, source = jobs.past(), jobs.source()

    def refused(says: str, query: Callable[[Any], Any] = aggregate, condition: str = "INVALID_REQUEST", **options: Any) -> None:
        jobs.query, jobs.mode = query, options.pop("output_mode", "update")
        with pytest.raises(MillpondError, match=says) as wrong:
            jobs.plan(**options)
        assert wrong.value.condition == condition

    refused("no column 'flag'", past=past.drop("flag"))
    refused("a column 'more'", past=past.withColumn("more", F.lit(1)))
    refused("'v' is bigint in the past, and int in the source", past=past.withColumn("v", F.col("v").cast("long")))
    refused("two columns", past=past.select("*", F.lit(1).alias("V")))
    refused("the past is a stream", past=source)
    refused("isn't a stream", source=past)
    refused("state or a watermark of its own", source=source.withWatermark("t", "1 minute"))
    refused("state or a watermark of its own", source=source.dropDuplicates(["k"]))
    refused("keeps no state", lambda events: events.select("k"))
    refused("The query ends with ZeroDivisionError", lambda events: 1 / 0)
    refused("returned NoneType", lambda events: None)
    refused("returned a batch DataFrame", lambda events: past)
    refused("reads 2 streams", lambda events: events.join(source.withColumnRenamed("v", "w"), "k"), "UNSUPPORTED")
    refused("in append mode", output_mode="append")
    refused("output_mode is 'all'", output_mode="all")
    refused("partitions is 0", partitions=0)
    refused("batches must come in the order of time", windows, batches=2)
    refused("divides the past into batches", order_by="t")
    refused("has no column 'x'", batches=2, order_by="x")
    refused("only Kafka takes offsets", offsets="{}")
    queries = iter([aggregate, dedupe])
    refused("over the past the query has the state", lambda events: next(queries)(events))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "x").touch()
    refused("isn't empty", condition="TARGET_NOT_EMPTY")


@pytest.mark.long
def test_a_past_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    jobs = Jobs(spark, tmp_path, "aggregate")
    jobs.feed(0, 1)
    broken = jobs.past().withColumn(
        "v", F.when(F.col("v") > 0, F.raise_error(F.lit("no such value"))).otherwise(F.col("v")).cast("int")
    )
    failing = lambda events: aggregate(events.where(F.raise_error(F.lit("not this")).isNull()))  # noqa: E731
    for options, says in (({"past": broken}, "no such value"), ({}, "not this")):
        jobs.query = failing if not options else aggregate
        with pytest.raises(MillpondError, match=says) as wrong:
            jobs.plan(**options).run()
        assert wrong.value.condition == "JOB_FAILED"
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("new") and any(path.rglob("*"))]


PROGRAM = """
from beside import SCHEMA
from pyspark.sql import functions as F


def source(spark):
    return spark.readStream.schema(SCHEMA).json({inputs!r})


def query(events):
    return events.groupBy(second("v").alias("s")).agg(F.count("*").alias("n"))


@F.udf("int")
def second(v):
    return v % 2


if __name__ == "__main__":
    raise SystemExit("not run")
"""


def program(folder: Path) -> list[str]:
    """The command for a job in this folder, whose past has the numbers from 0 to 9."""
    (folder / "in").mkdir()
    (folder / "beside.py").write_text('SCHEMA = "v int"\n')
    (folder / "job.py").write_text(PROGRAM.format(inputs=str(folder / "in")))
    command = [sys.executable, "-m", "millpond.cli", "write-state", str(folder / "new"), str(folder / "job.py")]
    session = ["--conf", "spark.master=local[1]", "--conf", "spark.ui.enabled=false"]
    return [*command, "--from", str(folder / "past.parquet"), "--partitions", "2", *session]


def counted(spark: SparkSession, checkpoint: Path) -> dict[int, int]:
    return {row.key[0]: row.value[0] for row in spark.read.format("statestore").load(str(checkpoint)).collect()}


@pytest.mark.long
def test_the_command_writes_a_state(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).selectExpr("cast(id as int) v").write.parquet(str(tmp_path / "past.parquet"))
    command = program(tmp_path)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=240)

    shown = run()
    assert shown.returncode == 0, shown.stderr
    assert "nothing is written yet" in shown.stderr
    assert "goes on     with new files" in shown.stderr
    assert not (tmp_path / "new").exists()
    made = run("--yes")
    assert made.stdout == f"file://{tmp_path}/new\n", made.stderr
    assert counted(spark, tmp_path / "new") == {0: 5, 1: 5}
    again = run("--yes")
    assert (again.returncode, "TARGET_NOT_EMPTY" in again.stderr) == (2, True)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_killed_command_leaves_a_whole_state_or_none(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    spark.range(10).selectExpr("cast(id as int) v").write.parquet(str(tmp_path / "past.parquet"))
    command = program(tmp_path)
    running = subprocess.Popen([*command, "--yes"], start_new_session=True)
    wait_until(
        lambda: list(tmp_path.glob("new*")), "the begin of a new state", seconds=120, unless=lambda: running.poll() is not None
    )
    time.sleep(random.Random(seed).uniform(0, 6))
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(60)
    if (tmp_path / "new" / "metadata").exists():
        assert counted(spark, tmp_path / "new") == {0: 5, 1: 5}
    else:
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        assert subprocess.run([*command, "--yes"], timeout=240).returncode == 0
        assert counted(spark, tmp_path / "new") == {0: 5, 1: 5}
