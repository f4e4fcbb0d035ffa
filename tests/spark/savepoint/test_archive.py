"""A job at full speed whose checkpoint is deleted beneath it goes on from its archive, and ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from inputs.event_file import write_event_file
from millpond.savepoint.archive.archiver import archive
from millpond.savepoint.archive.layout import find_archive
from millpond.savepoint.restore import plan_restore
from millpond.savepoint.verify import verify_savepoint
from spark_files.golden import SCRIPTS, load_script
from suite.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

sys.path.append(str(SCRIPTS))  # where the script finds `cells`
_GOLDEN = load_script("make_operators")
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORE = "spark.sql.streaming.stateStore."
FILES = 30
# so many come only after the job has lost its checkpoint
LATER = 5
PROVIDERS = {
    "hdfs": {},
    "rocksdb": {STORE + "providerClass": _ROCKSDB},
    "rocksdb-changelog": {STORE + "providerClass": _ROCKSDB, STORE + "rocksdb.changelogCheckpointing.enabled": "true"},
    "rocksdb-format2": {
        STORE + "providerClass": _ROCKSDB,
        STORE + "rocksdb.changelogCheckpointing.enabled": "true",
        STORE + "checkpointFormatVersion": "2",
    },
}


@pytest.mark.long
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_lost_checkpoint(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    from pyspark.sql import functions as sf

    own = spark.newSession()
    settings = {
        "spark.sql.streaming.minBatchesToRetain": "20",
        STORE + "minDeltasForSnapshot": "3",
        STORE + "maintenanceInterval": "300ms",
        **PROVIDERS[provider],
    }
    for name, value in settings.items():
        own.conf.set(name, value)
    (tmp_path / "in").mkdir()

    def feed(*numbers: int) -> None:
        for number in numbers:
            rows = [{"page": f"/{n * 7 % 41}", "bytes": n} for n in range(number * 50, number * 50 + 50)]
            write_event_file(tmp_path / "in", number, rows)

    def views() -> DataFrame:
        stream = own.readStream.schema("page string, bytes long").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        return stream.groupBy("page").agg(sf.count("*").alias("hits"), sf.sum("bytes").alias("bytes"))

    def run(checkpoint: Path) -> StreamingQuery:
        return views().writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint)).start()

    feed(*range(FILES - LATER))
    query = run(tmp_path / "ck")
    wait_until((tmp_path / "ck/metadata").exists, "the begin of the job", unless=query.exception)
    with archive(tmp_path / "ck", tmp_path / "archive") as archiver:
        archiver.wait_for_batch(8, timeout_seconds=120)
        committed = query.lastProgress["batchId"]
        archiver.wait_for_batch(committed - 1, timeout_seconds=120)
        while (tmp_path / "ck").exists():
            shutil.rmtree(tmp_path / "ck", ignore_errors=True)
        with contextlib.suppress(Exception):  # it fails, or notices nothing until it is stopped
            query.stop()
    shutil.rmtree(tmp_path / "ck", ignore_errors=True)
    feed(*range(FILES - LATER, FILES))
    undisturbed = run(tmp_path / "undisturbed")
    undisturbed.processAllAvailable()
    undisturbed.stop()
    found = find_archive(tmp_path / "archive")
    assert found is not None
    batches = found.batches()
    newest = batches[-1]
    assert committed - 1 <= newest.batch < FILES - 1, "the job had no time to end"
    assert [batch.batch for batch in batches] == [*range(batches[0].batch, newest.batch + 1)], archiver.status()
    for batch in batches:
        assert verify_savepoint(found.savepoint(batch)).problems == ()
    plan_restore(tmp_path / "archive", None, tmp_path / "restored").run()
    with archive(tmp_path / "restored", tmp_path / "archive") as archiver:
        query = run(tmp_path / "restored")
        query.processAllAvailable()
        query.stop()
        archiver.wait_for_batch(FILES - 1, timeout_seconds=60)
    assert archiver.status().generation == newest.generation, "the same generation goes on"
    last = _GOLDEN.last_batch(tmp_path / "undisturbed")
    expected = ordered(_GOLDEN.read_batch(own, tmp_path / "undisturbed", last))
    assert any(expected.values())
    assert ordered(_GOLDEN.read_batch(own, tmp_path / "restored", _GOLDEN.last_batch(tmp_path / "restored"))) == expected
    # A batch from the middle, on which Spark runs the rest once more.
    plan_restore(tmp_path / "archive", f"batch-{newest.batch - 3}", tmp_path / "middle").run()
    query = run(tmp_path / "middle")
    query.processAllAvailable()
    query.stop()
    assert ordered(_GOLDEN.read_batch(own, tmp_path / "middle", _GOLDEN.last_batch(tmp_path / "middle"))) == expected


def ordered(state: dict[str, list[object]]) -> dict[str, list[str]]:
    """The rows of each store: their order means nothing."""
    return {store: sorted(map(repr, rows)) for store, rows in state.items()}
