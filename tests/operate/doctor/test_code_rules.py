"""Forty programs, half of them with a fault that their first line names: each fault is found, and none is invented."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.operate.config import RuleConfig
from millpond.operate.doctor.advice import Diagnosis
from millpond.operate.doctor.code import judge
from millpond.operate.doctor.rules.rules import RULES
from millpond.spark.review.batch_function import read_batch_function
from millpond.spark.review.intercept import review_program
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAMS = Path(__file__).parent / "pipelines"
FAULTY, SOUND = (sorted((PROGRAMS / kind).glob("*.py")) for kind in ("faulty", "sound"))
# One of each kind of look: a watermark, a join, an aggregate's inside, a function's code, settings.
SOME = (
    "watermark_lost_by_a_cast", "join_without_range", "size_of_a_list", "appends_again", "rocksdb_without_a_change_log",
    "join_with_range", "kafka_to_kafka", "appends_once",
)  # fmt: skip
# Of state alone, or of code beside a checkpoint: tests elsewhere.
ELSEWHERE = {"trigger-short"}


def fault_of(path: Path) -> list[str]:
    first = ast.get_docstring(ast.parse(path.read_text()))
    assert first is not None
    return [first.partition(":")[0]] if path in FAULTY else []


def look(path: Path, conf: dict[str, str] | None = None) -> Diagnosis:
    return judge(path, review_program(path, conf or {}), RuleConfig())


def check(path: Path) -> None:
    found = look(path)
    assert [advice.rule for advice in found.advice] == fault_of(path), (path.name, found)
    for advice in found.advice:
        assert advice.file == str(path)
        line = path.read_text().splitlines()[(advice.line or 0) - 1]
        assert any(word in line for word in ("start(", "toTable(", "query = (", "format(", "option(", "def ")), (path.name, line)


def test_there_are_twenty_of_each_and_every_rule_of_code_is_tried() -> None:
    assert (len(FAULTY), len(SOUND)) == (20, 20)
    named = {rule for path in FAULTY for rule in fault_of(path)}
    assert named | ELSEWHERE == {rule.id for rule in RULES if rule.of_query is not None}


@pytest.mark.usefixtures("spark")
def test_some_programs() -> None:
    for path in (*FAULTY, *SOUND):
        if path.stem in SOME:
            check(path)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_every_program() -> None:
    for path in (*FAULTY, *SOUND):
        check(path)


def program(folder: Path, text: str, name: str = "job.py") -> Path:
    path = folder / name
    path.write_text(
        "from pyspark.sql import SparkSession, functions as F\nspark = SparkSession.builder.getOrCreate()\n"
        'events = spark.readStream.format("rate").load()\n' + text
    )
    return path


def test_nothing_starts_and_nothing_is_written(tmp_path: Path, spark: SparkSession) -> None:
    out = tmp_path / "out"
    path = program(
        tmp_path,
        f'spark.range(3).write.parquet("{out}/parquet")\n'
        f"spark.sql(\"create table t using parquet location '{out}/t' as select 1 as a\")\n"
        f'query = events.groupBy("value").count().writeStream.outputMode("update").option("checkpointLocation", "{out}/c")'
        '.format("console").start()\n'
        "while query.isActive:\n    pass\n"
        "while True:\n    spark.streams.awaitAnyTermination()\n",
    )
    found = look(path)
    assert not out.exists()
    assert spark.streams.active == []
    notes = [note for note in found.unseen if "wasn't run" in note]
    assert [note.partition(" at line ")[2][:1] for note in notes] == ["4", "5"]
    spark.range(1).write.parquet(str(out))  # and all is as it was
    assert out.exists()


def test_several_queries_and_a_program_that_fails_after_one(tmp_path: Path, spark: SparkSession) -> None:
    del spark
    start = '.writeStream.outputMode("update").option("checkpointLocation", "/nowhere/c").format("parquet").start()\n'
    path = program(
        tmp_path,
        f'events.groupBy(F.window("timestamp", "1 minute")).count(){start}'
        f'events.dropDuplicates(["value"]){start}'
        'raise ValueError("no broker")\n',
    )
    found = look(path)
    assert [(advice.rule, advice.line) for advice in found.advice] == [("state-unbounded", 4), ("state-unbounded", 5)]
    assert any("ended early, after 2 queries" in sentence and "line 6" in sentence for sentence in found.unseen)


NEAR = {
    "a date is the same all day": 'events.groupBy(F.current_date().alias("day"), "value").count()',
    "a window of the time of the batch": 'events.groupBy(F.date_trunc("hour", F.current_timestamp()).alias("hour")).count()',
    "who runs it": 'events.groupBy(F.current_user().alias("who")).count()',
    "one row for all": 'events.withWatermark("timestamp", "1 minute").groupBy().count()',
    "an aggregate over windows": 'events.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute"), "value")'
    '.count().groupBy("value").agg(F.max("count"))',
    "a set that is read": 'events.groupBy("value").agg(F.collect_set("timestamp").alias("s"))',
    "a list and its size": 'events.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute"))'
    '.agg(F.collect_list("value").alias("v")).select("v", F.size("v"))',
    "a list that is sorted": 'events.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute"))'
    '.agg(F.sort_array(F.collect_list("value")))',
    "the greatest struct": 'events.groupBy("value").agg(F.max(F.struct("timestamp", "value")).alias("m"))'
    '.select("value", "m.value")',
}  # fmt: skip


@pytest.mark.usefixtures("spark")
def test_near_misses(tmp_path: Path) -> None:
    for name, query in NEAR.items():
        writer = '.writeStream.outputMode("update").format("parquet").option("checkpointLocation", "/nowhere").start()\n'
        found = look(program(tmp_path, query + writer))
        assert found.advice == (), name
        assert not any("ended early" in sentence for sentence in found.unseen), name


def test_a_source_that_cant_be_opened_is_named(tmp_path: Path, spark: SparkSession) -> None:
    del spark
    path = program(tmp_path, 'spark.readStream.format("delta").load("/data/delta")\n')
    with pytest.raises(MillpondError) as raised:
        look(path)
    assert raised.value.condition == "INVALID_REQUEST"
    assert "The source delta can't be opened here" in str(raised.value)
    assert "line 4" in str(raised.value)


def test_comments_that_ignore_a_rule(tmp_path: Path, spark: SparkSession) -> None:
    del spark
    query = (
        'events.dropDuplicates(["value"]).writeStream.format("parquet").option("checkpointLocation", "/nowhere").start()'
        "  # millpond: ignore[{}]{}\n"
    )
    ignored = look(program(tmp_path, query.format("state-unbounded, hot-key", " a day's test")))
    assert [advice.ignored for advice in ignored.advice] == ["a day's test"]
    assert ignored.exit_code == 0
    bare = look(program(tmp_path, query.format("state-unbounded", "")))
    assert bare.exit_code == 1
    assert any("line 4: state-unbounded isn't ignored without a reason" in sentence for sentence in bare.unseen)
    wrong = look(program(tmp_path, query.format("state-unbound", " why")))
    assert wrong.exit_code == 1
    assert any("there is no rule 'state-unbound'" in sentence for sentence in wrong.unseen)
    text = look(program(tmp_path, 'a = "# millpond: ignore[state-unbounded] in a text"\n' + query.format("hot-key", " why")))
    assert text.exit_code == 1


def test_settings_of_the_deploy(spark: SparkSession) -> None:
    """They stand over those of the program."""
    del spark
    path = PROGRAMS / "sound" / "counts_by_page.py"
    kept = {"spark.sql.streaming.minBatchesToRetain": "3"}
    assert [advice.rule for advice in look(path, kept).advice] == ["retention-short"]
    local = PROGRAMS / "faulty" / "checkpoint_of_the_driver.py"
    assert look(local, {"spark.master": "local[4]"}).advice == ()


@pytest.mark.long
def test_jobs_of_millpond_and_the_state_of_their_checkpoints(tmp_path: Path, spark: SparkSession) -> None:
    """The program's job has run: batches took longer than its trigger, and its state is judged too."""
    pond = tmp_path / "pond"
    path = program(
        tmp_path,
        "import millpond\n"
        'counts = events.groupBy(F.window("timestamp", "1 second")).count()\n'
        f'with millpond.start(counts, table="counts", pond="{pond}", trigger="1 millisecond") as job:\n'
        "    job.wait_for_end()\n",
    )
    assert [advice.rule for advice in look(path).advice] == ["state-unbounded"]
    assert not pond.exists()
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    from pyspark.sql import functions as F

    counts = rate.groupBy(F.window("timestamp", "1 second")).count()
    with millpond.start(counts, table="counts", pond=pond, trigger="1 millisecond", partitions=1) as job:
        wait_until(lambda: len(job.query.recentProgress) > 8, "nine batches", unless=job.query.exception)
    rules = {advice.rule: advice for advice in look(path).advice}
    assert rules.keys() == {"state-unbounded", "trigger-short"}
    assert (rules["trigger-short"].cost_ms or 0) > 0


@pytest.mark.spark
@pytest.mark.long
def test_a_program_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, once: arguments, exit code, JSON; what the program prints is nowhere in between, and nothing is left."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    path = program(
        tmp_path,
        "import sys\nprint('noise')\nassert sys.argv[1:] == ['--topic', 'x']\n"
        'events.dropDuplicates(["value"]).writeStream.format("parquet").option("checkpointLocation", "/nowhere").start()\n',
    )
    done = CliRunner().invoke(main, ["doctor", str(path), "--json", "--", "--topic", "x"])
    assert done.exit_code == 1, done.output
    (line,) = done.stdout.splitlines()
    advice = json.loads(line)
    assert (advice["rule"], advice["file"], advice["line"]) == ("state-unbounded", str(path), 7)
    assert list(temporary.iterdir()) == []
    missing = CliRunner().invoke(main, ["doctor", str(tmp_path / "no.py")])
    assert (missing.exit_code, missing.stdout) == (2, "")


FUNCTIONS = {
    'def f(rows, i):\n    rows.write.mode("append").parquet("x")': ("write.mode(\"append\").parquet()", False),
    'def f(rows, i):\n    rows.write.parquet("x", mode="append")': ("write.mode(\"append\").parquet()", False),
    'def f(rows, i):\n    rows.write.parquet("x", mode="overwrite")': (None, False),
    'def f(rows, i):\n    rows.write.mode(MODE).parquet("x")': (None, False),
    'def f(rows, i):\n    rows.write.format("kafka").save()': ('write.format("kafka").save()', False),
    'def f(rows, i):\n    rows.write.insertInto("t")': ("write.insertInto(…)", False),
    'def f(rows, i):\n    rows.write.insertInto("t", True)': (None, False),
    'def f(rows, i):\n    rows.writeTo("t").append()': ("writeTo(…).append()", False),
    'def f(rows, i):\n    rows.writeTo("t").overwritePartitions()': (None, False),
    'def f(rows, i):\n    if i:\n        rows.write.mode("append").save("x")': ("write.mode(\"append\").save()", True),
    'def f(rows, i):\n    (lambda: g(i))()\n    rows.write.mode("append").save("x")': ("write.mode(\"append\").save()", True),
    "def f(rows, i):\n    seen.append(rows.count())": (None, False),
    'f = lambda rows, i: rows.write.mode("append").saveAsTable("t")': ("write.mode(\"append\").saveAsTable()", False),
    "f = print": "unknown",
    "def f(rows):\n    pass": "unknown",
}  # fmt: skip


@pytest.mark.parametrize("text", FUNCTIONS)
def test_the_code_of_a_function(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.py"
    path.write_text(text)
    names: dict[str, object] = {}
    exec(compile(text, str(path), "exec"), names)
    found = read_batch_function(names["f"], str(path))  # type: ignore[arg-type]
    assert FUNCTIONS[text] == ("unknown" if found is None else (found.appends, found.uses_batch_id))
