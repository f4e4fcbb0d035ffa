"""Starting, publishing and defining: what the pond has then, what a checkpoint keeps, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import millpond
from live_jobs.quick_java import QUICK_JAVA_ENVIRONMENT
from millpond.catalogue import open_jobs
from millpond.errors import DefinitionError, MillpondError, RequestError
from millpond.spark import MillpondWarning, define, derive, publish, start
from millpond.spark.buffered import buffered
from millpond.spark.derive.plan import require_classic
from millpond.storage import open_storage
from suite.sizes import a_few
from suite.waiting import wait_until


@pytest.fixture
def events(spark, tmp_path):
    """A stream of two files of three rows each."""
    folder = str(tmp_path / "events")
    for batch in (0, 1):
        spark.createDataFrame([("a", 1, 5), ("b", 2, 6), ("a", 3, batch)], "page string, bytes long, size long").coalesce(
            1
        ).write.mode("append").parquet(folder)
    return spark.readStream.schema("page string, bytes long, size long").option("maxFilesPerTrigger", 1).parquet(folder)


@pytest.fixture
def totals(events):
    from pyspark.sql import functions as F

    return events.groupBy("page").agg(F.sum("bytes").alias("bytes"), F.sum("size").alias("size"))


def finish(job) -> None:
    with job:
        assert job.wait_for_end(60)


def test_a_job_is_found_in_its_pond_with_its_definition(totals, tmp_path):
    job = start(totals, table="totals", pond=tmp_path / "pond", trigger="available-now")
    finish(job)
    (found,) = open_jobs(tmp_path / "pond")
    assert found.job == "totals"
    assert found.checkpoint == job.checkpoint
    assert found.definitions()["totals"] == job.definition
    assert found.job_state() == "stopped"
    assert job.definition.columns == ("page", "bytes", "size")
    assert repr(job) == f"<Job totals: table totals, checkpoint {job.checkpoint}>"


@pytest.mark.long
def test_a_definition_has_the_session_time_zone_of_its_job(spark, totals, tmp_path):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        job = start(totals, table="totals", pond=tmp_path / "pond", trigger="available-now")
        finish(job)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (found,) = open_jobs(tmp_path / "pond")
    assert found.definitions()["totals"].session_time_zone == "America/New_York"
    # A program that only defines runs no job, so the settings of its session don't count.
    assert define(totals, job.checkpoint, table="totals", pond=tmp_path / "other").session_time_zone == "America/New_York"
    assert define(totals, tmp_path / "unknown", table="totals", pond=tmp_path / "third").session_time_zone is None


@pytest.mark.long
def test_what_is_kept_of_a_table_is_part_of_its_definition(totals, tmp_path):
    keep = millpond.Retention.parse(keep_closed="forever", history="100")
    job = start(totals, table="totals", pond=tmp_path / "pond", trigger="available-now", retention=keep)
    finish(job)
    (found,) = open_jobs(tmp_path / "pond")
    assert found.definitions()["totals"].retention == keep
    with millpond.open(tmp_path / "pond", replica_dir=tmp_path / "home") as pond:
        assert pond["totals"].changes() == []
    assert define(totals, job.checkpoint, table="totals", pond=tmp_path / "other").retention is None
    assert define(totals, job.checkpoint, table="totals", pond=tmp_path / "other", retention=keep).retention == keep


def test_a_running_job_says_so_and_commits_batches_that_can_be_waited_for(spark, tmp_path):
    rate = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    with start(rate.groupBy("value").count(), table="rate", pond=tmp_path, trigger="1 second", partitions=1) as job:
        job.wait_for_batch(1, timeout_seconds=60)
        (found,) = open_jobs(tmp_path)
        wait_until(lambda: found.job_state() == "running", "the heartbeat of a running job")
        facts = job.statistics()
        assert facts["active"]
        assert facts["last_error"] is None
        assert facts["heartbeat_error"] is None
        with pytest.raises(MillpondError) as late:
            job.wait_for_batch(10**6, timeout_seconds=0.1)
        assert late.value.condition == "NO_COMMITTED_BATCH"
    assert found.job_state() == "stopped"


def test_partitions_are_those_asked_for_and_the_session_keeps_its_own(spark, totals, tmp_path, capsys):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    job = start(totals, table="totals", pond=tmp_path, trigger="available-now", partitions=3)
    finish(job)
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    offsets = Path(job.checkpoint.removeprefix("file://"), "offsets", "0").read_text().splitlines()
    assert json.loads(offsets[1])["conf"]["spark.sql.shuffle.partitions"] == "3"
    assert "3 partitions" in capsys.readouterr().err
    finish(start(totals, table="totals", pond=tmp_path, trigger="available-now", partitions=5))
    assert "3 partitions (asked for 5" in capsys.readouterr().err


def test_a_job_started_again_goes_on_from_its_checkpoint(totals, tmp_path):
    seen: list[int] = []

    def keep(frame, batch):
        frame.collect()
        seen.append(batch)

    for _ in range(2):
        finish(start(totals, table="totals", pond=tmp_path, trigger="available-now", sink=keep))
    assert seen == [0, 1]


@pytest.mark.long
def test_aggregates_that_change_places_are_refused_with_both_shown(events, totals, tmp_path):
    from pyspark.sql import functions as F

    finish(start(totals, table="totals", pond=tmp_path, trigger="available-now"))
    # Spark silently accepts this, and adds sizes to bytes.
    swapped = events.groupBy("page").agg(F.sum("size").alias("size"), F.sum("bytes").alias("bytes"))
    with pytest.raises(DefinitionError) as refused:
        start(swapped, table="totals", pond=tmp_path, trigger="available-now")
    assert refused.value.condition == "DEFINITION_CHANGED"
    assert "sum(bytes) in buffers [0]" in refused.value.message
    assert "sum(size) in buffers [0]" in refused.value.message
    finish(start(totals, table="totals", pond=tmp_path, trigger="available-now"))


@pytest.mark.long
def test_state_has_one_name(totals, tmp_path):
    finish(start(totals, table="totals", pond=tmp_path, job="j", trigger="available-now"))
    with pytest.raises(DefinitionError) as refused:
        start(totals, table="other", pond=tmp_path, job="j", trigger="available-now")
    assert refused.value.condition == "DEFINITION_CHANGED"
    assert "'totals'" in refused.value.hint


def test_a_definition_may_change_while_there_is_no_batch(events, totals, tmp_path):
    define(totals, tmp_path / "none" / "checkpoint", table="t", pond=tmp_path / "pond")
    changed = define(events.groupBy("page").count(), tmp_path / "none" / "checkpoint", table="t", pond=tmp_path / "pond")
    (found,) = open_jobs(tmp_path / "pond")
    assert found.definitions() == {"t": changed}


def test_a_definition_goes_to_the_cache_where_the_place_beside_the_checkpoint_cant_be_written(totals, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLPOND_HOME", str(tmp_path / "home"))
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"0"}')
    # A file takes the folder's place: not even root can write into it.
    Path(f"{checkpoint}.millpond").write_text("")
    definition = define(totals, checkpoint, table="t")
    (found,) = open_jobs(checkpoint)
    assert found.definitions() == {"t": definition}
    assert found.checkpoint == f"file://{checkpoint}"


@pytest.mark.parametrize("with_pond", [False, True])
def test_a_query_published_while_it_runs_means_what_start_would_write(spark, tmp_path, with_pond):
    rate = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    frame = rate.selectExpr("value % 3 AS k", "value").groupBy("k").agg({"value": "max"}).withColumnRenamed("max(value)", "high")
    checkpoint = tmp_path / "a%20b c"  # which Hadoop shows as it is
    query = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint)).start()
    try:
        definition = publish(query, table="highs", pond=tmp_path / "pond" if with_pond else None)
        assert query.isActive
    finally:
        query.stop()
    assert definition == derive(frame, table="highs")
    (found,) = open_jobs(tmp_path / "pond" if with_pond else checkpoint)
    assert found.checkpoint == open_storage(checkpoint).uri
    assert not (tmp_path / "a b c").exists()
    assert found.definitions() == {"highs": definition}


def test_a_query_is_left_alone_where_it_cant_be_published(spark, tmp_path):
    rate = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    query = rate.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        with pytest.warns(MillpondWarning) as caught:
            assert publish(query, table="nothing") is None
        assert caught[0].filename == __file__
        with pytest.raises(DefinitionError) as refused:
            publish(query, table="nothing", strict=True)
        assert refused.value.condition == "NOT_DERIVABLE"
        assert query.isActive
    finally:
        query.stop()


def test_what_cant_be_derived_is_raw_with_a_warning_that_names_column_and_reason(events):
    from pyspark.sql import functions as F

    frame = events.groupBy("page").agg(F.expr("kll_sketch_agg_bigint(bytes)").alias("middle"), F.count("*").alias("n"))
    with pytest.warns(MillpondWarning, match=r"middle.*kll_sketch_agg_bigint") as caught:
        definition = derive(frame, table="t")
    assert caught[0].filename == __file__
    assert definition.columns == ("page", "stored_middle_buf", "n")
    assert definition.values[0].raw is not None
    assert definition.values[1].raw is None
    with pytest.raises(DefinitionError) as refused:
        derive(frame, table="t", strict=True)
    assert refused.value.condition == "NOT_DERIVABLE"


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (lambda f: f.where("rand() > n"), "deterministic"),
        (lambda f: f.where("page LIKE 'a%' OR xpath_string(page, 'a') = 'b' AND n > 1"), "isn't known here"),
        (lambda f: f.orderBy("n").limit(3), "GlobalLimit"),
        (lambda f: f.selectExpr("explode(array(n, 1)) AS e"), "Generate"),
    ],
)
def test_a_table_is_raw_as_a_whole_where_rows_would_be_wrong(events, after, reason):
    from pyspark.sql import functions as F

    frame = after(events.groupBy("page").agg(F.count("*").alias("n"), F.sum("bytes").alias("total")))
    with pytest.warns(MillpondWarning, match=reason):
        definition = derive(frame, table="t", output_mode="complete")
    assert definition.operator == 0
    assert definition.having is None
    assert all(column.raw for column in definition.values)


def test_an_aggregation_below_drop_duplicates_is_the_table(events):
    frame = events.groupBy("page").count().dropDuplicates(["count"])
    with pytest.warns(MillpondWarning, match="Deduplicate"):
        definition = derive(frame, table="t")
    assert definition.operator == 1
    assert definition.columns == ("page", "stored_count")


def test_without_an_aggregation_the_keys_of_drop_duplicates_are_the_table(events):
    definition = derive(events.dropDuplicates(["page", "size"]), table="t", strict=True)
    assert definition.columns == ("page", "size")
    assert definition.warnings == ()


def test_python_functions_are_served_raw(events):
    from pyspark.sql import functions as F

    twice = F.udf(lambda n: 2 * n, "long")
    frame = events.groupBy("page").agg(F.sum("bytes").alias("total")).select("page", "total", twice("total").alias("twice"))
    with pytest.warns(MillpondWarning):
        definition = derive(frame, table="t")
    assert all(column.raw for column in definition.values if column.name != "total")


def test_a_collation_is_never_ignored(events):
    from pyspark.sql import functions as F

    high = F.max("page").alias("high")
    frame = events.groupBy("size").agg(high).withColumn("same", F.expr("high = collate('A', 'UTF8_LCASE')"))
    with pytest.warns(MillpondWarning, match="same"):
        derive(frame, table="t")


def test_what_keeps_no_state_has_no_table(spark, events):
    for frame in (events.select("page"), spark.range(3).groupBy("id").count()):
        with pytest.raises(DefinitionError) as refused:
            derive(frame, table="t")
        assert refused.value.condition == "NOT_DERIVABLE"


def test_spark_connect_is_refused_by_name():
    # The real class can't be imported without gRPC; the check looks at a class's module only.
    connected = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(DefinitionError) as refused:
        require_classic(connected, "_jdf")
    assert refused.value.condition == "SPARK_CONNECT"


@pytest.mark.parametrize("wrong", [{"output_mode": "upsert"}, {"partitions": 0}, {"sink": lambda writer: None}])
def test_wrong_options_are_named_before_anything_runs(spark, totals, tmp_path, wrong):
    with pytest.raises(MillpondError) as refused:
        start(totals, table="t", pond=tmp_path / "pond", **wrong)
    assert refused.value.condition == "INVALID_REQUEST"
    assert not spark.streams.active


def by_clock(df, kind):
    """A query by processing time.  Its classes are local, so that workers get them by value and import nothing."""

    class Silent(StatefulProcessor):
        """Keeps one number for each key, and emits nothing."""

        def init(self, handle):
            self._number = handle.getValueState("number", "n long")

        def handleInputRows(self, key, rows, timerValues):  # noqa: N803 - so is Spark's
            self._number.update((1,))
            return iter(())

        def close(self):
            pass

    def silent(key, frames, state):
        """The same with applyInPandasWithState."""
        state.update((1,))
        return iter(())

    if kind == "buffered":
        return buffered(df, at_least=100, after_seconds=100, shards=1, partitions=1)
    groups = df.groupBy("page")
    if kind == "rows":
        return groups.transformWithState(Silent(), "n long", "update", "processingTime")
    if kind == "frames":
        return groups.transformWithStateInPandas(Silent(), "n long", "update", "processingTime")
    return groups.applyInPandasWithState(silent, "n long", "n long", "update", "ProcessingTimeTimeout")


@pytest.mark.parametrize("kind", a_few(["rows", "frames", "time-outs", "buffered"], 1))
def test_what_goes_by_processing_time_isnt_started_to_end_with_its_input(spark, events, tmp_path, kind):
    frame, mode = by_clock(events, kind), "append" if kind == "buffered" else "update"
    for how in ({"trigger": "available-now"}, {"sink": lambda writer: writer.format("noop").trigger(availableNow=True)}):
        with pytest.raises(RequestError) as refused:
            start(frame, table="t", pond=tmp_path / "pond", output_mode=mode, partitions=1, **how)
        assert refused.value.condition == "INVALID_REQUEST"
        assert "1 second" in refused.value.hint
    assert not spark.streams.active
    assert not list((tmp_path / "pond").rglob("t.json"))
    # As the hint says, the query ends if Spark makes no batches without rows.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        finish(start(frame, table="t", pond=tmp_path / "pond", output_mode=mode, partitions=1, trigger="available-now"))
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


def test_a_sink_function_gets_the_writer(totals, tmp_path):
    out = tmp_path / "out"

    def memory(writer):
        return writer.format("memory").queryName("sink_function")

    finish(start(totals, table="t", pond=tmp_path / "pond", trigger="available-now", output_mode="complete", sink=memory))
    assert not out.exists()
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    assert {tuple(r) for r in spark.sql("SELECT page, bytes FROM sink_function").collect()} == {("a", 8), ("b", 4)}


_STOPPED = """
import signal
import sys
import threading
import time
import millpond
from millpond.spark import run_until_stopped

spark = millpond.session("stopped", **{"spark.master": "local[2]", "spark.ui.enabled": "false"})
spark.sparkContext.setLogLevel("OFF")
rate = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
job = millpond.start(rate.groupBy("value").count(), table="rate", pond=sys.argv[1], partitions=2)
job.wait_for_batch(1, timeout_seconds=90)

def say():  # before, a signal is Python's own or PySpark's
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    print("running", spark.sparkContext._gateway.proc.pid, flush=True)

threading.Thread(target=say).start()
run_until_stopped([job])
print("ended", flush=True)
"""


@pytest.mark.faults
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_stops_query_and_session_and_leaves_no_java(tmp_path, number):
    pytest.importorskip("pyspark")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_STOPPED))
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        command, env = [sys.executable, str(program), str(tmp_path / "pond")], {**os.environ, **QUICK_JAVA_ENVIRONMENT}
        process = subprocess.Popen(command, env=env, stdout=out, stderr=err)
    try:
        wait_until(
            lambda: (tmp_path / "out").read_text().endswith("\n"),
            "the program's word that it runs",
            seconds=240,
            unless=lambda: process.poll() is not None and ((tmp_path / "err").read_text() or "nothing said"),
        )
        java = int((tmp_path / "out").read_text().split()[1])
        process.send_signal(number)
        process.send_signal(number)
        wait_until(lambda: process.poll() is not None, "the end of the program after two signals", seconds=180)
        assert process.returncode == 0, (tmp_path / "err").read_text()
        assert "ended" in (tmp_path / "out").read_text()
    finally:
        process.kill()
    wait_until(lambda: not os.path.exists(f"/proc/{java}"), "the end of the JVM")
    (found,) = open_jobs(tmp_path / "pond")
    assert found.job_state() == "stopped"
