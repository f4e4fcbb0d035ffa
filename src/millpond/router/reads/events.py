"""Where one event is, of a job whose state lies on several servers.

1. All shards are asked at one batch.  Whether the job has read the event is the same for all.
2. They may know different positions of the past, and a shard without rows doesn't know how long the
   windows are: the answer that says the most counts.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

from millpond.router.common_batch import combined
from millpond.router.reads.asking import ShardedReads, is_one
from millpond.router.shard_map import TableMap
from millpond.tables.history.find_event import NO_ROWS, EventAnswer
from millpond.tables.job.bounds import Bounds


class ShardedEvents(ShardedReads):
    """The events of a table of several servers."""

    def find_event(
        self,
        *,
        offset: str | None = None,
        file: str | os.PathLike[str] | None = None,
        line: int | None = None,
        key: Any = None,
        event_time: dt.datetime | str | None = None,
        bounds: Bounds | None = None,
    ) -> EventAnswer:
        """As `Table.find_event`, of a batch that all shards have."""
        event: dict[str, Any] = {"offset": offset, "file": file, "line": line, "key": key, "event_time": event_time}

        def find(of: TableMap) -> EventAnswer:
            if is_one(of):
                return self._one(of, of.shards[0], bounds, lambda reads, within: reads.find_event(**event, bounds=within))
            cuts = self._cuts(of, of.shards, bounds)
            answers = self._of_cuts(cuts, lambda reads, at: reads.find_event(**event, bounds=at.bounds))
            best = max(answers, key=_says)
            best.cut = combined([at.cut for at in cuts])
            return best

        return self._again(bounds, find)


def _says(answer: EventAnswer) -> tuple[bool, bool, bool]:
    """How much an answer says."""
    return answer.batch_read is not None, answer.late != "unknown", answer.reason != NO_ROWS
