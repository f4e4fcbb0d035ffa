"""Hot groups, found while the job runs: a sketch counts them in each batch; later batches split them.

A batch's plan has three additions:

1. The hash of each row's group.
2. The list of hot groups, from a scalar subquery.  Spark runs it once before the batch's tasks and
   passes it to all of them, also to those that run again.
3. An observed metric with a sketch of the most frequent groups (`approx_top_k`), which comes back
   with the batch's progress.

So all rows stay in the JVM, without another shuffle.  That is why the list lies in a file and not
in Spark's state.  The list may change between two attempts of a batch without changing an answer:
reads merge the parts, so a row may be in any of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.catalogue import HOT_KEYS, create_job, job_of
from millpond.errors import CheckpointError, MillpondError, RequestError
from millpond.schema.definition.hot_keys import HotKey
from millpond.schema.types import parse_type
from millpond.spark.salted.hot_list import HotList
from millpond.storage.names import hadoop_uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

_SCHEMA = "hot array<bigint>, unnamed array<bigint>"
# Columns that only a batch's plan has; the spaces tell them from a user's.
_HASH, _LIST = "millpond hash of group", "millpond hot groups"
# Keeps all digits of a time, and names its zone.
_EXACT_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
# The sketch has room for so many times the groups that can be hot at once.
_LOOKED_FOR, _TRACKED = 2, 10
_MOST_LOOKED_FOR = 1000

_listeners: dict[str, tuple[SparkSession, StreamingQueryListener]] = {}
"""Listeners with their sessions, by the name of the metric."""


class HotKeys:
    """The hot groups of one job.

    `salted(…, hot=HotKeys(…))` finds them; reading them needs no Spark.

    pond:   folder of jobs; the list is a file in the job's folder
    job:    the job's name, as for `start`
    share:  a group is hot if it gets at least this share of the newest rows (some five batches),
            from 0.001 to 1
    Raises:  INVALID_REQUEST, INVALID_NAME.
    """

    def __init__(self, pond: str | Path, job: str, *, share: float = 0.05) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.001 <= share <= 1:
            raise RequestError("INVALID_REQUEST", f"share is {share!r}.", hint="Use a number from 0.001 to 1.")
        self.share = float(share)
        self._pond = pond
        self._folder = job_of(pond, job)
        self._name = f"millpond hot keys of {self._folder.storage.uri}"
        self._list: HotList | None = None
        self.last_error: str | None = None

    def found(self) -> list[HotKey]:
        """The groups that are hot now, according to the file, largest share first.

        Raises:  CORRUPT_FILE, and what the storage raises.
        """
        return self._folder.hot_keys()

    def find(self, df: DataFrame, by: Sequence[str]) -> tuple[DataFrame, Column]:
        """The stream with the additions above, and whether a row is of a hot group (NULL without a list).

        by:  names of the columns that tell the groups apart
        Raises:  NOT_WRITABLE, and what else `start` raises for a job's folder.
        """
        from pyspark.sql import functions as sf

        spark = df.sparkSession
        create_job(self._pond, self._folder.job)
        names = [sf.col(name) for name in by]  # as in groupBy
        columns = {f.name: parse_type(f.dataType.jsonValue()) for f in df.select(*names).schema.fields}
        if self._list is None or self._list.columns != columns:
            try:
                self._list = HotList(self.share, columns, self.found())
            except CheckpointError as broken:  # the job finds the keys again
                self._list, self.last_error = HotList(self.share, columns), str(broken)
        # The file must exist, with the fields to read, before Spark plans to read it.
        self._folder.write_hot_keys(self._list.keys, columns)
        self._list.written()
        self._listen(spark)
        file = hadoop_uri(f"{self._folder.storage.uri}/{HOT_KEYS}")
        # As one JSON document the file is read whole, even if it was shorter when the query was
        # planned.
        listed = spark.read.schema(_SCHEMA).option("multiLine", True).option("ignoreMissingFiles", True).json(file).limit(1)
        looked_for = min(_MOST_LOOKED_FOR, math.ceil(_LOOKED_FOR / self.share))
        hash_, unnamed = sf.col(f"`{_HASH}`"), sf.col(f"`{_LIST}`.unnamed")
        named = sf.concat_ws(" ", hash_.cast("string"), sf.to_json(sf.struct(*names), _EXACT_JSON))
        found = df.withColumns({_HASH: sf.xxhash64(*names), _LIST: listed.select(sf.struct("hot", "unnamed")).scalar()}).observe(
            self._name,
            sf.count(sf.lit(1)).alias("rows"),
            sf.call_function("approx_top_k", hash_, sf.lit(looked_for), sf.lit(looked_for * _TRACKED)).alias("counted"),
            sf.collect_set(sf.when(sf.array_contains(unnamed, hash_), named)).alias("named"),
        )
        return found, sf.array_contains(sf.col(f"`{_LIST}`.hot"), hash_)

    def _listen(self, spark: SparkSession) -> None:
        """Listen to each batch of this session's queries, in place of an earlier listener of this job."""
        from pyspark.sql.streaming.listener import StreamingQueryListener

        keys = self

        class Listener(StreamingQueryListener):  # type: ignore[misc]  # PySpark hides its base's type
            def onQueryStarted(self, event: Any) -> None: ...
            def onQueryIdle(self, event: Any) -> None: ...
            def onQueryTerminated(self, event: Any) -> None: ...

            def onQueryProgress(self, event: Any) -> None:
                observed = event.progress.observedMetrics.get(keys._name)
                if observed is not None:
                    keys._take(event.progress.batchId, observed)

        before = _listeners.pop(self._name, None)
        if before is not None and before[0] is spark:
            spark.streams.removeListener(before[1])
        listener = Listener()
        spark.streams.addListener(listener)
        _listeners[self._name] = spark, listener

    def _take(self, batch: int, observed: Any) -> None:
        assert self._list is not None
        try:
            counted = [(int(group), int(count)) for group, count in observed.counted or ()]
            if self._list.take(batch, int(observed.rows), counted, observed.named or ()):
                self._folder.write_hot_keys(self._list.keys, self._list.columns)
                self._list.written()
            if observed.rows:  # an empty batch shows nothing
                self.last_error = self._list.naming_error
        except (MillpondError, ValueError, OSError) as broken:
            # The job goes on: rows of a group that isn't on the list lie in one part.
            self.last_error = f"{type(broken).__name__}: {broken}"
