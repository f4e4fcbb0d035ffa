"""A real log in any order gives the same tables: one day of a web server, declared as an aggregate."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import millpond
from inputs.real_log import NO_WHOLE_LOG, WHOLE_LOG, first_lines
from suite.sizes import a_few

RESOLUTIONS = {"1 minute": "2 hours", "1 hour": "6 hours", "1 day": None}
SCHEMA = "host string, logname string, time long, method string, url string, response int, bytes long"
FILES = 12


def table_of(spark, lines: list[bytes], folder: Path) -> tuple[dict, int]:
    """The buckets of a job that reads these lines in this order, and how many events came too late for a resolution."""
    from pyspark.sql import functions as F

    (folder / "in").mkdir(parents=True)
    each = -(-len(lines) // FILES)
    for number in range(FILES):
        (folder / "in" / f"{number:02}.tsv").write_bytes(b"".join(lines[number * each : (number + 1) * each]))
    source = spark.readStream.schema(SCHEMA).options(sep="\t", maxFilesPerTrigger=1).csv(str(folder / "in"))
    views = millpond.Aggregate(
        "views",
        key=["url"],
        event_time="at",
        values={"hits": F.count("*"), "bytes": F.sum("bytes"), "hosts": F.collect_set("host")},
        resolutions=RESOLUTIONS,
    )
    source = source.withColumn("at", F.timestamp_seconds("time"))
    with millpond.start(views, source, pond=folder / "pond", trigger="available-now") as job:
        assert job.wait_for_end(600)
    with millpond.open(folder / "pond", wait_seconds=60) as pond:
        rows = pond["views"].scan()
        end_ms = rows.position.watermark_ms
        buckets, late = {}, 0
        for row in rows:
            if row["dead_letter"] is not None:
                late += row["hits"]
            elif row["expires_at"] is None or row["expires_at"].timestamp() * 1000 > end_ms:
                bucket = (row["url"], row["resolution"], row["bucket_start"])
                assert bucket not in buckets
                buckets[bucket] = (row["hits"], row["bytes"], sorted(row["hosts"]))
        return buckets, late


@pytest.mark.parametrize("whole", a_few([False, True], 1, long=2))
@pytest.mark.long
def test_a_real_log_in_random_order_gives_the_same_tables(spark, tmp_path: Path, whole: bool) -> None:
    if whole and not WHOLE_LOG.exists():
        pytest.skip(NO_WHOLE_LOG)
    _, *lines = (WHOLE_LOG.read_bytes() if whole else first_lines()).splitlines(keepends=True)
    in_order, _ = table_of(spark, lines, tmp_path / "in order")
    random.Random(5).shuffle(lines)
    shuffled, late = table_of(spark, lines, tmp_path / "shuffled")
    assert shuffled == in_order
    assert late > 0, "many come after their minutes have expired"
    assert sum(hits for (_, name, _), (hits, _, _) in shuffled.items() if name == "1 day") == len(lines)
