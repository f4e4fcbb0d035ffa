"""Edited savepoints in use: Spark reads the rows that a function made, and goes on from them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from live_jobs.interrupted import NAMES
from millpond.savepoint.create import plan_savepoint
from millpond.savepoint.restore import plan_restore
from savepoint.test_edit import REFUSED
from savepoint.test_golden_cells import rows_of
from spark.savepoint.test_rewrite import Case
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

StateRow = millpond.StateRow
EDITABLE = [name for name in NAMES if not any(word in name for word in REFUSED)]
JOINS, AVRO = ([name for name in EDITABLE if word in name] for word in ("join-", "-avro"))
OTHERS = [name for name in EDITABLE if name not in (*JOINS, *AVRO)]
# Spark keeps more than one row under a key of these.
KEYS_STAY = ("transform", "session", "limit")


def turned(value: Any) -> Any:
    """Another value of the same type, of which this makes the first one again."""
    if isinstance(value, str):
        return value[::-1]
    return ~value if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.mark.long
@pytest.mark.parametrize("name", [*a_few(OTHERS, 1, long=2), *a_few(JOINS, 0, long=1), *a_few(AVRO, 0, long=1)])
def test_what_was_edited_there_and_back_goes_on_as_if_nothing_had_happened(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """In between Spark reads as many rows, with other values."""
    case = Case(spark, tmp_path, name)

    def turn(row: StateRow) -> StateRow:
        if not any(word in name for word in KEYS_STAY):
            row.key = {column: turned(value) for column, value in row.key.items()}
        every = row.value if isinstance(row.value, list) else [row.value]
        for value in every:
            value |= {column: turned(v) for column, v in value.items()}
        return row

    place, first = case.job.checkpoint, f"run-{case.job.runs}"
    millpond.plan_edit_savepoint(place, first, "there", edit=turn).run()
    millpond.plan_edit_savepoint(place, "there", "back", edit=turn).run()
    plan_restore(place, "there", tmp_path / "there").run()
    plan_restore(place, "back", tmp_path / "back").run()
    there, before = case.state(tmp_path / "there", case.batch), case.before
    assert {store: len(rows) for store, rows in there.items()} == {store: len(rows) for store, rows in before.items()}
    assert there != before
    assert rows_of(tmp_path / "back", case.batch) == rows_of(place, case.batch)
    case.run(tmp_path / "back")


PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


class Hits:
    """A job that counts and sums per page, over files of events."""

    def __init__(self, spark: SparkSession, folder: Path, provider: str) -> None:
        self.spark, self.folder, self.events, self.files = spark.newSession(), folder, [], 0
        self.spark.conf.set(PROVIDER, PROVIDERS[provider])
        (folder / "in").mkdir()

    def feed(self, pages: list[str]) -> None:
        events = [{"page": page, "n": n} for n, page in enumerate(pages)]
        write_event_file(self.folder / "in", self.files, events)
        self.files += 1

    def run(self, checkpoint: Path) -> dict[str, tuple[int, int]]:
        from pyspark.sql import functions as sf

        df = self.spark.readStream.schema("page string, n long").option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))
        counted = df.groupBy("page").agg(sf.count("*").alias("hits"), sf.sum("n").alias("total"))
        last: dict[str, tuple[int, int]] = {}

        def keep(batch: DataFrame, _: int) -> None:
            last.clear()
            last.update({row["page"]: (row["hits"], row["total"]) for row in batch.collect()})

        query = (
            counted.writeStream.outputMode("complete").option("checkpointLocation", str(checkpoint)).foreachBatch(keep)
        ).start()
        query.processAllAvailable()
        query.stop()
        return last


@pytest.mark.parametrize("provider", ["hdfs", pytest.param("rocksdb", marks=pytest.mark.long)])
def test_pages_get_one_spelling_and_the_job_goes_on(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    """Random pages, spelt in many ways: at the end as if all had been spelt in one way, less a page that is erased."""
    some = random.Random(provider)
    pages = [some.choice(["a", "b", "c", "d", "e"]) * some.randint(1, 9) for _ in range(60)]
    spelt = ["".join(some.choice([letter, letter.upper()]) for letter in page) for page in some.choices(pages, k=900)]
    hits = Hits(spark, tmp_path, provider)
    for begin in range(0, 600, 200):
        hits.feed(spelt[begin : begin + 200])
    hits.run(tmp_path / "job")
    plan_savepoint(tmp_path / "job", "first").run()
    erased = spelt[0].lower()

    def edit(row: StateRow) -> StateRow | None:
        page = row.key["page"].lower()
        return None if page == erased else StateRow(row.table, {"page": page}, row.value)

    def merge(first: StateRow, second: StateRow) -> StateRow:
        return StateRow(first.table, first.key, {name: first.value[name] + second.value[name] for name in first.value})

    plan = millpond.plan_edit_savepoint(tmp_path / "job", "first", "one", edit=edit, merge=merge)
    (counts,) = plan.preview().values()
    kinds = set(spelt[:600])
    assert counts.rows == len(kinds)
    assert counts.removed == len({page for page in kinds if page.lower() == erased})
    assert counts.rows - counts.removed - counts.merged == len({page.lower() for page in kinds}) - 1
    plan.run()
    plan_restore(tmp_path / "job", "one", tmp_path / "one").run()
    hits.feed([page.lower() for page in spelt[600:]])
    found = hits.run(tmp_path / "one")
    expected: dict[str, Counter[str]] = {}
    for i, page in enumerate(spelt):
        if i < 600 and page.lower() == erased:
            continue
        group = expected.setdefault(page.lower(), Counter())
        group["hits"] += 1
        group["total"] += i % 200 if i < 600 else i - 600
    assert found == {page: (group["hits"], group["total"]) for page, group in expected.items()}


def test_a_source_goes_on_where_the_savepoint_says(spark: SparkSession, tmp_path: Path) -> None:
    """The offset of the file source is taken back by one batch: its last file is read again, and counts twice."""
    hits = Hits(spark, tmp_path, "hdfs")
    for pages in (["a"], ["a", "b"], ["b", "c"]):
        hits.feed(pages)
    assert {page: n for page, (n, _) in hits.run(tmp_path / "job").items()} == {"a": 2, "b": 2, "c": 1}
    first = plan_savepoint(tmp_path / "job", "first").run()
    assert first.manifest.offsets == {"0": {"logOffset": 2}}
    millpond.plan_edit_savepoint(tmp_path / "job", "first", "again", offsets={"0": {"logOffset": 1}}).run()
    plan_restore(tmp_path / "job", "again", tmp_path / "again").run()
    assert {page: n for page, (n, _) in hits.run(tmp_path / "again").items()} == {"a": 2, "b": 3, "c": 2}
