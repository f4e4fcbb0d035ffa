"""Compute a part of an aggregate's state anew: Spark runs the same query over the same events.

1. Make a checkpoint beside the job's, with the log of its source, and with the plan of one batch:
   all events up to the offsets of the job's batch, with that batch's watermark.
2. Run the query over that checkpoint once.  Spark finds a batch that is planned and not committed,
   runs it, and stops.  So it reads exactly the events that are in the job's state, from the files
   as they are now, with the job's own source; it writes the state that the job would have if all
   of them had come at once, now; and it writes it as the job does.
3. To go on to a later batch of the job, plan that one, and run again: Spark reads the events between
   the two.

The job's own checkpoint is only read.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from millpond.checkpoint.log import CommittedBatch, read_batch, with_start
from millpond.checkpoint.operators import read_operator_files
from millpond.checkpoint.position import Batch
from millpond.checkpoint.restart_files import log_offset, source_files
from millpond.checkpoint.source_files import logged_files
from millpond.checkpoint.whole.store import WholeStore, read_whole_stores
from millpond.errors import CheckpointError, RequestError, SetupError
from millpond.savepoint.restore import METADATA, encode_metadata
from millpond.savepoint.rewrite.hdfs_state import HdfsState
from millpond.savepoint.rewrite.rewrite import open_state
from millpond.savepoint.rewrite.rocksdb_state import RocksDbState
from millpond.settings import FileBounds
from millpond.spark.aggregate.compile import COPY, IN_PART
from millpond.spark.aggregate.declare import Aggregate
from millpond.spark.past.check import one_line
from millpond.spark.reprocess.part import Part
from millpond.spark.shards import quoted
from millpond.spark.start import session_conf
from millpond.storage import Storage
from millpond.storage.copying import copy_file
from millpond.storage.names import hadoop_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BOUNDS = FileBounds()
# A file that is broken must be an error: its events would be missing from the state.
_STRICT = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
_IDS = 1  # the operator of remembered ids; the buckets are operator 0


class Recomputed:
    """The state of a part, computed anew up to a batch of the job.

    batch:  of the job, whose offsets it has; None before the first run
    """

    def __init__(self, aggregate: Aggregate, source: DataFrame, part: Part, job: Storage, work: Storage) -> None:
        self.batch: CommittedBatch | None = None
        self.now_ms = 0
        self._aggregate, self._source, self._part, self._job = aggregate, source, part, job
        self._checkpoint = work.folder("checkpoint")
        self._runs = 0

    def run(self, batch: CommittedBatch) -> None:
        """Compute it up to a batch.

        Raises:  JOB_FAILED if Spark can't read the source or run the query; INVALID_REQUEST if
                 copies of an event differ; what the storages raise.
        """
        self._plan(batch)
        declared = self._aggregate.declared
        part = self._part.condition(declared.event_time)
        if part is None and declared.dedupe is not None:
            from pyspark.sql import functions as sf

            part = sf.lit(True)
        query = self._aggregate.on_part(self._source, self._checkpoint.uri, part)
        self._check_files(batch)
        self._run(query)
        self._check_files(batch)
        self._runs, self.batch = self._runs + 1, batch
        if declared.dedupe is not None:
            self._check_copies(declared.dedupe.column)

    def open(self, store: tuple[int, str]) -> HdfsState | RocksDbState:
        """The rows of a store.  Raises what reading them raises."""
        found, batch = self._store(store)
        return open_state(self._checkpoint, batch, found)

    def _store(self, store: tuple[int, str]) -> tuple[WholeStore, CommittedBatch]:
        batch = read_batch(self._checkpoint, Batch(self._runs - 1))
        stores = (s for o in read_operator_files(self._checkpoint, batch.batch) for s in read_whole_stores(self._checkpoint, o))
        return next(s for s in stores if (s.operator.operator, s.name) == store), batch

    def _plan(self, batch: CommittedBatch) -> None:  # 1, 3
        for name in self._job.names("sources"):
            there = self._checkpoint.sizes(f"sources/{name}")
            for file in source_files(self._job, name, batch.offsets):
                if file.path.rpartition("/")[2] not in there:
                    copy_file(self._job, file.path, self._checkpoint, file.path, most_bytes=file.most_bytes)
        path = f"offsets/{batch.batch}"
        self.now_ms = max(time.time_ns() // 1_000_000, self.now_ms + 1)
        plan = with_start(self._job.read(path, _BOUNDS.log_bytes), path, self.now_ms, batch.planned_watermark_ms)
        self._checkpoint.write(f"offsets/{self._runs}", plan)
        if not self._runs:
            self._checkpoint.write(METADATA, encode_metadata(str(uuid.uuid4())))

    def _run(self, query: DataFrame) -> None:  # 2
        from pyspark.errors import PySparkException

        writer = query.writeStream.outputMode("update").format("noop").trigger(once=True)
        try:
            with session_conf(query.sparkSession, _STRICT):
                running = writer.option("checkpointLocation", hadoop_uri(self._checkpoint.uri)).start()
            try:
                running.awaitTermination()
            finally:
                running.stop()
        except PySparkException as failed:
            raise SetupError(
                "JOB_FAILED",
                f"Spark can't compute {self._aggregate.table} anew: {one_line(failed)}",
                hint="All events that are in the state must still be there: restore what is gone.",
            ) from failed
        if self._checkpoint.stamp(f"commits/{self._runs}") is None:
            raise CheckpointError(
                "UNSUPPORTED",
                f"Spark hasn't run the batch that was planned for {self._aggregate.table}.",
                hint="Report this with the job's source and Spark version.",
            )

    def _check_files(self, batch: CommittedBatch) -> None:
        """Raise JOB_FAILED if a file that the job has read is gone: Spark's file source passes over it silently."""
        spark = self._source.sparkSession
        jvm, conf = spark._jvm, spark._jsparkSession.sessionState().newHadoopConf()
        for name, offset in batch.offsets.items():
            upto = log_offset(offset)
            before = None if self.batch is None else log_offset(self.batch.offsets.get(name))
            for path, entry in () if upto is None else logged_files(self._checkpoint, name, upto=upto):
                if before is not None and entry <= before:
                    continue
                file = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path))
                if not file.getFileSystem(conf).exists(file):
                    raise SetupError(
                        "JOB_FAILED",
                        f"{self._aggregate.table} can't be computed anew: its source's file {path} is gone.",
                        hint="Put that file back where it was, or one without its events.",
                        path=path,
                    )

    def _check_copies(self, column: str) -> None:
        """Raise INVALID_REQUEST if an id stands for different events: which one counts depends on which came first."""
        from pyspark.sql import functions as sf

        state = self._source.sparkSession.read.format("statestore").option("operatorId", _IDS)
        keys = state.load(hadoop_uri(self._checkpoint.uri)).select("key.*")
        of_part = sf.max(sf.col(COPY).startswith(IN_PART))
        known = keys.where(sf.col(quoted(column)).isNotNull()).groupBy(quoted(column))
        found = known.agg(sf.count("*").alias("copies"), of_part.alias("counts")).where("copies > 1 AND counts").limit(1).collect()
        if found:
            raise RequestError(
                "INVALID_REQUEST",
                f"{self._aggregate.table} can't be computed anew: {column} {found[0][0]!r:.100} stands for events that differ, and "
                "which of them counts depends on which came first.",
                hint="Correct the source, so that copies of an event are equal; or choose another span of time.",
            )
