"""Reads the tables and the sink of a killed job, and compares them with an undisturbed run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import millpond
from faults.fed import Rows, sink_rows
from faults.undisturbed import Look, Seen, Undisturbed, differences, plain
from millpond.tables.cut import PondCut


class Looks:
    """Looks at one job, each time at all batches since the last look.

    compared:   how many tables and rows were compared
    sink_rows:  how many rows have come to the sink
    """

    def __init__(self, job: str, run: Undisturbed, output: Path) -> None:
        self._job, self._run, self._output = job, run, output
        self.compared: Counter[str] = Counter()
        self.sink_rows = 0
        self._began: int | None = None  # the batch at which the replica was built
        self._next = 0

    def look(self, pond: millpond.Pond) -> list[str]:
        """All differences from the undisturbed run."""
        committed = self._run.committed
        seen = Seen(committed=committed, attempts=sunk(self._run, self._output, committed))
        with pond.cut(self._job) as cut:
            self._run.go_on()
            if self._began is None:
                self._began = self._next = cut.batch
            seen.looks += self._newest(cut, self._began)
        for batch in range(self._next, cut.batch):
            seen.looks += [Look(batch, table, in_state(pond[table].at(batch=batch).scan())) for table in self._run.tables[batch]]
        self._next = cut.batch + 1
        self.compared += Counter(tables=len(seen.looks), rows=sum(len(look.rows) for look in seen.looks))
        self.sink_rows = sum(len(rows) for attempts in seen.attempts.values() for rows in attempts)
        return [*self._wrong_times(cut), *differences(self._run, seen)]

    def _newest(self, cut: PondCut, began: int) -> Iterator[Look]:
        """The tables at the newest batch, and those with expired rows once more with them."""
        for table in self._run.tables[cut.batch]:
            rows = cut[table].scan()
            yield Look(cut.batch, table, in_state(rows), at_ms=rows.cut.judged_ms)
            if table in self._run.with_expired[cut.batch]:
                rows = cut[table].with_closed().scan()
                shown = [{**plain(row), "final": row.final} for row in rows]
                yield Look(cut.batch, table, shown, began=began, at_ms=rows.cut.judged_ms, expired=True)

    def _wrong_times(self, cut: PondCut) -> Iterator[str]:
        """The position of the reader is that of Spark, and Spark's watermark is right."""
        said = json.loads((self._run.checkpoint / "commits" / str(cut.batch)).read_text().splitlines()[1])
        position = (cut.position.watermark_ms or 0, cut.position.batch_started_ms)
        if position != (said["nextBatchWatermarkMs"], self._run.planned[cut.batch].started_ms):
            yield f"batch {cut.batch} is at {position}"
        if said["nextBatchWatermarkMs"] not in self._run.watermarks[cut.batch]:
            yield f"batch {cut.batch} leaves the watermark {said['nextBatchWatermarkMs']}"


def in_state(rows: millpond.Rows) -> Rows:
    """The rows that haven't expired.  Tables of windows also show expired ones, if they are kept."""
    return [plain(row) for row in rows if not row.final]


def sunk(run: Undisturbed, output: Path, committed: int) -> dict[int, list[Rows]]:
    """What a job's sink got: batch -> the rows of each attempt."""
    found: dict[int, list[Rows]] = {}
    if run.model.sink == "files":
        found = {batch: [[]] for batch in range(committed + 1)}
        for batch, row in sink_rows(output):
            found.setdefault(batch, [[]])[0].append(plain(row))
    for path in output.glob("*.json") if run.model.sink == "attempts" else ():
        found.setdefault(int(path.name.partition("-")[0]), []).append(json.loads(path.read_text()))
    return found
