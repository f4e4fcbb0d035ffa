"""A user's file as `millpond check-upgrade` takes it: what it must define, and what it may not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from inputs.event_file import write_event_file
from millpond.cli import main
from millpond.errors import MillpondError
from millpond.spark.upgrade.pipeline import load_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAD = """
from pyspark.sql import functions as sf
from beside import INPUT

def stream(spark):
    return spark.readStream.schema("page string, a long, b long").json(INPUT)
"""
OLD = HEAD + 'def query(spark):\n    return stream(spark).groupBy("page").agg(sf.sum("a"), sf.sum("b"))\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    write_event_file(tmp_path / "in", 0, [{"page": "/", "a": 1, "b": 2}])
    (tmp_path / "beside.py").write_text(f"INPUT = {str(tmp_path / 'in')!r}\n")
    (tmp_path / "old.py").write_text(OLD)
    return tmp_path


def refused(text: str, spark: SparkSession, folder: Path, name: str = "new.py") -> str:
    (folder / "new.py").write_text(text)
    with pytest.raises(MillpondError) as error:
        load_pipeline(str(folder / name), spark)
    return f"{error.value.condition}: {error.value.message}"


def test_what_a_file_must_define(spark: SparkSession, folder: Path) -> None:
    found = load_pipeline(str(folder / "old.py"), spark)
    assert found.df.columns == ["page", "sum(a)", "sum(b)"]
    assert found.output_mode is None
    (folder / "two.py").write_text(OLD + 'output_mode = "complete"\ndef other(spark):\n    return stream(spark).select("a")\n')
    other = load_pipeline(f"{folder}/two.py:other", spark)
    assert (other.df.columns, other.output_mode) == (["a"], "complete")
    assert "no function 'query'" in refused("x = 1", spark, folder)
    assert "no function 'views'" in refused(OLD, spark, folder, "new.py:views")
    assert "ZeroDivisionError" in refused("1 / 0", spark, folder)
    assert "SyntaxError" in refused("def", spark, folder)
    assert "SystemExit" in refused("raise SystemExit(0)", spark, folder)
    assert "KeyError" in refused("def query(spark):\n    return {}[1]", spark, folder)
    assert "no streaming DataFrame" in refused("def query(spark):\n    return spark.range(3)", spark, folder)
    assert "no streaming DataFrame" in refused("def query(spark):\n    pass", spark, folder)
    assert refused(OLD, spark, folder, "no.py").startswith("FILE_MISSING")


def test_each_file_imports_what_lies_beside_it(spark: SparkSession, folder: Path) -> None:
    """Old and new code often have the same names, in two folders."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "beside.py").write_text(f"INPUT = {str(folder / 'in')!r}\nCOLUMN = {name!r}\n")
        text = (
            HEAD
            + 'def query(spark):\n    from beside import COLUMN\n    return stream(spark).groupBy("page").agg(sf.max(COLUMN))\n'
        )
        (folder / name / "job.py").write_text(text)
    loaded = [load_pipeline(str(folder / name / "job.py"), spark).df.columns[1] for name in ("a", "b", "a")]
    assert loaded == ["max(a)", "max(b)", "max(a)"]


def test_a_file_that_starts_its_query_is_refused_before_anything_runs(spark: SparkSession, folder: Path) -> None:
    checkpoint = folder / "real"
    start = f'.writeStream.format("noop").outputMode("update").option("checkpointLocation", {str(checkpoint)!r}).start()\n'
    at_import = OLD + "from pyspark.sql import SparkSession\nquery(SparkSession.active())" + start
    in_function = HEAD + 'def query(spark):\n    return stream(spark).groupBy("page").count()' + start
    for text in (at_import, in_function):
        assert "starts a query" in refused(text, spark, folder)
        assert not checkpoint.exists()
    assert load_pipeline(str(folder / "old.py"), spark).df.isStreaming  # and afterwards starts work again
    query = load_pipeline(str(folder / "old.py"), spark).df.writeStream.format("noop").outputMode("update")
    started = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    started.awaitTermination()


def test_the_exit_code_says_the_verdict(spark: SparkSession, folder: Path) -> None:
    old = load_pipeline(str(folder / "old.py"), spark).df
    writer = old.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(folder / "ck"))
    writer.trigger(availableNow=True).start().awaitTermination()

    def check(aggregates: str, *words: str, before: bool = True) -> Result:
        text = HEAD + f'def query(spark):\n    return stream(spark).groupBy("page").agg({aggregates})\n'
        (folder / "new.py").write_text(text)
        more = ["--old", str(folder / "old.py")] if before else []
        return CliRunner().invoke(main, ["check-upgrade", str(folder / "ck"), str(folder / "new.py"), *more, *words])

    same, swapped = 'sf.sum("a").alias("x"), sf.sum("b")', 'sf.sum("b"), sf.sum("a")'
    assert check(same).exit_code == 0
    assert check(same).stdout == "ck, after batch 0: compatible\n"
    assert check(same, before=False).exit_code == 10
    assert check(swapped).exit_code == 11
    assert "Sum(a) has become Sum(b)" in check(swapped).stdout
    assert check('sf.sum("a"), sf.sum("b"), sf.count("*")').exit_code == 12
    refused = check(same, "--output-mode", "append", "--json")
    assert refused.exit_code == 13
    (finding,) = json.loads(refused.stdout)["findings"]
    assert finding["spark_error"] == "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"
    partitions = check(same, "--conf", "spark.sql.shuffle.partitions=7")
    assert partitions.exit_code == 0
    assert "spark.sql.shuffle.partitions is 7 in this session; the checkpoint keeps 2." in partitions.stdout
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert check(same, "--conf", "x").exit_code == 2
    words = ["check-upgrade", str(folder / "no"), str(folder / "old.py")]
    assert CliRunner().invoke(main, words).exit_code == 3
