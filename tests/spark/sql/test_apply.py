"""Statements with Spark: equal to the declaration in Python, live, and what a changed one would change."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import MillpondError
from millpond.spark.sql.apply import ApplyPlan
from millpond.spark.sql.declare import open_source
from millpond.spark.sql.statement import parse_statements
from spark.aggregate.test_buckets import SCHEMA, write_days

STATEMENT = """
CREATE AGGREGATE views KEY (page) TIME at
RESOLUTIONS ('1 minute' FOR '6 hours', '1 hour' FOR '3 days', '1 day')
AS SELECT count(*) AS hits, sum(bytes) AS bytes
FROM json.`{folder}` SCHEMA '{schema}' OPTIONS (maxFilesPerTrigger 1)
WHERE bytes < 90
"""
EXPRESSIONS = [
    "count(*)",
    "sum(bytes)",
    "bytes",
    "distinct(host)",
    "distinct(host, exact => true)",
    "distinct(host, exact => 3)",
    "distinct(host, 1)",
    "distinct(host, rsd => 9)",
    "quantile(bytes, 0.5)",
    "quantile(bytes)",
    "quantile(bytes, array(0.5, 'a'))",
    "quantile(bytes, [0.5])",
    "top_k(page, 3)",
    "top_k(page, true)",
    "top_k(page, 0)",
    "top_k(page, 1e3)",
    "1 +",
    "sum(",
    "count(distinct host)",
    "nothing(bytes)",
    "max(`",
    "top_k(distinct(host), 2)",
    "quantile(-bytes, .5, k => 9)",
    "quantile(x => 1)",
    "distinct()",
    "'a'",
    "rank() over (order by page)",
]


def plan(spark: Any, text: str, pond: Path) -> ApplyPlan:
    return millpond.plan_apply(text, pond, spark=spark)


def test_a_statement_is_the_declaration_in_python(spark, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    folder = tmp_path / "in"
    write_days(folder, random.Random(3), 1)
    text = f"""
    CREATE AGGREGATE views VERSION 3 KEY (page, host) TIME at RESOLUTIONS ('1 hour', '10 minutes' FOR '1 day')
    FUTURE SKEW '1 hour' DEDUPE host FOR '2 days' DEAD LETTERS '3 days'
    AS SELECT count(*) AS hits, avg(bytes) FILTER (WHERE page <> '/a;') AS average, distinct(host) AS hosts,
      distinct(bytes + 1, exact => true) AS sizes, quantile(bytes, array(0.5, 0.99), k => 300) AS ranks, top_k(page, 3) AS top
    FROM json.`{folder}` SCHEMA '{SCHEMA}'"""
    declared = millpond.Aggregate(
        "views",
        version=3,
        key=["page", "host"],
        event_time="at",
        values={
            "hits": F.count("*"),
            "average": F.expr("avg(bytes) filter (where page <> '/a;')"),
            "hosts": millpond.distinct("host"),
            "sizes": millpond.distinct(F.col("bytes") + 1, exact=True),
            "ranks": millpond.quantile("bytes", [0.5, 0.99], k=300),
            "top": millpond.top_k("page", 3),
        },
        resolutions={"1 hour": None, "10 minutes": "1 day"},
        future_skew="1 hour",
        dedupe=("host", "2 days"),
        dead_letters="3 days",
    )
    source = spark.readStream.schema(SCHEMA).json(str(folder))
    assert millpond.parse_aggregate(text).program(source) == declared.program(source)
    (statement,) = parse_statements(text)
    assert statement.source is not None
    assert open_source(spark, statement.source).schema == source.schema
    wrapped = f"FROM rate VALUE SCHEMA '{SCHEMA}'"
    (statement,) = parse_statements(text.partition("FROM json")[0] + wrapped)
    assert statement.source is not None
    assert [f.name for f in open_source(spark, statement.source).schema] == ["at", "page", "bytes", "host"]


@pytest.mark.long
def test_a_statement_is_run_and_another_is_compared_with_it(spark, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    folder, pond = tmp_path / "in", tmp_path / "pond"
    write_days(folder, random.Random(4), 3)
    text = STATEMENT.format(folder=folder, schema=SCHEMA)
    new = plan(spark, text, pond)
    assert new.describe().startswith("+ views: a new aggregate")
    assert "3 days" in new.describe()
    assert not pond.exists()
    (job,) = new.run(trigger="available-now", partitions=2)
    assert job.wait_for_end(120)
    rows = spark.read.schema(SCHEMA).json(str(folder)).where("bytes < 90")
    whole = {
        r["page"]: (r["hits"], r["bytes"])
        for r in rows.groupBy("page").agg(F.count("*").alias("hits"), F.sum("bytes").alias("bytes")).collect()
    }
    with millpond.open(pond, replica_dir=tmp_path / "replica", wait_seconds=60) as opened:
        table = opened["views"]
        assert {page: (table.total(page=page)["hits"], table.total(page=page)["bytes"]) for page in whole} == whole

    same = plan(spark, text, pond)
    assert same.describe() == "= views: nothing changes"
    other = plan(spark, text.replace("bytes < 90", "bytes < 80").replace("AS bytes", "AS size"), pond)
    assert "    WHERE: bytes < 80 instead of bytes < 90" in other.describe().splitlines()
    assert "size" in other.describe()
    for changed, what in (
        (text.replace("sum(bytes)", "max(bytes)"), "Max"),
        (text.replace("KEY (page)", "KEY (host)"), "host"),
        (text.replace(", '1 day')", ")"), "1 day"),
        (text.replace("TIME at", "TIME at DEDUPE host FOR '2 days'"), "no ids of DEDUPE"),
        (text.replace("TIME at", "TIME at DEAD LETTERS NONE"), "dead_letter"),
    ):
        refused = plan(spark, changed, pond)
        assert refused.describe().startswith("! views"), changed
        assert what in refused.describe()
        with pytest.raises(MillpondError) as error:
            refused.run()
        assert error.value.condition == "DEFINITION_CHANGED"

    longer = plan(spark, text.replace("FOR '3 days'", "FOR '4 days'"), pond)
    assert "kept for 4 days instead of 3 days" in longer.describe()
    (job,) = longer.run(trigger="available-now")
    assert job.wait_for_end(120)
    assert plan(spark, text.replace("FOR '3 days'", "FOR '4 days'"), pond).describe() == "= views: nothing changes"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("sum(bytes)", "sum(octets)", 4),
        ("sum(bytes)", "sum(bytes", 4),
        ("bytes < 90", "octets < 90", 6),
        ("at timestamp", "at timestam", 5),
        ("json.", "nothing.", 5),
        ("TIME at", "TIME seconds", 2),
        ("'6 hours'", "'6 fortnights'", 2),
        ("sum(bytes)", "bytes", 4),
    ],
)
def test_what_spark_refuses_has_a_place(spark, tmp_path: Path, old: str, new: str, line: int) -> None:
    (tmp_path / "in").mkdir()
    text = STATEMENT.format(folder=tmp_path / "in", schema=SCHEMA).replace(old, new, 1)
    with pytest.raises(MillpondError) as error:
        plan(spark, text, tmp_path / "pond")
    assert error.value.condition == "INVALID_STATEMENT", error.value
    assert error.value.context["line"] == line


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(EXPRESSIONS), min_size=1, max_size=3))
def test_any_value_is_declared_or_refused(spark, tmp_path: Path, expressions: list[str]) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    values = ", ".join(f"{e} AS v{n}" for n, e in enumerate(expressions))
    text = STATEMENT.format(folder=tmp_path / "in", schema=SCHEMA).replace("count(*) AS hits, sum(bytes) AS bytes", values)
    try:
        plan(spark, text, tmp_path / "pond")
    except MillpondError as refused:
        assert refused.condition in ("INVALID_STATEMENT", "NOT_DERIVABLE"), refused


@pytest.mark.long
def test_the_command_shows_and_runs(tmp_path: Path) -> None:
    folder, pond, file = tmp_path / "in", tmp_path / "pond", tmp_path / "views.sql"
    rows = sum(len([r for r in rows if r["bytes"] < 90]) for rows in write_days(folder, random.Random(5), 2))
    text = STATEMENT.format(folder=folder, schema=SCHEMA).replace("views", "views VERSION 3")
    file.write_text(text)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "millpond.cli", "apply", str(file), str(pond), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    shown = run()
    assert shown.returncode == 0, shown.stderr
    assert "+ views.v3: a new aggregate" in shown.stderr
    assert not pond.exists()
    ran = run("--yes", "--trigger", "available-now", "--partitions", "2")
    assert ran.returncode == 0, ran.stderr
    with millpond.open(pond, replica_dir=tmp_path / "replica", wait_seconds=60) as opened:
        assert sum(row["hits"] for row in opened["views"].scan(limit=None) if row["resolution"] == "1 day") == rows
    file.write_text(text.replace("TIME at", "TIME at FUTURE SKEW '1 hour'"))
    refused = run("--yes", "--trigger", "available-now")
    assert refused.returncode != 0
    assert "DEFINITION_CHANGED" in refused.stderr
    file.write_text(text.replace("KEY", "KY"))
    refused = run()
    assert refused.returncode == 2
    assert "Line 2, column 34" in refused.stderr
