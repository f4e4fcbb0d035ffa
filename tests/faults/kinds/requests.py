"""Sessions by timers, time-outs, TTLs and initial state: four of the examples over one stream.

sessions     a gap without requests ends a host's session; once the watermark passes its end, it is emitted and leaves the state
counter      a host's number of requests and the time of its newest; its time-out passes if it lies before the watermark and the
             batch has no request of the host
recent       a row has expired if a batch is planned at its time or later: functions don't see it, and it leaves the state
page_totals  counts that begin with those of an older job
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import millpond
from faults.fed import Files, Row, Rows
from faults.job import PARTITIONS, attempts, example, read, to_files
from faults.kind import Kind
from faults.undisturbed import Model, Planned, Tables, by, in_order

BEGIN = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
GAP_MS, FORGOTTEN_AFTER_MS, TTL_MS = 30 * 60 * 1000, 25 * 60 * 1000, 6_000
SCHEMA = "host string, page string, time timestamp, file string, line long"


class Visits:
    """Requests in no order, up to 5 minutes behind those of earlier files: none is too late.

    Hosts come and go, so their sessions end and they are forgotten.  All times are multiples of 5 minutes, so ends, time-outs and
    watermarks coincide, and a host has several requests at the same time.  Of these, the last is the one with the highest line; no
    file has its rows in that order.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._minute, self._lines = chance, 0, 0

    def next(self, first_page: int = 3) -> Rows:
        """The rows of the next file."""
        before, self._minute = self._minute, self._minute + self._chance.choice((5, 10, 25))
        minutes = [self._minute, *(self._chance.randrange(before - 5, self._minute + 1, 5) for _ in range(11))]
        self._chance.shuffle(minutes)
        requests = [self._request(minute, first_page + self._chance.randrange(6)) for minute in minutes]
        self._chance.shuffle(requests)
        return requests

    def _request(self, minute: int, page: int) -> Row:
        host, when = self._chance.randrange(self._chance.choice((4, 30))), BEGIN + dt.timedelta(minutes=minute)
        self._lines += 1
        place = {"file": "log", "line": self._lines}
        return {"host": f"h{host}", "page": f"/{page}", "time": when.isoformat(), "ms": round(when.timestamp() * 1000), **place}


class Requests(Model):
    """A state made of requests, ordered by time and line."""

    order = ("ms", "line")
    sink = "attempts"


class OpenSessions(Requests):
    """host -> its requests in open sessions.

    touching:  whether a request at the very end of a session still belongs to it
    """

    watermark, sink, touching = True, "files", False

    def __init__(self) -> None:
        self._open: dict[str, Rows] = {}
        self._ended: Rows = []

    def take(self, planned: Planned, rows: Rows) -> Rows:
        for host, requests in by("host", rows).items():
            self._open.setdefault(host, []).extend(requests)
        found = [
            (host, session, session[-1]["ms"] + GAP_MS <= planned.watermark_ms)
            for host, some in self.sessions()
            for session in some
        ]
        self._open = by("host", [request for _, session, is_over in found if not is_over for request in session])
        emissions = [{"host": host, **self.row(session)} for host, session, is_over in found if is_over]
        self._ended += emissions
        return emissions

    def sessions(self) -> Iterator[tuple[str, list[Rows]]]:
        """The sessions of each host."""
        for host, requests in sorted(self._open.items()):
            sessions: list[Rows] = []
            for request in sorted(requests, key=lambda request: request["ms"]):
                if sessions and request["ms"] < sessions[-1][-1]["ms"] + GAP_MS + self.touching:
                    sessions[-1].append(request)
                else:
                    sessions.append([request])
            yield host, sessions

    def row(self, session: Rows) -> Row:
        """The row of a session."""
        return {"started_ms": session[0]["ms"], "last_ms": session[-1]["ms"], "requests": len(session)}

    def tables(self) -> Tables:
        rows = [(host, index, self.row(session)) for host, some in self.sessions() for index, session in enumerate(some)]
        return {
            "sessions_open": [{"host": host, "index": index, **row} for host, index, row in rows],
            "sessions_timers": [{"host": host, "expires_at": row["last_ms"] + GAP_MS} for host, _, row in rows],
        }

    def tried(self) -> bool:
        return len(self._ended) > 3


class Hosts(Requests):
    """host -> its row of table counter."""

    watermark = True

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._gone = 0

    def take(self, planned: Planned, rows: Rows) -> Rows:
        emissions = []
        for host, requests in by("host", rows).items():
            before = self._rows.get(host, {"requests": 0, "last_ms": 0})
            number = before["requests"] + len(requests)
            last_ms = max(before["last_ms"], *(row["ms"] for row in requests))
            expires_at = max(last_ms, planned.watermark_ms) + FORGOTTEN_AFTER_MS
            self._rows[host] = {"host": host, "requests": number, "last_ms": last_ms, "expires_at": expires_at}
            emissions.append({"host": host, "requests": number, "gone": False})
        for host, row in list(self._rows.items()):
            if row["expires_at"] < planned.watermark_ms:
                emissions.append({"host": host, "requests": row["requests"], "gone": True})
                del self._rows[host]
                self._gone += 1
        return emissions

    def tables(self) -> Tables:
        return {"counter": in_order(self._rows)}

    def tried(self) -> bool:
        return self._gone > 0


@dataclass
class Lasting:
    """Rows of a variable with a TTL, by key: those in the state, and those that left it."""

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


class Recent(Requests):
    """The last page, the trail and the pages of each host."""

    def __init__(self) -> None:
        self._last, self._pages = Lasting(), Lasting()
        self._trail: dict[str, Rows] = {}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        now_ms, emissions = planned.started_ms, []
        for host, requests in by("host", rows).items():
            visited = [row["page"] for row in requests]
            ends = {"expires_at": now_ms + TTL_MS}
            before, newest_ms = self._last.seen(host, now_ms), requests[-1]["ms"]
            if before is None or before["ms"] <= newest_ms:
                self._last.put(host, {"host": host, "page": visited[-1], "ms": newest_ms, **ends})
            self._trail.setdefault(host, []).extend({"page": page, **ends} for page in visited)
            for page, number in Counter(visited).items():
                before = self._pages.seen((host, page), now_ms)
                number += before["requests"] if before else 0
                self._pages.put((host, page), {"host": host, "page": page, "requests": number, **ends})
            emissions.append({"host": host, "requests": len(visited)})
        self._last.end(now_ms)
        self._pages.end(now_ms)
        self._trail = {host: [row for row in rows if row["expires_at"] > now_ms] for host, rows in self._trail.items()}
        return emissions

    def tables(self) -> Tables:
        trail = [{"host": host, "index": i, **row} for host, rows in sorted(self._trail.items()) for i, row in enumerate(rows)]
        return {"recent_last": in_order(self._last.live), "recent_trail": trail, "recent_pages": in_order(self._pages.live)}

    def with_expired(self) -> Tables:
        last, pages = ({**rows.over, **rows.live} for rows in (self._last, self._pages))
        # Expired elements of a list aren't kept.
        return {**self.tables(), "recent_last": in_order(last), "recent_pages": in_order(pages)}

    def tried(self) -> bool:
        return bool(self._last.over and self._pages.over)


class Totals(Requests):
    """page -> its row of table page_totals_total.

    known:  page -> hits in the old job
    """

    def __init__(self, known: Counter[str]) -> None:
        self._known, self._seen = known, set[str]()
        self._rows = {page: self._row(page, hits) for page, hits in known.items()}

    def take(self, planned: Planned, rows: Rows) -> Rows:
        emissions = []
        for page, requests in by("page", rows).items():
            before, last = self._rows.get(page, self._row(page, 0)), requests[-1]
            row = {**before, "hits": before["hits"] + len(requests)}
            if row["last_ms"] is None or row["last_ms"] <= last["ms"]:
                row |= {"last_host": last["host"], "last_ms": last["ms"]}
            self._rows[page] = row
            self._seen.add(page)
            emissions.append({"page": page, "hits": row["hits"]})
        return emissions

    @staticmethod
    def _row(page: str, hits: int) -> Row:
        return {"page": page, "hits": hits, "last_host": None, "last_ms": None}

    def tables(self) -> Tables:
        return {"page_totals_total": in_order(self._rows)}

    def tried(self) -> bool:
        """Some pages came that the old job knew, and some of its pages didn't come."""
        return bool(self._seen & set(self._known)) and bool(set(self._known) - self._seen)


class Timers(Kind):
    """Four jobs over one stream.  The first kill interrupts the batch that takes in the initial state."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self._visits = Visits(chance)
        old, self.requests = Files(folder / "before"), Files(folder / "in")
        for _ in range(2):
            old.add(self._visits.next(0))
        known = Counter(row["page"] for rows in old.rows.values() for row in rows)
        self.inputs = [self.requests]
        self.jobs = {"page_totals": Totals(known), "sessions": OpenSessions(), "counter": Hosts(), "recent": Recent()}

    def feed(self) -> None:
        self.requests.add(self._visits.next())

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Any]:
        counter, initial_state, recent, sessions = map(example, ("counter", "initial_state", "recent", "sessions"))
        pond, before = folder / "pond", read(spark, folder / "before", SCHEMA)
        # The old job comes to its end before the new one begins with its table, also after a kill.
        initial_state.start_before(before, pond, partitions=PARTITIONS, trigger="available-now").wait_for_end()
        requests = read(spark, folder / "in", SCHEMA)

        def options(job: str, trigger: str = "200 milliseconds") -> dict[str, Any]:
            return {**attempts(folder, job), "trigger": trigger}

        files = {name: value for name, value in to_files(folder, "sessions").items() if name != "output_mode"}
        yield initial_state.start_after(requests, pond, **options("page_totals"))
        yield sessions.start(requests, pond, **files, trigger="200 milliseconds")
        yield counter.start(requests, pond, "event-time", FORGOTTEN_AFTER_MS / 1000, **options("counter"))
        yield recent.start(requests, pond, TTL_MS / 1000, **options("recent", "1 second"))


class Windows(OpenSessions):
    """Session windows: the same sessions, with the sum of the requests' lines."""

    touching = True

    def row(self, session: Rows) -> Row:
        ends = {"start": session[0]["ms"], "end": session[-1]["ms"] + GAP_MS}
        return {**ends, "requests": len(session), "lines": sum(request["line"] for request in session)}

    def tables(self) -> Tables:
        return {"windows": [{"host": host, **self.row(session)} for host, found in self.sessions() for session in found]}

    def with_expired(self) -> Tables:
        rows = [*self.tables()["windows"], *self._ended]
        return {"windows": sorted(rows, key=lambda row: (row["host"], row["start"]))}


class Sessions(Kind):
    """An aggregation in the JVM: its tasks need no Python worker."""

    kills = ("commit", "job")

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self.requests, self._visits = Files(folder / "in"), Visits(chance)
        self.inputs, self.jobs = [self.requests], {"windows": Windows()}

    def feed(self) -> None:
        self.requests.add(self._visits.next())

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Any]:
        from pyspark.sql import functions as sf

        requests = read(spark, folder / "in", SCHEMA).withWatermark("time", "10 minutes")
        found = requests.groupBy("host", sf.session_window("time", "30 minutes").alias("session"))
        rows = found.agg(sf.count("*").alias("requests"), sf.sum("line").alias("lines"))
        shown = rows.select("host", "session.start", "session.end", "requests", "lines")
        yield millpond.start(shown, table="windows", pond=folder / "pond", **to_files(folder, "windows"))
