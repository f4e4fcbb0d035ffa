"""What the jobs of timers_job hold and tell after each of their batches, recomputed in plain Python.

Only what Spark decides is taken from the checkpoint: which files a batch has (`sources/0`), when it was planned and its watermark
(`offsets/N`), which is held against what it must be.

    watermark    of the next batch: the newest request so far, less the delay.  A batch whose rows the file sink has already isn't
                 run once more after a kill: Spark sees no time of it then, and the watermark stays
    sessions     a host's requests, cut where none came for the gap; what ended by the watermark is emitted and leaves the state
    counter      requests of a host and the time of its newest; its time-out passes where it lies before the watermark and the
                 batch has no request of it
    recent       a row is over when a batch is planned at its time or later: then functions don't see it, and it leaves the state
    page_totals  counts that begin with the old job's

A batch's rows have no order but that of their times and, at one time, of their lines.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.fed import Files, Rows, newest
from faults.timers_job import FORGOTTEN_AFTER_SECONDS, TTL_SECONDS
from soak.model import Planned, parse_offsets

GAP_MS, DELAY_MS = 30 * 60 * 1000, 10 * 60 * 1000
FORGOTTEN_AFTER_MS, TTL_MS = int(FORGOTTEN_AFTER_SECONDS * 1000), int(TTL_SECONDS * 1000)
Row = dict[str, Any]
Tables = dict[str, Rows]
"""table -> rows in the order of their keys; times are milliseconds since 1970"""


class Model(ABC):
    """A job's state.

    watermark:   whether the job has one
    file_sink:   whether its sink is Spark's file sink
    """

    watermark = file_sink = False

    @abstractmethod
    def take(self, planned: Planned, rows: Rows) -> Rows:
        """Go through a batch; what it tells."""

    @abstractmethod
    def tables(self) -> Tables:
        """What is in the state."""

    def with_expired(self) -> Tables:
        """The tables that have a TTL, with rows that it took out of the state."""
        return {}


class Sessions(Model):
    """host -> times of its requests in open sessions."""

    watermark = file_sink = True

    def __init__(self) -> None:
        self.open: dict[str, list[int]] = {}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        emitted = []
        for row in rows:
            self.open.setdefault(row["host"], []).append(row["ms"])
        for host, times in list(self.open.items()):
            sessions = cut_at_gaps(times)
            over = [session for session in sessions if session[-1] + GAP_MS <= planned.watermark_ms]
            emitted += [{"host": host, **session_row(session)} for session in over]
            self.open[host] = [ms for session in sessions if session not in over for ms in session]
            if not self.open[host]:
                del self.open[host]
        return emitted

    def tables(self) -> Tables:
        sessions = {host: cut_at_gaps(times) for host, times in sorted(self.open.items())}
        return {
            "sessions_open": [
                {"host": host, "index": i, **session_row(session)}
                for host, found in sessions.items()
                for i, session in enumerate(found)
            ],
            "sessions_timers": [
                {"host": host, "expires_at": session[-1] + GAP_MS} for host, found in sessions.items() for session in found
            ],
        }


def cut_at_gaps(times: Iterable[int]) -> list[list[int]]:
    """Times in order, in sessions."""
    sessions: list[list[int]] = []
    for ms in sorted(times):
        if sessions and ms < sessions[-1][-1] + GAP_MS:
            sessions[-1].append(ms)
        else:
            sessions.append([ms])
    return sessions


def session_row(times: list[int]) -> Row:
    return {"started_ms": times[0], "last_ms": times[-1], "requests": len(times)}


class Hosts(Model):
    """host -> its row of table counter."""

    watermark = True

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        emitted = []
        for host, requests in by("host", rows).items():
            before = self.rows.get(host, {"requests": 0, "last_ms": 0})
            number = before["requests"] + len(requests)
            last_ms = max(before["last_ms"], *(row["ms"] for row in requests))
            expires_at = max(last_ms, planned.watermark_ms) + FORGOTTEN_AFTER_MS
            self.rows[host] = {"host": host, "requests": number, "last_ms": last_ms, "expires_at": expires_at}
            emitted.append({"host": host, "requests": number, "gone": False})
        for host, row in list(self.rows.items()):
            if row["expires_at"] < planned.watermark_ms:
                emitted.append({"host": host, "requests": row["requests"], "gone": True})
                del self.rows[host]
        return emitted

    def tables(self) -> Tables:
        return {"counter": [row for _, row in sorted(self.rows.items())]}


@dataclass
class Lasting:
    """Rows of a variable with a TTL, by key: in the state, and taken out of it."""

    live: dict[Any, Row] = field(default_factory=dict)
    over: dict[Any, Row] = field(default_factory=dict)

    def put(self, key: Any, row: Row) -> None:
        self.live[key] = row
        self.over.pop(key, None)

    def seen(self, key: Any, now_ms: int) -> Row | None:
        row = self.live.get(key)
        return row if row is not None and row["expires_at"] > now_ms else None

    def end(self, now_ms: int) -> None:
        for key in [key for key, row in self.live.items() if row["expires_at"] <= now_ms]:
            self.over[key] = self.live.pop(key)


class Recent(Model):
    """The last page, the trail and the pages of each host."""

    def __init__(self) -> None:
        self.last, self.pages = Lasting(), Lasting()
        self.trail: dict[str, Rows] = {}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        now_ms, emitted = planned.started_ms, []
        for host, requests in by("host", rows).items():
            visited = [row["page"] for row in requests]
            ends = {"expires_at": now_ms + TTL_MS}
            before, newest_ms = self.last.seen(host, now_ms), requests[-1]["ms"]
            if before is None or before["ms"] <= newest_ms:
                self.last.put(host, {"host": host, "page": visited[-1], "ms": newest_ms, **ends})
            self.trail.setdefault(host, []).extend({"page": page, **ends} for page in visited)
            for page, number in Counter(visited).items():
                before = self.pages.seen((host, page), now_ms)
                number += before["requests"] if before else 0
                self.pages.put((host, page), {"host": host, "page": page, "requests": number, **ends})
            emitted.append({"host": host, "requests": len(visited)})
        self.last.end(now_ms)
        self.pages.end(now_ms)
        self.trail = {host: [row for row in rows if row["expires_at"] > now_ms] for host, rows in self.trail.items()}
        return emitted

    def tables(self) -> Tables:
        trail = [{"host": host, "index": i, **row} for host, rows in sorted(self.trail.items()) for i, row in enumerate(rows)]
        return {"recent_last": in_order(self.last.live), "recent_trail": trail, "recent_pages": in_order(self.pages.live)}

    def with_expired(self) -> Tables:
        last, pages = ({**rows.over, **rows.live} for rows in (self.last, self.pages))
        # Elements of a list aren't kept.
        return {**self.tables(), "recent_last": in_order(last), "recent_pages": in_order(pages)}


def in_order(rows: dict[Any, Row]) -> Rows:
    return [row for _, row in sorted(rows.items())]


class Totals(Model):
    """page -> its row of table page_totals_total.

    known:  page -> hits, of the old job
    """

    def __init__(self, known: Counter[str]) -> None:
        self.rows = {page: self._row(page, hits) for page, hits in known.items()}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        emitted = []
        for page, requests in by("page", rows).items():
            before, last = self.rows.get(page, self._row(page, 0)), requests[-1]
            row = {**before, "hits": before["hits"] + len(requests)}
            if row["last_ms"] is None or row["last_ms"] <= last["ms"]:
                row |= {"last_host": last["host"], "last_ms": last["ms"]}
            self.rows[page] = row
            emitted.append({"page": page, "hits": row["hits"]})
        return emitted

    @staticmethod
    def _row(page: str, hits: int) -> Row:
        return {"page": page, "hits": hits, "last_host": None, "last_ms": None}

    def tables(self) -> Tables:
        return {"page_totals_total": in_order(self.rows)}


def by(column: str, rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return found


class Undisturbed:
    """A job's run without a fault, batch by batch as far as they were planned.

    planned, tables, with_expired, emitted:  of each batch
    watermarks:  that each batch may leave to the next
    """

    def __init__(self, checkpoint: Path, files: Files, model: Model) -> None:
        self.checkpoint, self._files, self._model = checkpoint, files, model
        self.planned: list[Planned] = []
        self.watermarks: list[set[int]] = []
        self.tables: list[Tables] = []
        self.with_expired: list[Tables] = []
        self.emitted: list[Rows] = []

    def go_on(self) -> None:
        """Recompute the batches that were planned since."""
        for batch in range(len(self.planned), newest(self.checkpoint / "offsets") + 1):
            planned = parse_offsets((self.checkpoint / "offsets" / str(batch)).read_text())
            after = self.planned[-1].file if self.planned else -1
            read = [number for entry, number in self._entries() if after < entry <= planned.file]
            rows = sorted((row for number in read for row in self._files.rows[number]), key=lambda row: (row["ms"], row["line"]))
            now, may_be = planned.watermark_ms, self.watermarks[-1] if self.watermarks else {0}
            assert now in may_be, f"batch {batch} of {self.checkpoint}: the watermark is {now}, and none of {may_be}"
            newest_ms = max((row["ms"] for row in rows), default=0) if self._model.watermark else 0
            self.watermarks.append({max(now, newest_ms - DELAY_MS), *([now] if self._model.file_sink else [])})
            self.planned.append(planned)
            self.emitted.append(self._model.take(planned, rows))
            self.tables.append(self._model.tables())
            self.with_expired.append(self._model.with_expired())

    def files_read(self, batch: int) -> int:
        """How many files the batches up to this one have read."""
        return sum(entry <= self.planned[batch].file for entry, _ in self._entries())

    def _entries(self) -> list[tuple[int, int]]:
        """(entry, file) of the source's log; every tenth is a compacted one, with all before it."""
        found = set()
        for log in (self.checkpoint / "sources" / "0").glob("[0-9]*"):
            for line in log.read_text().splitlines()[1:]:
                entry = json.loads(line)
                found.add((int(entry["batchId"]), int(Path(entry["path"]).stem)))
        return sorted(found)
