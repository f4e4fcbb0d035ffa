"""A job that commits random batches, for servers that each follow some of its partitions."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millpond
from millpond.errors import MillpondError
from spark_files.checkpoint import WrittenCheckpoint

PARTITIONS = 5
SHARDS = ["0-1", "2", "3-4"]
# Long keys are sorted by a hash.
KEYS = [*(f"k{n}" for n in range(30)), *("z" * n for n in (490, 495, 500, 505, 510, 520)), *("z" * 500 + c for c in "abc")]


class Job:
    """Commits random batches."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.checkpoint = WrittenCheckpoint(folder, partitions=PARTITIONS)
        self._draw = random.Random(seed)
        self.commit()

    @property
    def table(self) -> str:
        return f"{self.checkpoint.path.name}.aggregate_0"

    def commit(self) -> None:
        some = self._draw.sample(KEYS, self._draw.randrange(1, 20))
        changes = [((key,), None if self._draw.random() < 0.3 else self._draw.randrange(100)) for key in some]
        changes.append((("each",), self.checkpoint.next_batch))  # no batch is without a change
        self.checkpoint.plan(changes, snapshot=False)
        self.checkpoint.commit()


def answer_or_condition(read: Callable[[], Any]) -> Any:
    """The answer of a read, or why it is refused."""
    try:
        return read()
    except MillpondError as error:
        return error.condition


def catch_up(sharded: Any, whole: Any) -> int:
    """The newest batch, which all have then."""
    whole.job_reads.replica.catch_up(60)
    batch = int(whole.count().batch)
    sharded.count(bounds=millpond.Bounds(min_batch=batch, wait_seconds=30))  # the longest that a server takes
    return batch
