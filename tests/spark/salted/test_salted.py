"""A salted aggregation reads as the same aggregation without salts, batch by batch; functions that can't be merged are refused."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from inputs.merged_functions import AGGREGATES
from millpond.catalogue import create_job
from millpond.errors import MillpondError
from millpond.schema.definition.hot_keys import HotKey
from millpond.schema.types import atomic
from millpond.spark import derive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 4
SALTS = 5
SCHEMA = "page string, n long, x double, price decimal(9,2), big decimal(38,0), word string, at timestamp"


def write_batch(folder: Path, batch: int) -> None:
    """Write a batch: one page has half of the rows, some pages come in one batch only, every column has NULLs."""
    draw = random.Random(batch)
    rows: list[dict[str, Any]] = []
    for i in range(120):
        page = "/hot" if i % 2 else draw.choice(["/a", "/b", "/\u00fc", None, f"/only-{batch}"])
        row = {
            "page": page,
            "n": draw.randrange(-50, 50),
            "x": draw.choice([0.0, -0.0, 1e9, draw.random()]),
            "price": f"{draw.randrange(-99999, 99999) / 100:.2f}",
            "big": "9" * 37,
            "word": draw.choice(["", "a", "ab", "\u00e4", "z" * 40]),
            "at": f"2026-01-01T00:{5 * batch + i % 2:02d}:{i // 2:02d}Z",
        }
        rows.append({name: value for name, value in row.items() if name in ("page", "at") or draw.random() < 0.9})
    write_event_file(folder, batch, rows)


@pytest.fixture(scope="module")
def incoming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    for batch in range(BATCHES):
        write_batch(folder, batch)
    return folder


@pytest.fixture
def events(spark: SparkSession, incoming: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(incoming))


def aggregates() -> list[Any]:
    from pyspark.sql import functions as sf

    return [sf.expr(text).alias(f"c{number}") for number, text in enumerate(AGGREGATES)]


def run(df: DataFrame, pond: Path, job: str, **how: Any) -> None:
    with millpond.start(df, table="t", pond=pond / job, partitions=4, trigger="available-now", **how) as running:
        assert running.wait_for_end(timeout_seconds=240)


# The last digits of these depend on the order of the addends, also in Spark.  All others are equal to the last bit.
SUMS_OF_FLOATS = re.compile(r"(sum|avg)\(x\)|(stddev|var|covar|regr)_(?!count)\w+|(stddev|skewness|kurtosis|corr)\(.*")


def shown(rows: list[Any]) -> list[dict[str, Any]]:
    texts = {f"c{number}": text for number, text in enumerate(AGGREGATES)}
    return [{name: _comparable(texts.get(name, name), value) for name, value in row.items()} for row in rows]


def _comparable(text: str, value: Any) -> Any:
    """The values, with lists sorted: Spark promises no order."""
    if isinstance(value, list):
        return sorted(value, key=repr)
    if isinstance(value, float) and not math.isnan(value):
        return pytest.approx(value, rel=1e-12, abs=0) if SUMS_OF_FLOATS.match(text) else value
    return "NaN" if isinstance(value, float) else value


KEEP = millpond.Retention(history_batches=None)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], millpond.Pond]]:
    ponds: list[millpond.Pond] = []

    def open_(job: str) -> millpond.Pond:
        ponds.append(millpond.open(tmp_path / job, replica_dir=tmp_path / "home", retention=KEEP))
        return ponds[-1]

    yield open_
    for pond in ponds:
        pond.close()


@pytest.mark.long
@pytest.mark.parametrize("hot", [None, ["/hot", None]], ids=["all", "hot"])
def test_every_read_is_that_of_the_aggregation_without_salts(
    events: DataFrame, tmp_path: Path, opened: Callable[[str], millpond.Pond], hot: list[Any] | None
) -> None:
    run(millpond.salted(events, by=["page"], salts=SALTS, hot=hot).agg(*aggregates()), tmp_path, "salted")
    run(events.groupBy("page").agg(*aggregates()), tmp_path, "plain")
    salted, plain = (opened(job)["t"] for job in ("salted", "plain"))
    assert salted.columns == plain.columns
    assert salted.scan().batch == plain.scan().batch == BATCHES - 1
    for column in plain.columns:
        assert [row[column] for row in shown(plain.scan())] == [row[column] for row in shown(salted.scan())], column
    assert [row.changed_batch for row in salted.scan()] == [row.changed_batch for row in plain.scan()]
    assert salted.count() == plain.count()
    assert shown(plain.scan(reverse=True, limit=2)) == shown(salted.scan(reverse=True, limit=2))
    for row in plain.scan():
        assert shown([plain.get(page=row["page"])]) == shown([salted.get(page=row["page"])])
    assert shown(plain.to_arrow().to_pylist()) == shown(salted.to_arrow().to_pylist())


def test_every_batch_is_that_of_the_aggregation_without_salts(
    spark: SparkSession, tmp_path: Path, opened: Callable[[str], millpond.Pond]
) -> None:
    from pyspark.sql import functions as sf

    folder = tmp_path / "in"
    folder.mkdir()
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    windowed = events.withWatermark("at", "5 minutes")
    window = sf.window("at", "6 minutes")
    measured = [sf.count("*").alias("hits"), sf.max("n").alias("most"), sf.avg("price").alias("price")]
    jobs = {
        "salted": millpond.salted(windowed, by=["page", window], salts=SALTS, source=["at", "n"]).agg(*measured),
        "plain": windowed.groupBy("page", window).agg(*measured),
    }
    write_batch(folder, 0)
    tables: dict[str, Any] = {}
    for job, df in jobs.items():
        run(df, tmp_path, job)
        tables[job] = opened(job)["t"]
    began = tables["plain"].scan().batch
    for batch in range(1, BATCHES):
        write_batch(folder, batch)
    for job, df in jobs.items():
        run(df, tmp_path, job)
        opened(job)  # waits until the job has read everything
    salted, plain = ([dict(row) | {"final": row.final} for row in tables[job].scan()] for job in ("salted", "plain"))
    assert salted == plain
    assert {row["final"] for row in plain} == {True, False}
    newest = tables["plain"].scan().batch
    assert newest > BATCHES
    for at in range(began, newest):
        as_of = [tables[job].at(batch=at) for job in jobs]
        assert [dict(row) for row in as_of[0].scan()] == [dict(row) for row in as_of[1].scan()]
        assert as_of[0].count() == as_of[1].count()
    by_job = [[(c.kind, c.batch, c.old, c.new, c.final) for c in tables[job].changes(began)] for job in jobs]
    assert by_job[0] == by_job[1]
    assert {kind for kind, *_ in by_job[0]} == {"insert", "update", "expire"}


PARTITIONS = 6


@pytest.mark.long
def test_rows_of_a_map_task_that_ran_again_go_where_they_went_before(spark: SparkSession, tmp_path: Path) -> None:
    """The output of map tasks gets lost when some reduce tasks have read it.  The others read the output of the second run."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as sf

    folder = tmp_path / "in"
    folder.mkdir()
    rows = [json.dumps({"page": f"/{n % 7}", "n": n}) for n in range(4000)]
    for file in range(4):
        (folder / f"{file}.json").write_text("\n".join(rows[file::4]))
    truth = {f"/{page}": sum(1 for n in range(4000) if n % 7 == page) for page in range(7)}
    events = spark.readStream.schema("page string, n long").json(str(folder))

    def counted(df: DataFrame, job: str) -> dict[str, int]:
        lost = tmp_path / f"{job}-lost"
        hot_keys = tmp_path / job / "jobs" / "t" / "hot_keys.json"
        shuffles = str(spark.conf.get("spark.local.dir"))

        def lose_shuffles(batches: Any) -> Any:
            """Delete the output of the map tasks, once, in the last partition."""
            import glob
            import os
            from contextlib import suppress

            from pyspark import TaskContext

            context = TaskContext.get()
            if context is not None and context.partitionId() == PARTITIONS // 2:
                try:
                    os.close(os.open(lost, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    if os.path.exists(hot_keys):  # the list has changed by the time that map tasks run again
                        with open(f"{hot_keys}.next", "w") as file:
                            file.write('{"hot": [], "unnamed": [], "keys": []}')
                        os.rename(f"{hot_keys}.next", hot_keys)
                    for path in glob.glob(f"{shuffles}/**/shuffle_*", recursive=True):
                        with suppress(FileNotFoundError):  # Spark deletes those of earlier queries at the same time
                            os.remove(path)
            yield from batches

        def sink(batch: DataFrame, _: int) -> None:
            batch.mapInPandas(lose_shuffles, batch.schema).write.format("noop").mode("overwrite").save()

        with millpond.start(
            df, table="t", pond=tmp_path / job, partitions=PARTITIONS, trigger="available-now", sink=sink, job="t"
        ) as running:
            assert running.wait_for_end(timeout_seconds=240)
        assert lost.exists()
        with millpond.open(tmp_path / job, replica_dir="memory://") as pond:
            found: dict[str, int] = {}
            for row in pond["t"].scan():
                found[row["page"]] = found.get(row["page"], 0) + row["hits"]
        return found

    # With random salts, Spark sees that the second output differs, and fails the job.  So some output had been read.
    drawn = events.withColumn("drawn", sf.udf(lambda _: random.randrange(SALTS), "int").asNondeterministic()("n"))
    with pytest.raises(StreamingQueryException, match="indeterminate"):
        counted(drawn.groupBy("drawn", "page").agg(sf.count("*").alias("hits")), "drawn")
    salted = millpond.salted(events, by=["page"], salts=SALTS)
    assert counted(salted.agg(sf.count("*").alias("hits")), "salted") == truth
    # A live list of hot keys may change at any time, but not for a running batch.
    hashes = [row[0] for row in spark.range(7).select(sf.xxhash64(sf.concat(sf.lit("/"), sf.col("id").cast("string")))).collect()]
    create_job(tmp_path / "live", "t").write_hot_keys([HotKey(group, None, 0.2, 0) for group in hashes], {"page": atomic("string")})
    live = millpond.salted(events, by=["page"], salts=SALTS, hot=millpond.HotKeys(tmp_path / "live", "t"))
    assert counted(live.agg(sf.count("*").alias("hits")), "live") == truth


def refused(ask: Callable[[], Any]) -> MillpondError:
    with pytest.raises(MillpondError) as raised:
        ask()
    return raised.value


def test_what_cannot_be_merged_is_refused_by_name(events: DataFrame) -> None:
    for text, named in [
        ("first(n)", "first(n)"),
        ("histogram_numeric(n, 4)", "histogram_numeric"),
        ("tuple_sketch_agg_integer(n, n)", "tuple sketch of apache datasketches"),
        ("count_min_sketch(n, 0.5d, 0.5d, 1)", "count_min_sketch"),
        ("min(collate(word, 'UTF8_LCASE'))", "min("),
    ]:
        df = millpond.salted(events, by=["page"]).agg(*_named(text))
        error = refused(lambda df=df: derive(df, table="t"))
        assert error.condition == "NOT_DERIVABLE"
        assert named in error.message.lower()


def _named(text: str) -> list[Any]:
    from pyspark.sql import functions as sf

    return [sf.expr(text).alias("c")]


def test_what_would_see_parts_of_groups_is_refused(events: DataFrame) -> None:
    from pyspark.sql import functions as sf

    counts = millpond.salted(events, by=["page"]).agg(sf.count("*").alias("hits"))
    session = sf.session_window(sf.col("at"), "1 minute")
    sessions = millpond.salted(events.withWatermark("at", "1 minute"), by=["page", session]).agg(sf.count("*").alias("hits"))
    for df in (counts.where("hits > 3"), counts.limit(3), counts.withColumn("odd", sf.col("salt") + 1), sessions):
        assert refused(lambda df=df: derive(df, table="t")).condition == "NOT_DERIVABLE"
    assert derive(counts.select("page", "hits"), table="t").columns == ("page", "hits")


@pytest.mark.long
def test_another_number_of_salts_is_refused(events: DataFrame, tmp_path: Path) -> None:
    from pyspark.sql import functions as sf

    def job(salts: int) -> DataFrame:
        return millpond.salted(events, by=["page"], salts=salts).agg(sf.count("*").alias("hits"))

    run(job(3), tmp_path, "job")
    error = refused(lambda: millpond.start(job(4), table="t", pond=tmp_path / "job"))
    assert error.condition == "DEFINITION_CHANGED"
    assert "number of shards or salts" in error.hint
    run(job(3), tmp_path, "job")


def test_wrong_calls_are_refused(events: DataFrame) -> None:
    from pyspark.sql import functions as sf

    calls: list[dict[str, Any]] = [
        {"by": "page"}, {"by": []}, {"by": ["page"], "salts": 0}, {"by": ["page"], "salts": True}, {"by": ["page"], "salts": 5000},
        {"by": ["page"], "hot": "/hot"}, {"by": ["page"], "hot": ["/hot", 1]}, {"by": ["PAGE", "Salt"]},
        {"by": ["page"], "source": []}, {"by": ["page"], "source": ["offset"]}, {"by": [sf.col("page")], "hot": ["/hot"]},
    ]  # fmt: skip
    for how in calls:
        assert refused(lambda how=how: millpond.salted(events, **how)).condition == "INVALID_REQUEST"
    assert refused(lambda: millpond.salted(events.withColumn("salt", sf.lit(1)), by=["page"])).condition == "INVALID_REQUEST"
    drawn = events.withColumn("drawn", sf.rand())
    assert "source=" in refused(lambda: millpond.salted(drawn, by=["page"])).hint
    assert "source=" in refused(lambda: millpond.salted(drawn, by=["page"], source=["at", "drawn"])).hint
    millpond.salted(drawn, by=["page"], source=["at", "n"])
    mapped = events.withColumn("all", sf.array(sf.create_map("page", "n")))
    assert "all" in refused(lambda: millpond.salted(mapped, by=["page"])).message
    millpond.salted(mapped, by=["page"], source=["at"])
