"""A changed query goes on with an evolved savepoint: what was there goes on, what is new begins with the next batch."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from millpond.errors import MillpondError
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from millpond.spark.upgrade.check import check_upgrade
from millpond.spark.upgrade.evolve import plan_evolve
from spark.derive.test_aggregate_functions import settings
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, n long, small int, price decimal(9,2), word string, at timestamp, batch int"
# Each gives the same value whatever the order of its rows.
AGGREGATES = [
    "count(*)", "count(n)", "sum(n)", "avg(small)", "min(n)", "max(n)", "min(word)", "max(word)", "sum(price)", "avg(price)",
    "max(struct(n, word))", "try_sum(n)", "bit_and(n)", "bit_xor(small)", "approx_count_distinct(n)",
    "approx_count_distinct(word, 0.2)", "sort_array(collect_set(word))", "sort_array(collect_list(n))",
    "percentile(n, 0.5)", "count(*) filter (where n > 0)", "sum(n) filter (where word = 'a')", "max(at)", "median(small)",
    "count_if(n > 3)", "mode(word, true)", "bool_or(n > 90)",
]  # fmt: skip
BEGIN, REST = 3, 5
STORE = "spark.sql.streaming.stateStore."
PROVIDERS = {
    "hdfs": {},
    "rocksdb": {STORE + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"},
    "changelog": {
        STORE + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        STORE + "rocksdb.changelogCheckpointing.enabled": "true",
    },
}


def rows_of(draw: random.Random, batch: int) -> list[dict[str, Any]]:
    """A batch; some keys come in some batches only, and every column has NULLs."""
    rows = []
    for i in range(40):
        row = {
            "k": draw.choice(["a", "b", "ü", None, f"only {batch}"]),
            "n": draw.randrange(-100, 100),
            "small": draw.randrange(-5, 5),
            "price": f"{draw.randrange(-9999, 9999) / 100:.2f}",
            "word": draw.choice(["", "a", "ab", "ö"]),
            "at": f"2026-01-01T00:{batch:02d}:{i:02d}Z",
        }
        rows.append({name: value for name, value in row.items() if name in ("k", "at") or draw.random() < 0.9} | {"batch": batch})
    return rows


class Upgrade:
    """One job, stopped after some batches; then another query over the same input."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()
        self._draw = random.Random(seed)

    def feed(self, batches: range) -> None:
        for batch in batches:
            write_event_file(self.folder / "in", batch, rows_of(self._draw, batch))

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))

    def run(self, df: DataFrame, checkpoint: Path, table: str | None = None) -> None:
        writer = df.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        if table is not None:
            millpond.publish(query, table=table)
        query.awaitTermination()

    def expected(self, keys: list[Any], old: list[str], new: list[str]) -> list[dict[str, Any]]:
        """Each aggregate over all batches if the old query had it, else over those after the savepoint."""
        from pyspark.sql import functions as sf

        everything = self.spark.read.schema(SCHEMA).json(str(self.folder / "in"))
        frames = everything.groupBy(*keys).agg(
            *(sf.expr(text if text in old else _only_later(text)).alias(f"c{n}") for n, text in enumerate(new))
        )
        rows: list[dict[str, Any]] = frames.toArrow().to_pylist()
        return rows


def _only_later(text: str) -> str:
    """The aggregate over the batches after the savepoint."""
    later = f"batch >= {BEGIN}"
    if " filter (where " in text:
        return text.replace("(where ", f"(where {later} and ")
    if text.startswith("sort_array("):
        return f"sort_array({text[11:-1]} filter (where {later}))"
    return f"{text} filter (where {later})"


def aggregated(df: DataFrame, keys: list[Any], texts: list[str]) -> DataFrame:
    from pyspark.sql import functions as sf

    return df.groupBy(*keys).agg(*(sf.expr(text).alias(f"c{n}") for n, text in enumerate(texts)))


CASES = [(seed, provider) for seed in range(12) for provider in PROVIDERS]


@pytest.mark.parametrize(("seed", "provider"), a_few(CASES, 1, long=6))
def test_aggregates_go_on_begin_and_are_dropped(spark: SparkSession, tmp_path: Path, seed: int, provider: str) -> None:
    draw = random.Random(seed)
    job = Upgrade(spark, tmp_path, seed)
    old = draw.sample(AGGREGATES, draw.randint(1, 8))
    stay = draw.sample(old, draw.randint(0, len(old)))
    new = [*stay, *draw.sample([a for a in AGGREGATES if a not in old], draw.randint(1, 6))]
    draw.shuffle(new)
    keys = draw.choice([["k"], ["k", "small"]])
    with settings(spark, **PROVIDERS[provider]):
        job.feed(range(BEGIN))
        job.run(aggregated(job.stream(), keys, old), tmp_path / "first", table="t")
        plan_savepoint(tmp_path / "first", "before").run()
        changed = aggregated(job.stream(), keys, new)
        plan = plan_evolve(changed, tmp_path / "first", "before", "after")
        said = plan.describe()
        evolved = plan.run()
        assert verify_savepoint(evolved).problems == ()
        assert evolved.manifest.parent == "before"
        plan_restore(tmp_path / "first", "after", tmp_path / "second").run()
        assert check_upgrade(changed, tmp_path / "second").exit_code == 0
        job.feed(range(BEGIN, REST))
        job.run(changed, tmp_path / "second")
    found = millpond.read_arrow(tmp_path / "second", "t").to_pylist()
    columns = [*keys, *(f"c{n}" for n in range(len(new)))]
    assert _sorted(found, columns) == _sorted(job.expected(keys, old, new), columns), (old, new, said)


def _sorted(rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
    return sorted(repr([_comparable(row[column]) for column in columns]) for row in rows)


def _comparable(value: Any) -> Any:
    return value.timestamp() if isinstance(value, dt.datetime) else value


@pytest.mark.long
def test_what_only_a_new_job_can_do_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    job = Upgrade(spark, tmp_path, 1)
    job.feed(range(BEGIN))
    job.run(aggregated(job.stream(), ["k"], ["count(*)"]), tmp_path / "first", table="t")
    plan_savepoint(tmp_path / "first", "before").run()
    others = {
        "another key": aggregated(job.stream(), ["word"], ["count(*)", "sum(n)"]),
        "more keys": aggregated(job.stream(), ["k", "small"], ["count(*)"]),
        "one more operator": aggregated(job.stream().dropDuplicates(["n"]), ["k"], ["count(*)"]),
        "another operator": job.stream().dropDuplicates(["k"]),
    }
    for what, df in others.items():
        with pytest.raises(MillpondError) as caught:
            plan_evolve(df, tmp_path / "first", "before", "after")
        assert caught.value.condition == "UNSUPPORTED", what
    same = plan_evolve(aggregated(job.stream(), ["k"], ["count(*)"]), tmp_path / "first", "before", "after")
    assert same.edits == ()
    assert "stays the same" in same.describe()


def test_without_words_for_the_state_the_old_query_is_needed(spark: SparkSession, tmp_path: Path) -> None:
    job = Upgrade(spark, tmp_path, 2)
    job.feed(range(BEGIN))
    old = aggregated(job.stream(), ["k"], ["sum(n)", "count(n)"])
    job.run(old, tmp_path / "first")
    plan_savepoint(tmp_path / "first", "before").run()
    new = aggregated(job.stream(), ["k"], ["count(n)", "max(n)", "sum(n)"])
    with pytest.raises(MillpondError) as caught:
        plan_evolve(new, tmp_path / "first", "before", "after")
    assert caught.value.condition == "UNSUPPORTED"
    plan = plan_evolve(new, tmp_path / "first", "before", "after", old=old)
    assert [line.split()[0] for line in plan.lines] == ["goes", "begins", "goes"]
    plan.run()
    plan_restore(tmp_path / "first", "after", tmp_path / "second").run()
    job.feed(range(BEGIN, REST))
    job.run(new, tmp_path / "second", table="t")
    found = millpond.read_arrow(tmp_path / "second", "t").to_pylist()
    columns = ["k", "c0", "c1", "c2"]
    texts = ["count(n)", "max(n)", "sum(n)"]
    assert _sorted(found, columns) == _sorted(job.expected(["k"], ["sum(n)", "count(n)"], texts), columns)


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two groups in one: counts and sums are added, of the others the greater one is taken."""

    def one(name: str, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if name.startswith("isEmpty"):
            return a and b
        return a + b if name.startswith(("count", "sum")) else max(a, b)

    return {name: one(name, value, second[name]) for name, value in first.items()}


KEYS = [(["k", "small"], ["k"]), (["k", "small"], ["small"]), (["k", "small", "word"], ["word", "k"]), (["k"], [])]


@pytest.mark.parametrize(("keys", "fewer", "provider"), a_few([(*keys, p) for keys in KEYS for p in PROVIDERS], 0, long=3))
def test_a_key_loses_columns(spark: SparkSession, tmp_path: Path, keys: list[str], fewer: list[str], provider: str) -> None:
    draw = random.Random(f"{keys} {fewer} {provider}")
    job = Upgrade(spark, tmp_path, draw.randrange(1000))
    old = ["count(*)", "sum(n)", "max(n)", "max(word)", "sum(price)"]
    new = [*draw.sample(old, 4), "min(n)"]
    draw.shuffle(new)
    with settings(spark, **PROVIDERS[provider]):
        job.feed(range(BEGIN))
        job.run(aggregated(job.stream(), keys, old), tmp_path / "first", table="t")
        plan_savepoint(tmp_path / "first", "before").run()
        changed = aggregated(job.stream(), fewer, new)
        with pytest.raises(MillpondError, match="rows have the key"):
            plan_evolve(changed, tmp_path / "first", "before", "after").run()
        with pytest.raises(MillpondError, match="ends with ZeroDivisionError"):
            plan_evolve(changed, tmp_path / "first", "before", "after", merge=lambda _a, _b: {"n": 1 // 0}).run()
        plan = plan_evolve(changed, tmp_path / "first", "before", "after", merge=merged)
        assert "key         " in plan.describe()
        assert verify_savepoint(plan.run()).problems == ()
        plan_restore(tmp_path / "first", "after", tmp_path / "second").run()
        job.feed(range(BEGIN, REST))
        job.run(changed, tmp_path / "second", table="t")
        with millpond.open(tmp_path / "second", replica_dir="memory://") as pond:
            rows = sorted((dict(row) for row in pond["t"].scan()), key=repr)
        assert rows == sorted(job.expected(fewer, old, new), key=repr)


@pytest.mark.long
@pytest.mark.parametrize("provider", a_few(PROVIDERS, 1, long=1))
def test_a_column_gets_a_wider_type(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    """`small` is a long from the next deploy on: what was counted of it as an int goes on."""
    job = Upgrade(spark, tmp_path, 5)
    texts = ["max(small)", "min(small)", "sum(small)", "count(small)", "avg(small)"]

    def stream(type_: str) -> DataFrame:
        schema = SCHEMA.replace("small int", f"small {type_}")
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))

    with settings(spark, **PROVIDERS[provider]):
        job.feed(range(BEGIN))
        job.run(aggregated(stream("int"), ["k"], texts), tmp_path / "first", table="t")
        plan_savepoint(tmp_path / "first", "before").run()
        wider = aggregated(stream("long"), ["k"], texts)
        plan = plan_evolve(wider, tmp_path / "first", "before", "after")
        plan.run()
        plan_restore(tmp_path / "first", "after", tmp_path / "second").run()
        job.feed(range(BEGIN, REST))
        job.run(wider, tmp_path / "second")
    found = millpond.read_arrow(tmp_path / "second", "t").to_pylist()
    columns = ["k", *(f"c{n}" for n in range(len(texts)))]
    assert _sorted(found, columns) == _sorted(job.expected(["k"], texts, texts), columns), plan.describe()
