"""A program that is looked at writes nothing, and what of it wasn't looked at is named and counts for the exit code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millpond.catalogue import create_job
from millpond.errors import MillpondError
from millpond.operate.config import RuleConfig
from millpond.operate.doctor.advice import Diagnosis
from millpond.operate.doctor.code import judge
from millpond.spark.review.facts import Review
from millpond.spark.review.intercept import review_program
from millpond.spark.review.writes import changes_something
from spark_files.golden import GOLDEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN = """import sys
import millpond as mp
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.getOrCreate()
events = spark.readStream.format("rate").load()
counts = events.groupBy("value").count()
writer = counts.writeStream.outputMode("update").format("console").option("checkpointLocation", "/nowhere")
"""
AGGREGATE = """
views = mp.Aggregate("views", key=["value"], event_time="timestamp", values={"hits": F.count("*")},
                     resolutions={"1 minute": "2 days", "1 hour": None})
"""
STATEMENT = """
import pathlib
pathlib.Path("EVENTS").mkdir(exist_ok=True)
text = "CREATE AGGREGATE views KEY (page) TIME at RESOLUTIONS ('1 minute' FOR '2 days', '1 hour') " \\
    "AS SELECT count(*) AS hits FROM json.`EVENTS` SCHEMA 'at timestamp, page string';"
"""
# Ways to start a job, or to change a pond, from a program; POND is one that has a job `counts`.
WAYS = {
    "start": 'mp.start(counts, table="counts", pond=POND)',
    "a job of its own": 'with mp.start(counts, table="new", pond=POND, job="other") as job:\n    job.wait_for_end()',
    "until stopped": 'mp.spark.run_until_stopped([mp.start(counts, table="new", pond=POND)])',
    "an aggregate": AGGREGATE + "mp.start(views, events, pond=POND)",
    "an aggregate's own start": AGGREGATE + "views.start(events, pond=POND)",
    "an aggregate with a version": AGGREGATE.replace("key=", "version=1, key=") + "views.start(events, pond=POND)",
    "statements": STATEMENT + "mp.plan_apply(text, POND, spark=spark).run()",
    "imported from where it is": 'from millpond.spark.start import start\nstart(counts, table="new", pond=POND)',
    "publish": 'mp.publish(writer.start(), table="new", pond=POND)',
    "define": 'mp.define(counts, POND + "/jobs/counts/checkpoint", table="again", pond=POND)',
    "a model": 'mp.publish_model(POND + "/models", b"x", name="m")',
    "a savepoint": 'mp.plan_savepoint(POND, name="s").run()',
    "a batch into the pond": 'counts.sparkSession.range(3).write.parquet(POND + "/rows")',
    "an RDD into the pond": 'spark.sparkContext.parallelize([1]).saveAsTextFile(POND + "/rdd")',
    "a merge": 'spark.range(3).mergeInto("t", F.lit(True)).whenMatched().delete().merge()',
    "a table": 'spark.catalog.createTable("review_t", path=POND + "/t", source="parquet", schema=counts.schema)',
    "a database": "spark.catalog.createDatabase('review_db')",
}  # fmt: skip


# What needs files that it would have written.
FAILS = {"a savepoint"}
# What writes a definition alone.
SILENT = {"define"}


def review(folder: Path, text: str) -> Review:
    path = folder / "job.py"
    path.write_text(BEGIN + text)
    return review_program(path, {})


def look(folder: Path, text: str) -> Diagnosis:
    return judge(folder / "job.py", review(folder, text), RuleConfig())


def tree(folder: Path) -> dict[str, tuple[bytes, int] | None]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    folder = create_job(tmp_path / "pond", "counts")
    source = GOLDEN / "counts-hdfs"
    shutil.copytree(source / "checkpoint", tmp_path / "pond/jobs/counts/checkpoint", dirs_exist_ok=True)
    folder.storage.write("tables/counts.json", (source / "definition.json").read_bytes())
    return tmp_path / "pond"


def test_no_way_to_start_changes_a_pond(tmp_path: Path, pond: Path, spark: SparkSession) -> None:
    before, failed = tree(pond), {}
    for name, text in WAYS.items():
        found = review(tmp_path, f"POND = {str(pond)!r}\n{text}\n".replace("EVENTS", str(tmp_path / "events")))
        assert tree(pond) == before, name
        assert spark.streams.active == [], name
        assert not spark.catalog.tableExists("review_t"), name
        assert not spark.catalog.databaseExists("review_db"), name
        if found.error is not None:
            failed[name] = found.error
        # Nor is what starts lost: each is a query, or named.
        assert found.queries or found.notes or found.error or name in SILENT, name
    assert failed.keys() == FAILS, failed
    create_job(pond, "after")  # and all is as it was
    assert tree(pond) != before


# A statement, and whether it changes more than its session.
STATEMENTS = {
    "-- why\nCREATE TABLE t USING parquet AS SELECT 1 AS a": True,
    "/* why */ INSERT OVERWRITE DIRECTORY '/tmp/nowhere' USING parquet SELECT 1": True,
    "/* a /* nested */ one */ DROP TABLE t": True,
    "WITH x AS (SELECT 1 AS a) INSERT INTO t SELECT * FROM x": True,
    "FROM t INSERT INTO a SELECT * INSERT INTO b SELECT *": True,
    "INSERT INTO t VALUES (1)": True,
    "CREATE DATABASE d": True,
    "CREATE EXTERNAL TABLE t (a INT) STORED AS parquet LOCATION '/tmp/nowhere'": True,
    "REPLACE TABLE t USING parquet AS SELECT 1 AS a": True,
    "CREATE OR REPLACE TABLE t (a INT) USING parquet": True,
    "CREATE VIEW v AS SELECT 1 AS a": True,
    "CREATE FUNCTION f AS 'a.B'": True,
    "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE": True,
    "UPDATE t SET a = 1": True,
    "DELETE FROM t": True,
    "TRUNCATE TABLE t": True,
    "ALTER TABLE t ADD COLUMN b INT": True,
    "MSCK REPAIR TABLE t": True,
    "ANALYZE TABLE t COMPUTE STATISTICS": True,
    "LOAD DATA INPATH 'x' INTO TABLE t": True,
    "COMMENT ON TABLE t IS 'x'": True,
    "CALL system.rollback('x')": True,
    "BEGIN INSERT INTO t VALUES (1); END": True,
    "SELECT 1": False,
    "WITH x AS (SELECT 'INSERT INTO t' AS a) SELECT * FROM x": False,
    "SET spark.sql.shuffle.partitions=3": False,
    "USE default": False,
    "CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1 AS a": False,
    "CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1 AS a": False,
    "CREATE TEMPORARY VIEW v USING parquet OPTIONS (path 'x')": False,
    "CREATE TEMPORARY FUNCTION f AS 'a.B'": False,
    "SHOW TABLES": False,
    "SHOW CREATE TABLE t": False,
    "DESCRIBE t": False,
    "DESCRIBE FUNCTION sum": False,
    "EXPLAIN INSERT INTO t VALUES (1)": False,
    "DECLARE VARIABLE x INT": False,
    "CACHE TABLE t": False,
    "no statement": False,
}  # fmt: skip


def test_statements_that_write_by_spark_s_parser(spark: SparkSession) -> None:
    assert {text: changes_something(spark, text) for text in STATEMENTS} == STATEMENTS


def test_statements_of_a_program(tmp_path: Path, spark: SparkSession) -> None:
    """Those of the session are run; one that writes isn't, with arguments and names in braces, too."""
    out = tmp_path / "out"
    found = look(
        tmp_path,
        "spark.sql('CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1 AS a')\n"
        "assert spark.sql('SELECT * FROM v WHERE a = :a', args={'a': 1}).count() == 1\n"
        "assert spark.sql('SELECT * FROM {rows}', rows=spark.range(3)).count() == 3\n"
        f"spark.sql(\"-- c\\nINSERT OVERWRITE DIRECTORY '{out}' USING parquet SELECT * FROM {{rows}}\", rows=spark.range(3))\n"
        f"spark.sql(sqlQuery=\"WITH x AS (SELECT :a AS a) INSERT INTO parquet.`{out}` SELECT * FROM x\", args={{'a': 1}})\n"
        "writer.start()\n",
    )
    assert not out.exists()
    assert [note.split(" at ")[1][:7] for note in found.unseen if "wasn't run" in note] == ["line 11", "line 12"]
    assert found.exit_code == 0, found
    del spark


START = "writer.start()\n"
# What a program does -> (its exit code, what is said of it).
ENDS = {
    f"q = {START}print(q.status)\n{START}": (2, "line 9: it asks for `status`, which only a running query has"),
    f"q = {START}q.awaitTermination()\nprint(q.lastProgress['batchId'])\n": (2, "line 10: TypeError"),
    f"{START}spark.streams.awaitAnyTermination()\n{START}": (0, ""),
    f"{START}while True:\n    spark.streams.awaitAnyTermination()\n": (0, ""),
    f"{START}while True:\n    spark.streams.awaitAnyTermination()\n    {START}": (0, ""),
    f"{START}for n in range(3):\n    spark.streams.awaitAnyTermination()\n{START}": (2, "line 10: it waits for queries"),
    f"{START}sys.exit(3)\n": (2, "ended with 3"),
    f"{START}sys.exit('no topic')\n": (2, "no topic"),
    f"{START}sys.exit(0)\n": (0, ""),
    f"{START}sys.exit()\n": (0, ""),
    f"{START[:-1]}.awaitTermination()\nsys.exit(1)\n": (0, ""),
}  # fmt: skip


@pytest.mark.usefixtures("spark")
def test_what_ends_a_program_early_is_said(tmp_path: Path) -> None:
    for text, (code, words) in ENDS.items():
        found = look(tmp_path, text)
        assert found.exit_code == code, (text, found)
        assert any(words in sentence for sentence in found.unseen) or not words, (text, found)


@pytest.mark.usefixtures("spark")
def test_missing_arguments_are_an_error(tmp_path: Path) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\n"
    text += "parser.add_argument('--topic', required=True)\nparser.parse_args()\n"
    with pytest.raises(MillpondError) as raised:
        look(tmp_path, text + START)
    assert raised.value.condition == "INVALID_REQUEST"
    assert "job.py ended with 2" in str(raised.value)
