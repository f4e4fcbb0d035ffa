"""A sink that remembers the query's id and its batches skips batches that a repair undoes, unless the copy has a new id.

If it skips a batch without running it, Spark fails: the state of that batch isn't written.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

import millpond
from suite.sizes import a_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 6


class RememberingSink:
    """Writes the counts of each batch once, by the id of the query and the number of the batch.

    runs_all:  whether it runs a batch that it then skips
    """

    def __init__(self, file: Path, *, runs_all: bool) -> None:
        self.file, self.runs_all = file, runs_all
        with closing(sqlite3.connect(file)) as made, made:
            made.execute("CREATE TABLE seen (query TEXT, batch INTEGER, PRIMARY KEY (query, batch))")
            made.execute("CREATE TABLE counts (k TEXT PRIMARY KEY, n INTEGER)")

    def write(self, rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        with closing(sqlite3.connect(self.file)) as opened, opened:
            is_new = bool(opened.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (query, batch)).rowcount)
            found = [(row["k"], row["count"]) for row in rows.collect()] if is_new or self.runs_all else []
            opened.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?)", found if is_new else [])

    def counts(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.file)) as opened:
            return dict(opened.execute("SELECT k, n FROM counts"))

    def delete(self, keys: set[str]) -> None:
        with closing(sqlite3.connect(self.file)) as opened, opened:
            opened.executemany("DELETE FROM counts WHERE k = ?", [(key,) for key in keys])


@pytest.mark.parametrize(("new_id", "runs_all"), a_few([(True, False), (False, True), (False, False)], 1))
def test_a_sink_that_remembers_takes_the_undone_batches_under_a_new_id_only(
    spark: SparkSession, tmp_path: Path, new_id: bool, runs_all: bool
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    sink = RememberingSink(tmp_path / "sink.db", runs_all=runs_all)
    source.mkdir()
    for batch in range(BATCHES):
        (source / f"{batch}.json").write_text("".join(json.dumps({"k": k}) + "\n" for k in ("every", f"of batch {batch}")))

    def run(checkpoint: Path) -> None:
        rows = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).json(str(source)).groupBy("k").count()
        writer = rows.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).foreachBatch(sink.write).start().awaitTermination()

    run(checkpoint)
    whole = {"every": BATCHES, **{f"of batch {batch}": 1 for batch in range(BATCHES)}}
    assert sink.counts() == whole
    for file in checkpoint.glob(f"state/0/*/{BATCHES - 1}.*"):  # that of the batch before the newest
        file.unlink()
    plan = millpond.plan_repair(checkpoint, to=tmp_path / "repaired", new_id=new_id)
    assert plan.undone == (BATCHES - 2, BATCHES - 1)
    assert ("--new-id" in plan.describe()) is not new_id
    sink.delete({f"of batch {batch}" for batch in range(BATCHES - 2, BATCHES)})
    plan.run()
    if not new_id and not runs_all:
        with pytest.raises(StreamingQueryException):
            run(tmp_path / "repaired")
        return
    run(tmp_path / "repaired")
    lost = set() if new_id else {f"of batch {batch}" for batch in range(BATCHES - 2, BATCHES)}
    assert sink.counts() == {k: n for k, n in whole.items() if k not in lost}
