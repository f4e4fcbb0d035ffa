"""A job finds hot groups while it runs: its answers equal those of a job without salts, and hot rows are spread."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import millpond
from millpond.cli import main
from millpond.errors import CheckpointError, RequestError
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3000
SALTS = 6
PARTITIONS = 4


def page_of(n: int, hot: str | None) -> str | None:
    """A row's page; if one page is hot, half of the rows are of it."""
    return hot if n % 2 and hot != "" else f"/{n % 500}"


def write_batch(folder: Path, batch: int, hot: str | None, size: int) -> None:
    first = 10_000_000 * batch
    rows = [json.dumps({"site": "a", "page": page_of(n, hot), "n": n}) for n in range(first, first + size)]
    (folder / f".{batch}").write_text("\n".join(rows))
    (folder / f".{batch}").rename(folder / f"{batch:03}.json")


class Streams:
    """A job with live hot keys and one without salts, over the same files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.incoming = spark, folder, folder / "in"
        self.incoming.mkdir()
        self.batches = 0
        self.keys = millpond.HotKeys(folder / "pond", "hot", share=0.15)
        self.jobs: list[millpond.Job] = []

    def start(self) -> None:
        from pyspark.sql import functions as sf

        events = self.spark.readStream.schema("site string, page string, n long").json(str(self.incoming))
        aggregates = [sf.count("*").alias("hits"), sf.sum("n").alias("sum"), sf.collect_set("n").alias("all")]
        frames = {
            "hot": millpond.salted(events, by=["site", "page"], salts=SALTS, source=["n"], hot=self.keys).agg(*aggregates),
            "plain": events.groupBy("site", "page").agg(*aggregates),
        }
        self.jobs = [
            millpond.start(df, table=job, job=job, pond=self.folder / "pond", partitions=PARTITIONS) for job, df in frames.items()
        ]

    def feed(self, hot: str | None, rows: int = ROWS) -> None:
        """Run one more batch of each job."""
        write_batch(self.incoming, self.batches, hot, rows)
        for job in self.jobs:
            job.wait_for_batch(self.batches, timeout_seconds=120)
        self.batches += 1

    def stop(self) -> None:
        for job in self.jobs:
            job.stop()
        self.jobs = []
        # The progress of a batch comes after its commit, and writes the list.
        self.spark._jsc.sc().listenerBus().waitUntilEmpty(60_000)  # without a number, 10 seconds

    def salts_of(self, page: str | None) -> set[int]:
        """The parts of a page, from Spark's own reader."""
        found = self.spark.read.format("statestore").load(str(self.folder / "pond/jobs/hot/checkpoint"))
        rows = found.select("key.*").collect()
        return {row["salt"] for row in rows if row["page"] == page}


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, tmp_path)
    yield made
    made.stop()


def feed_until_known(streams: Streams, hot: str | None, rows: int = ROWS) -> None:
    """Run batches until this page alone is hot and has its name; the progress of a batch comes some time after its commit."""

    def is_known() -> bool:
        assert streams.keys.last_error is None
        if [key.key["page"] if key.key else "no name" for key in streams.keys.found()] == [hot]:
            return True
        streams.feed(hot, rows)
        time.sleep(0.5)  # so that progress comes between batches
        return False

    wait_until(is_known, f"the name of the hot group {hot!r}", seconds=240)


def shown(pond: Path, table: str) -> list[dict[str, Any]]:
    with millpond.open(pond, replica_dir="memory://", wait_seconds=60) as opened:
        opened.catch_up(60)
        return [{**row, "all": sorted(row["all"])} for row in opened[table].scan()]


@pytest.mark.long
def test_a_group_that_becomes_hot_is_split_while_the_job_runs(streams: Streams) -> None:
    """Later another group becomes hot, the first is forgotten, and NULL is hot, too; no answer changes."""
    streams.start()
    streams.feed("")
    streams.feed("")
    assert streams.keys.found() == []
    streams.feed("/hot")  # this batch finds it, the next one names and splits it
    wait_until(streams.keys.found, "a hot group")
    assert streams.salts_of("/hot") == {0}
    streams.feed("/hot")
    feed_until_known(streams, "/hot")
    (found,) = streams.keys.found()
    assert found.key == {"site": "a", "page": "/hot"}
    assert found.found_in_batch == 2
    assert 0.15 < found.share <= 0.5
    assert streams.salts_of("/hot") == set(range(SALTS))
    assert streams.salts_of("/2") == {0}
    assert shown(streams.folder / "pond", "hot") == shown(streams.folder / "pond", "plain")
    feed_until_known(streams, None, rows=5 * ROWS)
    streams.feed(None)
    assert streams.salts_of(None) == set(range(SALTS))
    assert shown(streams.folder / "pond", "hot") == shown(streams.folder / "pond", "plain")
    assert streams.keys.last_error is None


@pytest.mark.long
def test_a_job_that_starts_again_knows_its_hot_groups(streams: Streams) -> None:
    streams.start()
    feed_until_known(streams, "/hot")
    streams.stop()
    # Another program takes over the list; reading it needs no session.
    streams.keys = millpond.HotKeys(streams.folder / "pond", "hot", share=0.15)
    assert [key.key for key in streams.keys.found()] == [{"site": "a", "page": "/hot"}]
    printed = CliRunner().invoke(main.named("inspect"), [str(streams.folder / "pond" / "jobs" / "hot")])
    assert f"{'hot key':<12}" + '{"site":"a","page":"/hot"}: ' in printed.output
    streams.start()
    streams.feed("/hot")
    assert [key.key for key in streams.keys.found()] == [{"site": "a", "page": "/hot"}]
    assert shown(streams.folder / "pond", "hot") == shown(streams.folder / "pond", "plain")


@pytest.mark.long
def test_a_list_that_is_broken_while_the_job_runs_changes_no_answer(streams: Streams) -> None:
    """Not even a list that has a group twice."""
    streams.start()
    feed_until_known(streams, "/hot")
    path = streams.folder / "pond" / "jobs" / "hot" / "hot_keys.json"
    good = path.read_bytes()
    listed = json.loads(good)
    twice = json.dumps({**listed, "hot": listed["hot"] * 2, "unnamed": listed["hot"] * 2}).encode()
    for content in (b"", b"[1, 2", b"[{}, {}]", b'{"hot": "x"}', good[:-9], twice, None):
        if content is None:
            path.unlink()
        else:
            path.with_name("next").write_bytes(content)
            path.with_name("next").rename(path)
        streams.feed("/hot")
    streams.stop()
    path.write_bytes(b"{}")  # nobody writes the list any more
    streams.keys = millpond.HotKeys(streams.folder / "pond", "hot", share=0.15)
    streams.start()
    assert "CORRUPT_FILE" in str(streams.keys.last_error)
    streams.feed("/hot")
    assert shown(streams.folder / "pond", "hot") == shown(streams.folder / "pond", "plain")


TYPED = {
    "price": "cast('0.100000000000000001' as decimal(38,18))",
    "units": "cast(n % 1 + 9007199254740993 as bigint)",
    "ratio": "cast(0.1 as float)",
    "share": "double('NaN')",
    "day": "date '2026-03-29'",
    "at": "timestamp '2026-10-25 02:30:00.123456'",
    "local": "timestamp_ntz '2026-10-25 02:30:00.123456'",
    "raw": "x'00ff10'",
    "flag": "true",
    "many": "array(1.5bd, null)",
    "pair": "struct(1 as u, timestamp '1970-01-01 00:00:00' as v)",
    "nothing": "cast(null as decimal(5,2))",
}


def test_a_hot_key_of_any_type_is_what_get_takes(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as sf

    (tmp_path / "in").mkdir()
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        events = spark.readStream.schema("n long").json(str(tmp_path / "in"))
        typed = events.select("n", *[sf.expr(text).alias(name) for name, text in TYPED.items()])
        keys = millpond.HotKeys(tmp_path / "pond", "typed", share=0.5)
        counted = millpond.salted(typed, by=list(TYPED), salts=2, source=["n"], hot=keys).agg(sf.count("*").alias("hits"))
        with millpond.start(counted, table="typed", pond=tmp_path / "pond", partitions=2) as job:
            batches = itertools.count()

            def is_named() -> bool:  # Spark reports progress late, on a busy machine by several batches
                batch = next(batches)
                write_batch(tmp_path / "in", batch, None, 1000)
                job.wait_for_batch(batch, timeout_seconds=120)
                time.sleep(0.5)
                return any(key.key for key in keys.found())

            wait_until(is_named, "a hot group with its name", seconds=240)
        assert keys.last_error is None
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (found,) = millpond.HotKeys(tmp_path / "pond", "typed").found()
    with millpond.open(tmp_path / "pond", replica_dir="memory://", wait_seconds=60) as pond:
        (row,) = pond["typed"].scan()
        assert found.key is not None
        assert repr(found.key) == repr({name: row[name] for name in TYPED})
        assert repr(pond["typed"].get(**found.key)) == repr(row)
    printed = CliRunner().invoke(main.named("inspect"), [str(tmp_path / "pond" / "jobs" / "typed")])
    assert '"price":"0.100000000000000001"' in printed.output


def test_wrong_calls_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as sf

    for share in (0, 0.0001, 1.5, True, "0.1"):
        with pytest.raises(RequestError) as refused:
            millpond.HotKeys(tmp_path, "job", share=share)  # type: ignore[arg-type]
        assert refused.value.condition == "INVALID_REQUEST"
    keys = millpond.HotKeys(tmp_path, "job")
    assert keys.found() == []
    assert not list(tmp_path.iterdir()), "asking makes nothing"
    events = spark.readStream.format("rate").load()
    with pytest.raises(RequestError):
        millpond.salted(events, by=[sf.col("value")], hot=keys)
    (tmp_path / "jobs" / "job").mkdir(parents=True)
    (tmp_path / "jobs" / "job" / "hot_keys.json").write_text("{}")
    with pytest.raises(CheckpointError) as broken:
        keys.found()
    assert broken.value.condition == "CORRUPT_FILE"
