"""Rows wait in the state of their shard until there are enough of them, or the first has waited long enough."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from faults.fed import Files, Rows
from faults.job import PARTITIONS, read, to_files
from faults.kind import Kind
from faults.undisturbed import Model, Planned, Tables, by
from millpond.schema.shards import shard_values

AT_LEAST, AFTER_SECONDS, ROWS_A_FILE = 25, 5.0, 9
SHARDS = shard_values(2, PARTITIONS)


class Waiting(Model):
    """shard -> the rows that wait, when they are due, and how many releases there were."""

    sink = "files"
    unknown = frozenset({"index"})  # the rows of a batch come in no order

    def __init__(self) -> None:
        self._waiting: dict[int, Rows] = {}
        self._due_ms: dict[int, int] = {}
        self._releases: dict[int, int] = {}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        now_ms, emissions = planned.started_ms, []
        for shard, new in by("shard", [{"shard": shard_of(row["n"]), **row} for row in rows]).items():
            self._releases.setdefault(shard, 0)
            if not self._waiting.get(shard):
                self._due_ms[shard] = now_ms + int(AFTER_SECONDS * 1000)
            self._waiting[shard] = [*self._waiting.get(shard, []), *new]
            if len(self._waiting[shard]) >= AT_LEAST:
                emissions += self._let_go(shard)
        for shard in [shard for shard, due_ms in self._due_ms.items() if 0 < due_ms <= now_ms]:
            emissions += self._let_go(shard)
        return emissions

    def _let_go(self, shard: int) -> Rows:
        self._releases[shard] += 1
        self._due_ms[shard] = 0
        return [{"release": self._releases[shard], **row} for row in self._waiting.pop(shard, [])]

    def tables(self) -> Tables:
        fill = [
            {"shard": shard, "rows": len(self._waiting.get(shard, [])), "due_ms": self._due_ms[shard], "releases": releases}
            for shard, releases in sorted(self._releases.items())
        ]
        timers = [{"shard": row["shard"], "expires_at": row["due_ms"]} for row in fill if row["due_ms"]]
        waiting = [row for _, rows in sorted(self._waiting.items()) for row in rows]
        return {"rows_waiting": waiting, "rows_fill": fill, "rows_timers": timers}

    def tried(self) -> bool:
        return len(self._releases) == len(SHARDS) and min(self._releases.values()) > 1


def shard_of(n: int) -> int:
    """The shard to which Spark's hash sends a row."""
    hashed = xxhash.xxh64_intdigest(f"row {n}".encode(), xxhash.xxh64_intdigest(n.to_bytes(8, "little"), 42))
    return SHARDS[hashed % len(SHARDS)]


class Buffered(Kind):
    """`buffered`."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self.rows = Files(folder / "in")
        self.inputs, self.jobs = [self.rows], {"rows": Waiting()}

    def feed(self) -> None:
        first = len(self.rows.rows) * ROWS_A_FILE
        self.rows.add([{"n": n, "text": f"row {n}"} for n in range(first, first + ROWS_A_FILE)])

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Any]:
        import millpond

        rows = read(spark, folder / "in", "n long, text string")
        waiting = millpond.buffered(rows, at_least=AT_LEAST, after_seconds=AFTER_SECONDS, shards=2, partitions=PARTITIONS)
        options = {"trigger": "100 milliseconds", **to_files(folder, "rows")}
        yield millpond.start(waiting, table="rows", pond=folder / "pond", **options)
