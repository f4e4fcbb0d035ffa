"""A declared aggregate, once with each provider of state, in zones whose clocks change while the events come.

Events are skewed to one page, late by up to weeks, of the future, without a time or an id, and sent again with the same id.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import millpond
from faults.fed import Files, Row, Rows
from faults.job import PARTITIONS, read
from faults.kind import Kind
from faults.undisturbed import Model, Planned, Tables
from live_jobs.event_files import PROVIDERS

SCHEMA = "event string, at timestamp, page string, n long"
Keeps = dict[str, int | None]
KEEPS: Keeps = {"1 minute": 6 * 3600, "1 hour": 2 * 86_400, "1 day": None}
LENGTHS = {"1 minute": 60, "1 hour": 3600}
SKEW_SECONDS, LETTERS_SECONDS = 600, 7 * 86_400
# In Havana a clock changes at midnight: a day has two of them, and another one begins at one o'clock.
ZONES = {"hdfs": "America/New_York", "changelog": "America/Havana"}
BEGINS = (dt.datetime(2025, 3, 8, 6, tzinfo=dt.UTC), dt.datetime(2025, 11, 1, 6, tzinfo=dt.UTC))
"""a day before clocks change in both zones"""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US = 1_000_000


class Bucket(NamedTuple):
    """The key of a row; times are microseconds since 1970."""

    page: str
    resolution: str
    begin_us: int | None
    expires_us: int | None
    letter: str | None


class Buckets(Model):
    """bucket -> the events in it, and dead letters with the reason.  `index` is no column: rows are compared in no order."""

    watermark, delay_ms, unknown = True, 0, frozenset({"index"})

    def __init__(self, table: str, zone: str, *, keeps: Keeps = KEEPS, weight: int = 1) -> None:
        self._table, self._zone, self._keeps, self._weight = table, ZoneInfo(zone), keeps, weight
        self._rows: dict[Bucket, Rows] = {}
        self._ids: set[str] = set()
        self._met: set[str] = set()

    def newest_ms(self, planned: Planned, rows: Rows) -> int:
        """The newest time that isn't of the future, copies of events included."""
        times = [time for row in rows if (time := _us(row)) is not None and not self._is_future(planned, time)]
        return max(times, default=0) // 1000

    def take(self, planned: Planned, rows: Rows) -> Rows:
        watermark_us = planned.watermark_ms * 1000
        for row in rows:
            event = self._as_json(row)
            if (identity := row["event"] or event) in self._ids:
                self._met.add("duplicate")
                continue
            self._ids.add(identity)
            for bucket in self._buckets(planned, row, event):
                self._rows.setdefault(bucket, []).append(row)
        for bucket in [b for b in self._rows if b.expires_us is not None and b.expires_us <= watermark_us]:
            self._met.add(f"expired: {bucket.resolution}")
            del self._rows[bucket]
        return []

    def _buckets(self, planned: Planned, row: Row, event: str) -> Iterator[Bucket]:
        time, watermark_us = _us(row), planned.watermark_ms * 1000
        letter_expires = max(planned.started_ms * 1000, watermark_us) + LETTERS_SECONDS * _US

        def letter(reason: str) -> Bucket:
            self._met.add(reason)
            return Bucket(row["page"], reason, None, letter_expires, event)

        if row["event"] is None:
            yield letter("no id")
        elif time is None:
            yield letter("no time")
        elif self._is_future(planned, time):
            yield letter("future")
        else:
            for resolution, keep in self._keeps.items():
                begin, end = self._span(resolution, time)
                expires = None if keep is None else end + keep * _US
                if expires is not None and expires <= watermark_us:
                    yield letter(f"late: {resolution}")
                else:
                    yield Bucket(row["page"], resolution, begin, expires, None)

    @staticmethod
    def _is_future(planned: Planned, time_us: int) -> bool:
        return time_us > (planned.started_ms + SKEW_SECONDS * 1000) * 1000

    def _span(self, resolution: str, time_us: int) -> tuple[int, int]:
        """Where a bucket begins and ends.  Clocks change by whole hours in both zones, so hours begin as in UTC."""
        if (seconds := LENGTHS.get(resolution)) is not None:
            begin = time_us // (seconds * _US) * seconds * _US
            return begin, begin + seconds * _US
        day = self._local(time_us).date()
        begins = [dt.datetime.combine(day + dt.timedelta(days=n), dt.time(), self._zone) for n in range(2)]
        return _since_epoch(begins[0]), _since_epoch(begins[1])

    def _local(self, time_us: int) -> dt.datetime:
        return (_EPOCH + dt.timedelta(microseconds=time_us)).astimezone(self._zone)

    def _as_json(self, row: Row) -> str:
        """The event as Spark writes it."""
        event = {name: value for name, value in row.items() if value is not None}
        if "at" in event:
            event["at"] = self._local(_us(row) or 0).isoformat(timespec="microseconds")
        return json.dumps(event, separators=(",", ":"))

    def tables(self) -> Tables:
        return {self._table: [self._shown(bucket, events) for bucket, events in self._rows.items()]}

    def _shown(self, bucket: Bucket, events: Rows) -> Row:
        times = {"bucket_start": bucket.begin_us, "expires_at": bucket.expires_us}
        return {
            "page": bucket.page,
            "resolution": bucket.resolution,
            **{name: None if time is None else round(time / 1000) for name, time in times.items()},
            "dead_letter": bucket.letter,
            "hits": len(events),
            "weight": self._weight * len(events),
            "total": sum(event["n"] for event in events),
            "ids": sorted({event["event"] for event in events if event["event"] is not None}),
        }

    def tried(self) -> bool:
        """Events were dropped, buckets have expired, and there are dead letters for each reason."""
        letters = {"duplicate", "no id", "no time", "future", "late: 1 minute", "late: 1 hour"}
        return letters | {"expired: 1 minute", "expired: 1 hour"} <= self._met


class Drawn:
    """Events for one file after the other."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._now = chance, chance.choice(BEGINS)
        self._sent: Rows = []

    def next(self) -> Rows:
        """The rows of the next file."""
        chance = self._chance
        self._now += dt.timedelta(hours=chance.choice((1, 5, 13)))
        rows = [self._event() for _ in range(25)]
        again = [chance.choice([*self._sent[-200:], *rows]) for _ in range(8)]
        rows += [{**row, "at": chance.choice((row["at"], self._now.isoformat()))} for row in again]
        self._sent += rows
        return rows

    def _event(self) -> Row:
        chance = self._chance
        late_seconds = chance.choice((0, 0, 600, 20_000, 100_000, 400_000, 2_000_000)) * chance.random()
        at = (self._now - dt.timedelta(seconds=late_seconds, microseconds=chance.randrange(_US))).isoformat()
        return {
            "event": None if chance.random() < 0.05 else f"{len(self._sent)}-{chance.randrange(10**9)}",
            "at": chance.choice((at,) * 18 + (None, "2999-01-01T00:00:00+00:00")),
            "page": "/" if chance.random() < 0.8 else f"/{chance.randrange(20)}",
            "n": chance.randrange(-50, 50),
        }


def declare(name: str, *, version: int | None = None, keeps: Keeps = KEEPS, weight: int = 1) -> millpond.Aggregate:
    """The declaration that `Buckets` recomputes."""
    from pyspark.sql import functions as sf

    return millpond.Aggregate(
        name,
        version=version,
        key=["page"],
        event_time="at",
        values={
            "hits": sf.count("*"),
            "weight": sf.sum(sf.lit(weight)),
            "total": sf.sum("n"),
            "ids": sf.collect_set("event"),
        },
        resolutions={name: None if keep is None else f"{keep} seconds" for name, keep in keeps.items()},
        future_skew=f"{SKEW_SECONDS} seconds",
        dedupe=("event", "2 days"),
        dead_letters=f"{LETTERS_SECONDS} seconds",
    )


def set_form(spark: Any, provider: str, zone: str) -> None:
    """Let the session's next job have this provider of state and zone."""
    for name, value in {**PROVIDERS[provider], "spark.sql.session.timeZone": zone}.items():
        spark.conf.set(name, value)


class Aggregates(Kind):
    """The same declaration twice over one stream."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self.events, self._drawn = Files(folder / "in"), Drawn(chance)
        self.inputs = [self.events]
        self.jobs = {f"views_{provider}": Buckets(f"views_{provider}", zone) for provider, zone in ZONES.items()}

    def feed(self) -> None:
        self.events.add(self._drawn.next())

    @classmethod
    def start(cls, spark: Any, folder: Path) -> Iterator[Any]:
        for provider, zone in ZONES.items():
            set_form(spark, provider, zone)
            events = read(spark, folder / "in", SCHEMA)
            yield millpond.start(declare(f"views_{provider}"), events, pond=folder / "pond", partitions=PARTITIONS)


def _us(row: Row) -> int | None:
    return None if row["at"] is None else _since_epoch(dt.datetime.fromisoformat(row["at"]))


def _since_epoch(time: dt.datetime) -> int:
    return (time.astimezone(dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
