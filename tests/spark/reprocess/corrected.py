"""Random files of events, some of which are corrected later, and what the buckets are then.

A bucket that is still there has all its events, whenever they came: so no order of files matters.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import millpond
from inputs.event_file import write_event_file
from live_jobs.event_files import STORE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Event = dict[str, Any]
Bucket = tuple[str, str, float]
SCHEMA = "id string, at timestamp, page string, size long, ms double"
KEEPS = {"1 minute": 6 * 3600, "1 hour": 3 * 86_400, "1 day": None}
SECONDS = {"1 minute": 60, "1 hour": 3600, "1 day": 86_400}
ROW_CHECKSUM = {STORE + "rowChecksum.enabled": "true"}


def declare(**options: Any) -> millpond.Aggregate:
    from pyspark.sql import functions as sf

    return millpond.Aggregate(
        "views",
        **{
            "key": ["page"],
            "event_time": "at",
            "values": {
                "hits": sf.count("*"),
                "ids": sf.collect_set("id"),
                "size": sf.sum("size"),
                "ms": sf.avg("ms"),
                "visitors": millpond.distinct("id"),
            },
            "resolutions": {name: None if keep is None else f"{keep} seconds" for name, keep in KEEPS.items()},
            **options,
        },
    )


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def draw_file(draw: random.Random, begin: dt.datetime, number: int, sent: list[Event]) -> list[Event]:
    """Events of five hours, late by up to weeks, of the future, without a time, and sent twice as they are."""
    now = begin + dt.timedelta(hours=5 * number)
    rows: list[Event] = []
    for _ in range(25):
        late = draw.choice((0, 0, 600, 20_000, 100_000, 400_000, 2_000_000)) * draw.random()
        at = (now - dt.timedelta(seconds=late, microseconds=draw.randrange(10**6))).isoformat()
        at = draw.choice((at,) * 18 + (None, "2999-01-01T00:00:00+00:00"))
        size, ms = draw.choice((None, draw.randrange(10**6))), draw.random() * 1000
        rows.append({"id": f"{number}-{draw.randrange(10**9)}", "at": at, "page": draw.choice(("/", "/a")), "size": size, "ms": ms})
    rows += [draw.choice(sent + rows) for _ in range(6)]
    sent += rows
    return rows


def correct(draw: random.Random, rows: list[Event]) -> list[Event]:
    """The same file, in which some events are missing, others are new, and others have other values."""
    kept = [{**row, "size": draw.randrange(100)} if draw.random() < 0.3 else row for row in rows if draw.random() < 0.8]
    return kept + [{**draw.choice(rows), "id": f"new-{draw.randrange(10**9)}"} for _ in range(3)]


def count(files: dict[int, list[Event]], watermark: float, *, dedupe: bool = False) -> dict[Bucket, tuple[Any, ...]]:
    """The buckets of all events that are there at a watermark, in seconds."""
    found: dict[Bucket, list[Event]] = {}
    seen: set[str] = set()
    for rows in files.values():
        for row in rows:
            if row["at"] is None or row["at"].startswith("2999") or (dedupe and row["id"] in seen):
                continue
            seen.add(row["id"])
            at = dt.datetime.fromisoformat(row["at"]).timestamp()
            for name, keep in KEEPS.items():
                start = at // SECONDS[name] * SECONDS[name]
                if keep is None or start + SECONDS[name] + keep > watermark:
                    found.setdefault((row["page"], name, start), []).append(row)
    return {bucket: _values(rows) for bucket, rows in found.items()}


def _values(rows: list[Event]) -> tuple[Any, ...]:
    ids = sorted({row["id"] for row in rows})
    sizes = [row["size"] for row in rows if row["size"] is not None]
    mean = round(sum(row["ms"] for row in rows) / len(rows), 6)
    return len(rows), tuple(ids), sum(sizes) if sizes else None, mean, len(ids)


def newest(files: dict[int, list[Event]]) -> float:
    """The watermark after these files."""
    times = [row["at"] for rows in files.values() for row in rows if row["at"] and not row["at"].startswith("2999")]
    return int(max(dt.datetime.fromisoformat(at).timestamp() for at in times) * 1000) / 1000


def shown(pond: Path) -> tuple[dict[Bucket, tuple[Any, ...]], Counter[tuple[str, str]]]:
    """What readers find: buckets, and dead letters."""
    buckets: dict[Bucket, tuple[Any, ...]] = {}
    letters: Counter[tuple[str, str]] = Counter()
    with millpond.open(pond, wait_seconds=60) as opened:
        for row in opened["views"].scan():
            if row["dead_letter"] is not None:
                letters[row["resolution"], json.dumps(json.loads(row["dead_letter"]), sort_keys=True)] += row["hits"]
                continue
            bucket = (row["page"], row["resolution"], row["bucket_start"].timestamp())
            assert bucket not in buckets
            values = (row["hits"], tuple(sorted(row["ids"])), row["size"], round(row["ms"], 6), row["visitors"])
            buckets[bucket] = values
    return buckets, letters


def write(folder: Path, files: dict[int, list[Event]]) -> None:
    folder.mkdir(exist_ok=True)
    for number, rows in files.items():
        write_event_file(folder, number, rows)
