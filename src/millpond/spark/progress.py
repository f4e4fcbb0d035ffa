"""What Spark reports of a query's batches, added up as they come, and the files that wait for it.

    {"input_rows": …, "late_rows": …, "state_rows": …, "changed_rows": …, "memory_bytes": …, "get_seconds": …,
     "commit_seconds": …, "waiting_files": …, "oldest_file_ms": …}

Source:  StreamingQueryProgress, Spark 4.3: `numInputRows`; of each of `stateOperators`
`numRowsTotal`, `numRowsUpdated`, `numRowsDroppedByWatermark`, `memoryUsedBytes`, `commitTimeMs` (of
all tasks together), and of RocksDB in `customMetrics` `rocksdbGetLatency` (milliseconds of all
reads of the batch) and `rocksdbGetCount`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


_TRACKS_ROWS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


class ProgressCounts:
    """Counts of one run of a query."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last: tuple[str, int] | None = None
        self._counts = {"input_rows": 0, "late_rows": 0, "changed_rows": 0}
        self._now: dict[str, int | float] = {}
        self._has_listed = False
        session = query._jsq.streamingQuery().sparkSessionForStream()
        # Without it, RocksDB reports no rows at all.
        self._counts_rows = str(session.conf().get(_TRACKS_ROWS, "true")).lower() == "true"

    def look(self) -> dict[str, int | float]:
        """The counts, with what Spark has reported since the last look.

        Spark keeps the newest hundred reports: of more batches between two looks, some are missed.
        """
        reports = self._query._jsq.recentProgress()
        new: list[dict[str, Any]] = []
        for number in range(len(reports) - 1, -1, -1):
            report = json.loads(reports[number].json())
            mark = str(report["timestamp"]), int(report["batchId"])
            if mark == self._last:
                break
            new.append(report)
        for report in reversed(new):
            self._add(report)
            self._last = str(report["timestamp"]), int(report["batchId"])
        return {**self._counts, **self._now, **(waiting_files(self._query) if self._has_listed else {})}

    def _add(self, report: dict[str, Any]) -> None:
        operators = report["stateOperators"]
        # A batch that an earlier run has planned is run again before any source is asked.
        self._has_listed |= "latestOffset" in report["durationMs"]
        self._counts["input_rows"] += report["numInputRows"]
        self._counts["late_rows"] += sum(each["numRowsDroppedByWatermark"] for each in operators)
        self._counts["changed_rows"] += sum(each["numRowsUpdated"] for each in operators)
        if not operators:
            return
        metrics = [each["customMetrics"] for each in operators]
        if self._counts_rows or not any("rocksdbGetCount" in each for each in metrics):
            self._now["state_rows"] = sum(each["numRowsTotal"] for each in operators)
        self._now["memory_bytes"] = sum(each["memoryUsedBytes"] for each in operators)
        self._now["commit_seconds"] = sum(each["commitTimeMs"] for each in operators) / 1000
        gets = sum(each.get("rocksdbGetCount", 0) for each in metrics)
        self._now.pop("get_seconds", None)
        if gets:
            self._now["get_seconds"] = sum(each.get("rocksdbGetLatency", 0) for each in metrics) / 1000 / gets


def waiting_files(query: StreamingQuery) -> dict[str, int]:
    """How many files the sources had when they were last listed, that no batch has begun to read; and the oldest one's time.

    No report of Spark's has them: they are read from the sources' own lists.  A list has 10,000 files
    at most (`maxCachedFiles`), and what is left of it counts as nothing once that is less than a
    fifth of a batch (`discardCachedInputRatio`).

    Shape:   `{"waiting_files": 12, "oldest_file_ms": 1772366401000}`; the time is missing if none waits.  Empty if
             no source is of files, or one keeps no list: with `latestFirst`, or the trigger `availableNow`
    Source:  FileStreamSource.fetchMaxOffset, Spark 4.3
    """
    try:
        execution = query._jsq.streamingQuery()
        if str(execution.trigger()).startswith("AvailableNowTrigger"):
            return {}
        sources = execution.sources()
        each = [sources.apply(number) for number in range(sources.size())]
        lists = [_unread(source) for source in each if source.getClass().getSimpleName() == "FileStreamSource"]
    except Exception:  # noqa: BLE001 the JVM may end before us, and another Spark may have other fields
        return {}
    if not lists or None in lists:
        return {}
    known = [unread for unread in lists if unread is not None]
    times = [oldest for _, oldest in known if oldest is not None]
    return {"waiting_files": sum(count for count, _ in known), **({"oldest_file_ms": min(times)} if times else {})}


def _unread(source: Any) -> tuple[int, int | None] | None:
    """How many files a source's list has, and the time of its first one, which is the oldest; None if it keeps no list."""

    def private(name: str) -> Any:
        field = source.getClass().getDeclaredField(name)
        field.setAccessible(True)
        return field.get(source)

    if private("sourceOptions").latestFirst():
        return None
    unread = private("unreadFiles")
    if unread is None or unread.isEmpty():
        return 0, None
    return unread.size(), unread.head().timestamp()
