"""The program that a declaration stands for: Spark runs what is printed, and it is the same query."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.errors import MillpondError
from spark.aggregate.test_buckets import BEGIN, declare, event, write_days
from suite.sizes import examples

RESOLUTIONS = {
    "10 seconds": ("1 minute", "2 days"),
    "1 minute": ("6 hours", "90 days"),
    "15 minutes": ("1 day", None),
    "1 hour": ("3 days", None),
    "1 day": ("5 weeks", None),
    "1 month": ("400 days", None),
    "1 quarter": ("900 days", None),
    "1 year": (None,),
}


def values() -> dict[str, str]:
    return {
        "hits": "count(*)",
        "bytes": "sum(bytes)",
        "large": "count(1) filter (where bytes > 50 and page <> '/a')",
        "hosts": "approx_count_distinct(host, 0.03)",
        "long_hosts": "collect_set(concat(host, '''s 𝄞 \\\"'))",
        "most": "max(struct(bytes, host))",
        "median": "percentile(bytes, 0.5)",
        "wide": "sum(cast(bytes as decimal(20,3)) * 2)",
    }


def declared(draw: random.Random) -> millpond.Aggregate:
    from pyspark.sql import functions as F

    names = draw.sample(sorted(RESOLUTIONS), draw.randint(1, 4))
    chosen = draw.sample(sorted(values()), draw.randint(1, 5))
    options = {"future_skew": draw.choice([None, "10 minutes", "3 hours"])}
    if draw.random() < 0.4:
        options = {"dedupe": ("host", "2 days"), "future_skew": "1 hour"}
    return declare(
        key=draw.choice([["page"], ["host", "page"], []]),
        resolutions={name: draw.choice(RESOLUTIONS[name]) for name in names},
        dead_letters=draw.choice([None, "4 hours", "7 days"]),
        values={name: F.expr(values()[name]) for name in chosen},
        **options,
    )


def run(program: str, source: Any) -> Any:
    found: dict[str, Any] = {"source": source}
    exec(compile(program, "program", "exec"), found)
    return found["aggregated"]


@pytest.mark.long
def test_what_is_printed_is_the_same_query(spark, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    draw = random.Random(5)
    folder = tmp_path / "in"
    write_days(folder, draw, 2)
    rows = [event(draw, BEGIN), {**event(draw, BEGIN), "at": None}, {**event(draw, BEGIN), "at": "2999-01-01T00:00:00Z"}]
    schema = "at string, page string, bytes long, host string"
    odd = spark.createDataFrame([[row[name] for name in ("at", "page", "bytes", "host")] for row in rows], schema)
    batch = spark.read.schema("at timestamp, page string, bytes long, host string").json(str(folder))
    batch = batch.union(odd.selectExpr("cast(at as timestamp)", "page", "bytes", "host")).cache()
    stream = spark.readStream.schema(batch.schema).json(str(folder))
    for _ in range(examples(40, fewest=5, one_of=8)):
        aggregate = declared(draw)
        checkpoint = draw.choice([None, str(tmp_path / "checkpoint"), "s3://bucket/checkpoint"])
        printed = run(aggregate.program(stream, checkpoint=checkpoint), stream)
        assert analyzed(printed) == analyzed(aggregate.on(stream, checkpoint=checkpoint))
        aggregate.explain(batch)
        program = capsys.readouterr().out
        mine, printed = aggregate.on(batch), run(program, batch)
        assert printed.columns == mine.columns
        assert plan_of(printed) == plan_of(mine), program
    timeless = [name for name in mine.columns if name != "expires_at"]  # of a dead letter: that long after now
    assert sorted(map(repr, printed.select(timeless).collect())) == sorted(map(repr, mine.select(timeless).collect()))


def plan_of(df: Any) -> list[str]:
    """What Spark does after it has simplified the query: its operators, without the numbers of columns."""
    return words_of(df._jdf.queryExecution().optimizedPlan())


def analyzed(df: Any) -> list[str]:
    """Of a stream, which Spark simplifies only when it runs."""
    return words_of(df.sparkSession._jsparkSession.sessionState().optimizer().execute(df._jdf.queryExecution().analyzed()))


def words_of(plan: Any) -> list[str]:
    text = str(plan.toString())
    text = re.sub(r"20\d\d-\d\d-\d\d \d\d:[\d:.]+", "now", text)
    names = dict.fromkeys(re.findall(r"#\d+L?", text))
    for number, name in enumerate(names):
        text = re.sub(rf"{name}\b", f"#<{number}>", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "id", text)  # of a watermark
    return re.sub(r"__(millpond_)?(bucket|clock|seen|apart|watermark)", r"\2", text).splitlines()


@pytest.mark.long
def test_the_program_goes_on_from_the_checkpoint_of_the_job(spark, tmp_path: Path) -> None:
    """A year from now somebody runs what was printed, without Millpond."""
    draw = random.Random(1)
    folder, pond = tmp_path / "in", tmp_path / "pond"
    write_days(folder, draw, 2)
    source = spark.readStream.schema("at timestamp, page string, bytes long, host string").json(str(folder))
    aggregate = declare()
    for wrong in (lambda: millpond.start(aggregate, pond=pond), lambda: millpond.start(source, pond=pond)):
        with pytest.raises(MillpondError) as raised:
            wrong()
        assert raised.value.condition == "INVALID_REQUEST"
    with millpond.start(aggregate, source, pond=pond, trigger="available-now") as job:
        job.wait_for_end()
        checkpoint = job.checkpoint
    write_days(tmp_path / "more", draw, 2)
    for file in (tmp_path / "more").iterdir():
        file.rename(folder / f"more-{file.name}")
    writer = run(aggregate.program(source), source).writeStream.outputMode("update").format("noop")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    events = spark.read.schema(source.schema).json(str(folder)).where("at is not null")
    with millpond.open(pond, wait_seconds=60) as opened:
        total = sum(opened["views"].total(page=page)["hits"] for page in ("/", "/a", "/b"))
    assert total == events.count()


def test_a_value_without_a_text_is_refused(spark) -> None:
    from pyspark.sql import functions as F

    batch = spark.createDataFrame([], "at timestamp, page string, bytes long, host string")
    longer = F.udf(lambda text: text + "!", "string")
    aggregate = declare(values={"hits": F.count("*"), "most": F.max(longer("host"))})
    with pytest.raises(MillpondError, match="most") as raised:
        aggregate.explain(batch)
    assert raised.value.condition == "UNSUPPORTED"
    bare = declare(values={"hits": F.count("*"), "most": F.max("host")}).program(batch)
    assert 'F.expr("max(host)").alias("most")' in bare
