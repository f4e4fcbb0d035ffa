"""Random events of a declared aggregate, and a recount of what Spark's rules make of them."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable

import millpond

SCHEMA = "id string, at timestamp, page string"
KEEPS = {"1 minute": 6 * 3600, "1 hour": 3 * 86_400, "1 day": None}
SECONDS = {"1 minute": 60, "1 hour": 3600, "1 day": 86_400}


def resolutions(keeps: dict[str, int | None]) -> dict[str, str | None]:
    """The resolutions of a declaration."""
    return {name: None if keep is None else f"{keep} seconds" for name, keep in keeps.items()}


def declare_views(**options) -> millpond.Aggregate:
    from pyspark.sql import functions as F

    return millpond.Aggregate(
        "views",
        **{
            "key": ["page"],
            "event_time": "at",
            "values": {"hits": F.count("*"), "ids": F.collect_set("id")},
            "resolutions": resolutions(KEEPS),
            **options,
        },
    )


def draw_events(draw: random.Random, begin: dt.datetime, files: int) -> list[list[dict]]:
    """Files of events: late by up to weeks, of the future, without a time or an id, and sent twice."""
    sent: list[dict] = []
    written = []
    for number in range(files):
        now = begin + dt.timedelta(hours=5 * number)
        rows = []
        for _ in range(25):
            late = draw.choice((0, 0, 600, 20_000, 100_000, 400_000, 2_000_000)) * draw.random()
            at = (now - dt.timedelta(seconds=late, microseconds=draw.randrange(10**6))).isoformat()
            at = draw.choice((at,) * 18 + (None, "2999-01-01T00:00:00+00:00"))
            row = {"id": f"{number}-{draw.randrange(10**9)}", "at": at, "page": draw.choice(("/", "/a"))}
            if draw.random() < 0.05:
                row["id"] = None
            rows.append(row)
        again = [draw.choice(sent + rows) for _ in range(8)]
        rows += [{**row, "at": draw.choice((row["at"], row["at"], now.isoformat()))} for row in again if row["id"]]
        sent += rows
        written.append(rows)
    return written


def recount(
    written: list[list[dict] | None], *, dedupe: bool, keeps: Callable[[int], dict[str, int | None]] = lambda _: KEEPS
) -> tuple[dict, Counter]:
    """The buckets, and the dead letters by reason and event, batch by batch as Spark's rules are.

    written:  the rows of each batch; None where a run ended, which takes a batch without rows
    keeps:    how long buckets are kept in each of these, in seconds
    """
    buckets: dict[tuple, Counter] = {}
    letters: Counter = Counter()
    seen: set[str] = set()
    newest = 0.0  # what the batches before saw

    def evict(kept: dict[str, int | None]) -> None:
        for page, name, start in list(buckets):
            keep = kept[name]
            if keep is not None and start + SECONDS[name] + keep <= newest:
                del buckets[page, name, start]

    for number, rows in enumerate(written):
        kept = keeps(number)
        most = newest
        for row in rows or ():
            event = json.dumps({n: v for n, v in row.items() if v is not None}, sort_keys=True)
            identity = row["id"] or event
            if dedupe and identity in seen:
                continue
            seen.add(identity)
            if dedupe and row["id"] is None:
                letters["no id", event] += 1
                continue
            if row["at"] is None:
                letters["no time", event] += 1
                continue
            at = dt.datetime.fromisoformat(row["at"]).timestamp()
            if row["at"].startswith("2999"):
                letters["future", event] += 1
                continue
            most = max(most, at)
            for name, keep in kept.items():
                start = at // SECONDS[name] * SECONDS[name]
                if keep is not None and start + SECONDS[name] + keep <= newest:
                    letters[f"late: {name}", event] += 1
                else:
                    buckets.setdefault((row["page"], name, start), Counter())[row["id"]] += 1
        evict(kept)
        newest = int(most * 1000) / 1000
    evict(keeps(len(written)))
    return buckets, letters


def shown(table: millpond.Table) -> tuple[dict, Counter]:
    """What the table has, in the form of `recount`; rows of one bucket are an error."""
    rows = table.scan()
    watermark_ms = rows.position.watermark_ms
    buckets: dict[tuple, tuple] = {}
    letters: Counter = Counter()
    for r in rows:
        if r["dead_letter"] is not None:
            event = json.loads(r["dead_letter"])
            if "at" in event:
                event["at"] = dt.datetime.fromisoformat(event["at"]).isoformat()
            letters[r["resolution"], json.dumps(event, sort_keys=True)] += r["hits"]
        elif r["expires_at"] is None or r["expires_at"].timestamp() * 1000 > watermark_ms:
            bucket = (r["page"], r["resolution"], r["bucket_start"].timestamp())
            assert bucket not in buckets
            buckets[bucket] = (r["hits"], sorted(r["ids"]))
    return buckets, letters


def counted(buckets: dict[tuple, Counter]) -> dict[tuple, tuple]:
    """The buckets of `recount` as `shown` has them."""
    return {bucket: (ids.total(), sorted(i for i in ids if i is not None)) for bucket, ids in buckets.items()}
