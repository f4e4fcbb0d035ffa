"""Jobs that are rescaled and rolled back in their place go on as if nobody had stopped them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from inputs.event_file import write_event_file
from live_jobs.rocksdb_state import ROCKSDB, rocksdb
from millpond.catalogue import open_jobs
from savepoint.killed import run_killed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "counts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def feed(folder: Path, file: int, first: int | None = None) -> None:
    """A file of ten events, by default the next ones."""
    first = file * 10 if first is None else first
    write_event_file(folder / "in", file, [{"k": f"k{n % 7}", "v": n} for n in range(first, first + 10)])


def events(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))


def counts(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql import functions as sf

    return events(spark, folder).groupBy("k").agg(sf.count("*").alias("n"), sf.sum("v").alias("v"))


def run(df: DataFrame, folder: Path, **options: Any) -> None:
    with millpond.start(df, table=TABLE, pond=folder / "pond", trigger="available-now", partitions=2, **options) as job:
        assert job.wait_for_end(120)


def rows(folder: Path) -> dict[str, tuple[int, int]]:
    found = millpond.read_arrow(folder / "pond", TABLE).to_pylist()
    return {row["k"]: (row["n"], row["v"]) for row in found}


def expected(files: int) -> dict[str, tuple[int, int]]:
    numbers = range(files * 10)
    return {f"k{k}": (len(numbers[k::7]), sum(numbers[k::7])) for k in range(7)}


def test_a_job_is_rescaled_and_goes_on(spark: SparkSession, folder: Path) -> None:
    """From two to five to three partitions, once with a batch that has failed half done, and after kills of the command."""
    emitted: dict[int, list[int]] = {}

    def to(fail_at: int | None) -> Callable[[Any, int], None]:
        def tell(frame: Any, batch: int) -> None:
            emitted.setdefault(batch, []).append(sum(row["n"] for row in frame.collect()))
            if batch == fail_at:
                raise RuntimeError("the sink failed after it had the rows")

        return tell

    for file in range(3):
        feed(folder, file)
    run(counts(spark, folder), folder, sink=to(None))
    for file in (3, 4):
        feed(folder, file)
    with pytest.raises(Exception, match="the sink failed"):
        run(counts(spark, folder), folder, sink=to(3))
    done = millpond.plan_rescale(folder / "pond", 5).run()
    assert (done.batch, done.rows, rows(folder)) == (2, 7, expected(3))
    feed(folder, 5)  # the failed batch must not read it
    run(counts(spark, folder), folder, sink=to(None))
    assert rows(folder) == expected(6)
    assert emitted[3][0] == emitted[3][1]
    assert sorted(emitted) == list(range(6))
    checkpoint = folder / "pond/jobs" / TABLE / "checkpoint"
    conf = json.loads((checkpoint / "offsets/5").read_text().split("\n")[1])["conf"]
    assert conf["spark.sql.shuffle.partitions"] == "5"
    millpond.plan_rescale(folder / "pond", 3).run()
    feed(folder, 6)
    run(counts(spark, folder), folder, sink=to(None))
    assert rows(folder) == expected(7)
    assert len([path for path in (checkpoint / "state/0").iterdir() if path.name.isdecimal()]) == 3
    steps = run_killed(0, folder / "pond", "rescale", "4")
    seed = random.Random(3)
    for file in range(7, 11):  # killed near the end, where names change
        assert run_killed(steps - seed.randrange(1, 30), folder / "pond", "rescale", str(file + 1)) < 0
        feed(folder, file)
        run(counts(spark, folder), folder, sink=to(None))
        assert rows(folder) == expected(file + 1)
        assert not list(checkpoint.parent.glob("take-over*"))


@pytest.mark.long
def test_a_job_in_rocksdb_is_rescaled_and_goes_on(spark: SparkSession, folder: Path) -> None:
    """From two to five partitions, and to one."""
    checkpoint = folder / "pond/jobs" / TABLE / "checkpoint"
    with rocksdb(spark):
        feed(folder, 0)
        run(counts(spark, folder), folder)
    conf = json.loads((checkpoint / "offsets/0").read_text().split("\n")[1])["conf"]
    assert conf["spark.sql.streaming.stateStore.providerClass"] == ROCKSDB
    for file, number in ((1, 5), (2, 1)):  # the session names the other provider: the checkpoint decides
        assert millpond.plan_rescale(folder / "pond", number).run().rows == 7
        assert rows(folder) == expected(file)
        feed(folder, file)
        run(counts(spark, folder), folder)
        assert rows(folder) == expected(file + 1)
        stores = [path for path in (checkpoint / "state/0").iterdir() if path.name.isdecimal()]
        assert len(stores) == number
        assert all(list(path.glob("*.zip")) for path in stores)


@pytest.mark.long
def test_a_job_with_a_file_sink_is_rolled_back(spark: SparkSession, folder: Path) -> None:
    """Then it reads another input than before, and its sink has each row of its own history once."""

    def to_files(writer: Any) -> Any:
        return writer.format("json").option("path", str(folder / "out"))

    def go(files: range) -> None:
        for file in files:
            feed(folder, file)
        run(events(spark, folder).dropDuplicates(["v"]), folder, sink=to_files, output_mode="append")

    def listed() -> Counter[int]:
        return Counter(row["v"] for row in spark.read.schema("k string, v long").json(str(folder / "out")).collect())

    pond = folder / "pond"
    go(range(4))
    (job,) = open_jobs(pond)
    assert job.read_sink() == (True, f"file://{folder}/out")
    millpond.plan_savepoint(pond, "fourth", sink=folder / "out").run()
    go(range(4, 12))
    assert listed() == Counter(range(120))
    for entry in (folder / "out/_spark_metadata").iterdir():  # as Spark does after ten minutes; their checksums stay here
        if entry.name.isdecimal() and int(entry.name) < 9:
            entry.unlink()
    # To a batch after the compaction, from the sink's own log: then the same input gives the same rows.
    done = millpond.plan_rollback(pond, batch=10).run()
    assert listed() == Counter(range(110))
    assert len(done.unlisted) > 0
    go(range(0))
    assert listed() == Counter(range(120))
    # To a batch before it: then the input is another one, of which a part was there before.
    millpond.plan_rollback(pond, savepoint="fourth").run()
    assert listed() == Counter(range(40))
    for file in range(4, 12):
        (folder / "in" / f"{file:06d}.json").unlink()
    for file in range(4, 16):
        feed(folder, file, file * 5)  # 20 to 84, of which 20 to 39 are known
    go(range(0))
    assert listed() == Counter(range(85))
    assert len(list((folder / "out/_spark_metadata").glob("*.compact"))) == 1
